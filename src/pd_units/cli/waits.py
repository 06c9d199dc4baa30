"""How long a verb waits, and for whom: options that several share. Light to load."""

from __future__ import annotations

from typing import Any

import click

from pd_units.durations import parse_duration


class Duration(click.ParamType[float]):
    """Seconds, from "30min", "90s", "1h 30min" or a number."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds as a float."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


DURATION = Duration()

timeout_option = click.option(
    "--timeout",
    type=DURATION,
    help="Longest wait for readiness (default: twice [readiness] timeout, plus 3 min).",
)
lock_timeout_option = click.option(
    "--lock-timeout",
    type=DURATION,
    default=10.0,
    help="Longest wait for another pd-units (default: 10 s).",
)
