"""`pd-units timeline`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pd_units.adapters.files import write_error
from pd_units.cli.output import emit, envelope, json_option
from pd_units.errors import ExitCode
from pd_units.index import Index, IndexUnit, read_indexes
from pd_units.report import table
from pd_units.starts import Start, phases_from, read_starts
from pd_units.timeline import STARTING, UnitTimeline, timeline_text, unit_timeline
from pd_units.verdicts import read_last_end, read_last_live


@click.command(name="timeline", short_help="Show the phases of the last start of each unit.")
@click.argument("name", required=False)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw it into FILE too."
)
@json_option
def command(name: str | None, svg: Path | None, as_json: bool) -> int:
    """Show the last start of each unit: its phases and their times, compared with earlier starts.

    Without a NAME: every installed deployment. Needs no root. The usual times are medians of the last ten
    starts that became ready.
    """
    indexes = read_indexes((name,) if name is not None else ())
    timelines = {index.name: _timelines(index) for index in indexes}
    if svg is not None:
        _draw(svg, timelines)
    deployments = [
        {"name": each, "units": [unit.to_json() for unit in units]} for each, units in timelines.items()
    ]
    known = sum(unit.last is not None for units in timelines.values() for unit in units)
    emit(
        as_json,
        envelope(ExitCode.OK, f"the last start of {known} units", deployments=deployments),
        "\n\n".join(timeline_text(each, units, table=table) for each, units in timelines.items()),
    )
    return ExitCode.OK


def _timelines(index: Index) -> tuple[UnitTimeline, ...]:
    return tuple(
        unit_timeline(
            declared.unit,
            declared.role,
            read_starts(index.names, declared.unit),
            _under_way(index, declared),
        )
        for declared in index.units
    )


def _under_way(index: Index, declared: IndexUnit) -> Start | None:
    """The start that has no verdict yet, None if there is none."""
    live = read_last_live(index.names, declared.unit)
    if live is None or live.state not in ("waiting", "gate", "gate-passed"):
        return None
    end = read_last_end(index.names, declared.unit)
    if end is not None and end.invocation_id == live.invocation_id:
        return None  # it was stopped meanwhile
    return Start(
        unit=declared.unit,
        invocation_id=live.invocation_id,
        began=live.since,
        outcome=STARTING,
        seconds=max(0.0, time.time() - live.since),
        phases=phases_from(live.phases),
    )


def _draw(path: Path, timelines: dict[str, tuple[UnitTimeline, ...]]) -> None:
    from pd_units.timeline_svg import draw_svg

    if len(timelines) > 1:
        raise click.UsageError(f"--svg draws one deployment: name one of {', '.join(timelines)}")
    ((name, units),) = timelines.items()
    try:
        path.write_text(draw_svg(name, units), encoding="utf-8")
    except OSError as error:
        raise write_error(path, error) from error
