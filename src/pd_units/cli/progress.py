"""Progress on stderr: on a terminal one live line a unit, in a log one line a change and a sign of life."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from pd_units.naming import Names
from pd_units.observe import UnitReport, UnitState
from pd_units.ports import ActiveState, Clock
from pd_units.report import progress_line
from pd_units.starts import read_starts, typical_s
from pd_units.waiting import DeploymentReport

# A log is never silent for longer than 30 s.
_SIGN_OF_LIFE_S = 20.0
# A bar that moves is worth a line this often.
_BAR_S = 5.0

Typical = Callable[[Names, str], float | None]


def usual_seconds(names: Names, unit: str) -> float | None:
    """How long a start of the unit takes as a rule, None if it has none that became ready."""
    return typical_s(read_starts(names, unit))


def is_live(stream: TextIO) -> bool:
    """Whether lines of a stream can be drawn over."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@dataclass(slots=True)
class _Said:
    line: str
    at: float


class Progress:
    """Shows what goes on. Callable as a `waiting.Watcher`; `say` prints a line beside it.

    `selected`: which units are waited for.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        selected: Callable[[UnitReport], bool] = lambda _unit: True,
        stream: TextIO | None = None,
        live: bool | None = None,
        typical: Typical = usual_seconds,
    ) -> None:
        self._clock, self._selected, self._typical = clock, selected, typical
        self._stream = stream if stream is not None else sys.stderr
        self._live = is_live(self._stream) if live is None else live
        self._began = self._said_at = clock.monotonic()
        self._said: dict[str, _Said] = {}
        self._usual: dict[str, float | None] = {}
        self._drawn = 0

    def __call__(self, reports: Sequence[DeploymentReport]) -> None:
        """Show how things stand now."""
        if self._live:
            self._draw([line for report in reports for line in self._live_lines(report)])
        else:
            for report in reports:
                self._log(report)
            self._give_sign_of_life()

    def say(self, text: str) -> None:
        """Print a line of another kind."""
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\r\x1b[J")
            self._drawn = 0
        self._print(text)

    # -------------------------------------------------------------------------------------- on a terminal
    def _live_lines(self, report: DeploymentReport) -> Iterator[str]:
        for unit in filter(self._selected, report.units):
            line = progress_line(report, unit)
            if unit.state is UnitState.STARTING:
                line += self._times(report.index.names, unit)
            yield line
        yield from self._of_router(report)

    def _of_router(self, report: DeploymentReport) -> Iterator[str]:
        """What a router that is up waits for; it has a line of its own where it is waited for itself."""
        router = report.router
        if router is None or not router.asked or router.ready or not router.detail:
            return
        if not any(unit.unit == router.unit for unit in filter(self._selected, report.units)):
            yield f"{report.index.name}: {router.detail}"

    def _times(self, names: Names, unit: UnitReport) -> str:
        """How long it has been starting, and how long it takes as a rule."""
        began_us = unit.status.inactive_exit_mono_us
        if unit.status.active_state is not ActiveState.ACTIVATING or not began_us:
            return ""
        usual = self._usual_of(names, unit.unit)
        rule = f" of about {_span(usual)}" if usual is not None else ""
        return f"  [{_span(self._clock.monotonic() - began_us / 1e6)}{rule}]"

    def _draw(self, lines: Sequence[str]) -> None:
        width, height = shutil.get_terminal_size()
        if len(lines) >= height:
            lines = [*lines[: max(1, height - 2)], f"... and {len(lines) - max(1, height - 2)} more"]
        up = f"\x1b[{self._drawn}A\r" if self._drawn else ""
        text = "".join(f"\x1b[2K{line[: max(20, width - 1)]}\n" for line in lines)
        rest = "\x1b[J" if self._drawn > len(lines) else ""
        self._stream.write(up + text + rest)
        self._stream.flush()
        self._drawn = len(lines)

    # ------------------------------------------------------------------------------------------ in a log
    def _log(self, report: DeploymentReport) -> None:
        for unit in filter(self._selected, report.units):
            if unit.state is UnitState.STARTING and unit.live is not None and unit.live.state == "ready":
                continue  # its watcher has just ended; systemd says so in a moment
            line = progress_line(report, unit)
            usual = self._usual_of(report.index.names, unit.unit) if unit.unit not in self._said else None
            more = f" (ready after {_span(usual)} as a rule)" if usual and _is_starting(unit) else ""
            self._say(unit.unit, line, more)
        for line in self._of_router(report):
            self._say(report.index.name, line)

    def _say(self, key: str, line: str, more: str = "") -> None:
        now, said = self._clock.monotonic(), self._said.get(key)
        if said is not None and said.line == line:
            return
        if said is not None and _same_but_for_numbers(said.line, line) and now - said.at < _BAR_S:
            return
        self._said[key] = _Said(line, now)
        self._print(self._stamped(line + more))

    def _give_sign_of_life(self) -> None:
        if self._clock.monotonic() - self._said_at < _SIGN_OF_LIFE_S:
            return
        for said in self._said.values():
            if ": ready" not in said.line:
                self._print(self._stamped(f"still waiting: {said.line}"))

    def _stamped(self, line: str) -> str:
        return f"[{self._clock.monotonic() - self._began:6.1f} s] {line}"

    def _print(self, line: str) -> None:
        self._said_at = self._clock.monotonic()
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def _usual_of(self, names: Names, unit: str) -> float | None:
        if unit not in self._usual:
            self._usual[unit] = self._typical(names, unit)
        return self._usual[unit]


def _is_starting(unit: UnitReport) -> bool:
    return unit.state in (UnitState.STARTING, UnitState.RESTARTING)


def _same_but_for_numbers(one: str, other: str) -> bool:
    return one.translate(_NO_DIGITS) == other.translate(_NO_DIGITS)


_NO_DIGITS = str.maketrans("", "", "0123456789")


def _span(seconds: float) -> str:
    """`7.3 s`, `6:40`, `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
