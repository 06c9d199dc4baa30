"""Progress on stderr: a line a change, and a sign of life at least every 20 seconds."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pd_units.observe import UnitState
from pd_units.ports import Clock
from pd_units.report import progress_line
from pd_units.waiting import DeploymentReport

_SIGN_OF_LIFE_S = 20.0


class Progress:
    """Prints what changed since the last look. Callable as a `waiting.Watcher`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._said_at = self._began
        self._lines: dict[str, str] = {}

    def __call__(self, reports: Sequence[DeploymentReport]) -> None:
        """Print one line for each unit whose line changed."""
        for report in reports:
            for unit in report.units:
                if unit.state is UnitState.STARTING and unit.live is not None and unit.live.state == "ready":
                    continue  # its watcher has just ended; systemd says so in a moment
                self._say(unit.unit, progress_line(unit))
            router = report.router
            if router is not None and router.detail and not router.ready and router.asked:
                self._say(report.index.name, f"{report.index.name}: {router.detail}")
        if self._clock.monotonic() - self._said_at >= _SIGN_OF_LIFE_S:
            for line in self._lines.values():
                if ": ready" not in line:
                    self._print(f"still waiting: {line}")

    def _say(self, key: str, line: str) -> None:
        if self._lines.get(key) != line:
            self._lines[key] = line
            self._print(line)

    def _print(self, line: str) -> None:
        self._said_at = self._clock.monotonic()
        click.echo(f"[{self._said_at - self._began:6.1f} s] {line}", err=True)
