"""`pd-units wait-ready`."""

from __future__ import annotations

import click

from pd_units.access import connect
from pd_units.adapters.clock import SystemClock
from pd_units.cli.output import emit, envelope, json_option
from pd_units.cli.progress import Progress
from pd_units.cli.waits import DURATION
from pd_units.errors import DeploymentError, ExitCode
from pd_units.index import read_indexes
from pd_units.measuring import with_placement
from pd_units.naming import Role
from pd_units.observe import UnitReport
from pd_units.report import status_text
from pd_units.steps import ROUTER_S
from pd_units.waiting import wait_until_ready, with_operation


@click.command(name="wait-ready", short_help="Wait until deployments are ready.")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--role",
    type=click.Choice([str(role) for role in Role]),
    multiple=True,
    help="Only units of this role; may be repeated.",
)
@click.option("--unit", "units", multiple=True, metavar="UNIT", help="Only this unit; may be repeated.")
@click.option("--timeout", type=DURATION, help="Longest wait (default: [readiness] timeout, plus 3 min).")
@json_option
def command(
    names: tuple[str, ...],
    role: tuple[str, ...],
    units: tuple[str, ...],
    timeout: float | None,
    as_json: bool,
) -> int:
    """Wait until deployments are ready, and say what is waited for.

    Without a NAME: every installed deployment. Needs no root. Exit code 40 as soon as a unit has failed for
    good, 41 when the time is over.
    """
    indexes = read_indexes(names)
    wanted = {unit.removesuffix(".service") + ".service" for unit in units}
    known = {unit.unit for index in indexes for unit in index.units}
    if wanted - known:
        raise DeploymentError(
            f"no such unit: {', '.join(sorted(wanted - known))}",
            detail=f"units: {', '.join(sorted(known))}",
            exit_code=ExitCode.UNREADABLE,
        )

    def selected(unit: UnitReport) -> bool:
        return (not role or unit.declared.role in role) and (not wanted or unit.unit in wanted)

    declared = [unit for index in indexes for unit in index.units]
    if not any((not role or u.role in role) and (not wanted or u.unit in wanted) for u in declared):
        asked = " and ".join(part for part in (", ".join(role), ", ".join(sorted(wanted))) if part)
        raise DeploymentError(f"no unit is both {asked}", exit_code=ExitCode.UNREADABLE)
    manager = connect(needed=True)
    assert manager is not None
    clock = SystemClock()
    total_s = timeout if timeout is not None else max(index.timeout_s for index in indexes) + ROUTER_S
    outcome = wait_until_ready(
        manager,
        indexes,
        timeout_s=total_s,
        clock=clock,
        seen=Progress(clock, selected=selected),
        selected=selected,
    )
    reports = [with_placement(with_operation(report), measure=False) for report in outcome.reports]
    obj = envelope(outcome.exit_code, outcome.message, deployments=[report.to_json() for report in reports])
    emit(as_json, obj, status_text(reports))
    if outcome.exit_code:
        click.echo(f"pd-units: {outcome.message}", err=True)
    return outcome.exit_code
