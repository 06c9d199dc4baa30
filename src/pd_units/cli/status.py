"""`pd-units status`."""

from __future__ import annotations

import click

from pd_units.access import connect
from pd_units.cli.output import emit, envelope, json_option
from pd_units.errors import ExitCode
from pd_units.index import Index, read_indexes
from pd_units.measuring import with_placement
from pd_units.observe import UnitState
from pd_units.ports import Manager
from pd_units.report import status_text
from pd_units.waiting import DeploymentReport, SmokeTests, observe_deployment, with_operation

# A status is asked for by people: a generation that takes longer is reported as not back yet.
_SMOKE_S = 10.0


@click.command(name="status", short_help="Show state, readiness, placement and capacity.")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--watch",
    is_flag=True,
    help="Show it again at every change, until interrupted (not with --json).",
)
@click.option(
    "--exit-code",
    "state_code",
    is_flag=True,
    help="Exit 40 (failed, stopped) or 41 unless all is ready.",
)
@json_option
def command(names: tuple[str, ...], watch: bool, state_code: bool, as_json: bool) -> int:
    """Show the state, readiness, placement and capacity of each unit.

    Without a NAME: every installed deployment. Needs no root; log lines are shown to the journal's readers.
    """
    if watch and as_json:
        raise click.UsageError("--watch draws for people: for a program, call status --json again")
    indexes = read_indexes(names)
    manager = connect(needed=True)
    assert manager is not None
    if watch:
        _watch(manager, indexes)
    reports = _look(manager, indexes, SmokeTests())
    code = _code(reports) if state_code else ExitCode.OK
    message = ", ".join(f"{report.index.name} is {report.state}" for report in reports)
    emit(
        as_json,
        envelope(code, message, deployments=[report.to_json() for report in reports]),
        status_text(reports),
    )
    return code


def _look(
    manager: Manager, indexes: tuple[Index, ...], smoke: SmokeTests, *, measure: bool = True
) -> tuple[DeploymentReport, ...]:
    reports = (observe_deployment(manager, index, smoke, smoke_wait_s=_SMOKE_S) for index in indexes)
    return tuple(with_placement(with_operation(report), measure=measure) for report in reports)


def _code(reports: tuple[DeploymentReport, ...]) -> ExitCode:
    states = {report.state for report in reports}
    if states == {UnitState.READY}:
        return ExitCode.OK
    return ExitCode.UNIT_FAILED if states & {UnitState.FAILED, UnitState.STOPPED} else ExitCode.NOT_READY


def _watch(manager: Manager, indexes: tuple[Index, ...]) -> None:
    smoke, shown = SmokeTests(), ""
    manager.watch([unit.unit for index in indexes for unit in index.units])
    while True:
        # what the watchers measured: page tables of large engines are not walked every second
        text = status_text(_look(manager, indexes, smoke, measure=False))
        if text != shown:
            click.echo(text + "\n")
            shown = text
        manager.pump(1.0)
