"""A deployment's last start as an SVG drawing: one bar a unit, coloured by phase, above its usual course."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from pd_units.naming import stem
from pd_units.starts import Start
from pd_units.timeline import UnitTimeline, headline, offsets

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 20, 20, 58
_ROW, _BAR, _USUAL = 72, 26, 8
_COLOURS = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2"),
    *("#edc948", "#b07aa1", "#9c755f", "#86bcb6", "#d37295"),
)
_STYLE = (
    "text{font-family:sans-serif;font-size:12px;fill:#222}.h{font-size:14px;font-weight:bold}"
    ".s{fill:#555;font-size:11px}.axis{stroke:#ccc}.end{stroke:#a00;stroke-width:2}"
)
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
_MOST_TICKS = 10


def draw_svg(name: str, units: Sequence[UnitTimeline]) -> str:
    """The drawing. Same starts, same bytes."""
    shifts = offsets(units)
    longest = max(
        [
            shift + max(unit.last.seconds, unit.typical_s or 0.0)
            for shift, unit in zip(shifts, units, strict=True)
            if unit.last
        ]
        or [1.0]
    )
    scale = (_WIDTH - _LEFT - _RIGHT) / max(longest, 0.001)
    colours = _colours(units)
    body = [f'<text x="{_LEFT}" y="24" class="h">{escape(name)}: the last start of each unit</text>']
    body += _axis(longest, scale, len(units))
    for number, (shift, unit) in enumerate(zip(shifts, units, strict=True)):
        body += _unit(unit, _TOP + number * _ROW, _LEFT + shift * scale, scale, colours)
    bottom = _TOP + len(units) * _ROW
    legend, height = _legend(units, colours, bottom + 10)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, f"<style>{_STYLE}</style>", ground, *body, *legend, "</svg>", ""])


def _colours(units: Sequence[UnitTimeline]) -> dict[str, str]:
    names = dict.fromkeys(row.name for unit in units for row in unit.rows)
    return {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}


def _axis(longest: float, scale: float, rows: int) -> list[str]:
    step = next((each for each in _STEPS_S if longest / each <= _MOST_TICKS), longest / _MOST_TICKS)
    lines, tick, bottom = [], 0, _TOP + rows * _ROW
    while tick * step <= longest:
        x = _LEFT + tick * step * scale
        lines.append(f'<line x1="{x:.1f}" y1="{_TOP - 10}" x2="{x:.1f}" y2="{bottom}" class="axis"/>')
        lines.append(f'<text x="{x:.1f}" y="{_TOP - 14}" class="s">{tick * step:g} s</text>')
        tick += 1
    return lines


def _unit(unit: UnitTimeline, y: int, x: float, scale: float, colours: dict[str, str]) -> list[str]:
    lines = [f'<text x="{_LEFT}" y="{y + 12}">{escape(headline(unit))}</text>']
    if unit.last is None:
        return lines
    lines += _bar(unit.last, x, y + 18, scale, colours)
    if unit.typical_s is not None:
        usual, at = f"usually {unit.typical_s:.1f} s", x
        for row in unit.rows:
            width = (row.typical_s or 0.0) * scale
            title = f"{row.text}: usually {row.typical_s or 0.0:.1f} s"
            lines.append(_rect(at, y + 18 + _BAR + 2, width, _USUAL, colours[row.name], title, faint=True))
            at += width
        lines.append(f'<text x="{at + 4:.1f}" y="{y + 18 + _BAR + 2 + _USUAL}" class="s">{usual}</text>')
    return lines


def _bar(start: Start, x: float, y: int, scale: float, colours: dict[str, str]) -> list[str]:
    lines = [_rect(x, y, start.seconds * scale, _BAR, "#ddd", f"{stem(start.unit)}: before its first line")]
    for phase, seconds in start.spans():
        title = f"{phase.text}: {seconds:.1f} s, from {phase.at_s:.1f} s on"
        lines.append(_rect(x + phase.at_s * scale, y, seconds * scale, _BAR, colours[phase.name], title))
    if start.outcome not in ("ready", "starting"):
        end = x + start.seconds * scale
        lines.append(f'<line x1="{end:.1f}" y1="{y - 3}" x2="{end:.1f}" y2="{y + _BAR + 3}" class="end"/>')
    return lines


def _rect(x: float, y: int, width: float, height: int, fill: str, title: str, *, faint: bool = False) -> str:
    opacity = ' fill-opacity="0.45"' if faint else ""
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.0):.1f}" height="{height}" fill="{fill}"{opacity}>'
        f"<title>{escape(title)}</title></rect>"
    )


def _legend(units: Sequence[UnitTimeline], colours: dict[str, str], y: int) -> tuple[list[str], int]:
    """The legend's elements, and the drawing's height."""
    texts = {row.name: row.text for unit in units for row in unit.rows}
    lines, x = [], _LEFT
    for name, text in texts.items():
        width = 24 + 7 * len(text)
        if x + width > _WIDTH - _RIGHT:
            x, y = _LEFT, y + 20
        lines.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colours[name]}"/>')
        lines.append(f'<text x="{x + 17}" y="{y + 10}" class="s">{escape(text)}</text>')
        x += width
    return lines, y + 30
