"""The last start of each unit of a deployment, phase by phase, beside the earlier ones. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pd_units.naming import Role, stem
from pd_units.starts import PhaseTime, Start, ready_starts, typical_length_s, typical_s

STARTING = "starting"
# A difference to the usual time that is worth a mark: this many times as long, and this much longer.
_SLOW_FACTOR = 1.3
_SLOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """A phase of the last start: when it began, how long it took, and takes as a rule (s)."""

    name: str
    text: str
    at_s: float
    seconds: float
    typical_s: float | None

    @property
    def is_slow(self) -> bool:
        """Whether it took markedly longer than usual."""
        usual = self.typical_s
        return usual is not None and self.seconds > max(usual * _SLOW_FACTOR, usual + _SLOW_S)

    def to_json(self) -> dict[str, Any]:
        """The phase's object."""
        return {
            "name": self.name,
            "text": self.text,
            "at": round(self.at_s, 3),
            "seconds": round(self.seconds, 3),
            "typical_seconds": _rounded(self.typical_s),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimeline:
    """The last start of a unit, None if none is known, and how many earlier ones it is compared with."""

    unit: str
    role: Role
    last: Start | None
    rows: tuple[Row, ...] = ()
    typical_s: float | None = None
    compared_with: int = 0

    def to_json(self) -> dict[str, Any]:
        """The unit's object."""
        last = self.last
        return {
            "unit": self.unit,
            "role": str(self.role),
            "invocation_id": last.invocation_id if last is not None else None,
            "began": _iso(last.began) if last is not None else None,
            "outcome": last.outcome if last is not None else None,
            "cause": last.cause if last is not None else "none",
            "seconds": _rounded(last.seconds) if last is not None else None,
            "typical_seconds": _rounded(self.typical_s),
            "compared_with": self.compared_with,
            "phases": [row.to_json() for row in self.rows],
        }


def unit_timeline(unit: str, role: Role, starts: Sequence[Start], under_way: Start | None) -> UnitTimeline:
    """The timeline of a unit from its history, and from the start under way, if there is one."""
    last = under_way or (starts[-1] if starts else None)
    if last is None:
        return UnitTimeline(unit=unit, role=role, last=None)
    before = last.invocation_id
    rows = tuple(
        Row(
            phase.name,
            phase.text,
            phase.at_s,
            last.length_of(phase.name) or 0.0,
            typical_length_s(starts, phase.name, before=before),
        )
        for phase in _first_of_each(last.phases)
    )
    return UnitTimeline(
        unit=unit,
        role=role,
        last=last,
        rows=rows,
        typical_s=typical_s(starts, before=before),
        compared_with=len(ready_starts(starts, before=before)),
    )


def _first_of_each(phases: Sequence[PhaseTime]) -> list[PhaseTime]:
    """Each phase once, where it first began: ranks, and draft models, go through some of them again."""
    first: dict[str, PhaseTime] = {}
    for phase in phases:
        first.setdefault(phase.name, phase)
    return list(first.values())


def offsets(units: Sequence[UnitTimeline]) -> list[float]:
    """When each last start began, in seconds after the first of them; 0 if they did not start together."""
    began = [unit.last.began for unit in units if unit.last is not None]
    longest = max((unit.last.seconds for unit in units if unit.last is not None), default=0.0)
    together = bool(began) and max(began) - min(began) <= longest + 60
    return [unit.last.began - min(began) if unit.last is not None and together else 0.0 for unit in units]


def timeline_text(name: str, units: Sequence[UnitTimeline], *, table: Any) -> str:
    """The timelines of a deployment. `table` lays rows out in columns."""
    blocks = [f"{name}: the last start of each unit"]
    for unit in units:
        rows = [("  PHASE", "AT", "TOOK", "USUALLY", "")]
        for row in unit.rows:
            usual = f"{row.typical_s:.1f} s" if row.typical_s is not None else "-"
            mark = "slower than usual" if row.is_slow else ""
            rows.append((f"  {row.text}", f"{row.at_s:.1f} s", f"{row.seconds:.1f} s", usual, mark))
        blocks.append("\n".join([headline(unit), *([table(rows)] if unit.rows else [])]))
    return "\n\n".join(blocks)


def headline(unit: UnitTimeline) -> str:
    """One line: what became of the last start, how long it took, and how long it takes as a rule."""
    last = unit.last
    if last is None:
        return f"{stem(unit.unit)}: no start is known yet"
    cause = f" ({last.cause})" if last.cause != "none" else ""
    took = {"ready": "ready after", STARTING: "starting for"}.get(
        last.outcome, f"{last.outcome}{cause} after"
    )
    usual = ""
    if unit.typical_s is not None:
        count = f"{unit.compared_with} earlier start" + ("s" if unit.compared_with > 1 else "")
        usual = f", usually {unit.typical_s:.1f} s ({count})"
    return f"{stem(unit.unit)}: {took} {last.seconds:.1f} s{usual}; began {_iso(last.began)}"


def _iso(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None
