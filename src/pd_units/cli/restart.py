"""`pd-units restart`."""

from __future__ import annotations

import click

from pd_units.adapters.clock import SystemClock
from pd_units.adapters.files import locked
from pd_units.cli.options import DURATION
from pd_units.cli.output import emit, envelope, json_option
from pd_units.cli.progress import Progress
from pd_units.errors import ExitCode
from pd_units.index import Index, read_indexes
from pd_units.install import ROUTER_S, FirstFailure
from pd_units.measuring import with_placement
from pd_units.naming import Role
from pd_units.observe import UnitReport
from pd_units.ports import Clock, Manager
from pd_units.prepare import connect, require_root
from pd_units.report import status_text
from pd_units.waiting import Outcome, wait_until_ready

_ORDER = (Role.STANDALONE, Role.PREFILL, Role.DECODE, Role.ROUTER)


@click.command(name="restart")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--role", type=click.Choice([str(role) for role in Role]), multiple=True, help="Only these roles."
)
@click.option("--timeout", type=DURATION, help="Longest wait for each role (default: [readiness] timeout).")
@click.option("--lock-timeout", type=DURATION, default=10.0, help="Longest wait for another pd-units.")
@json_option
def command(
    names: tuple[str, ...], role: tuple[str, ...], timeout: float | None, lock_timeout: float, as_json: bool
) -> int:
    """Restart deployments in order, one role at a time, each waited for."""
    require_root("restart")
    indexes = read_indexes(names)
    manager = connect(needed=True)
    assert manager is not None
    clock = SystemClock()
    outcomes = []
    for index in indexes:
        with locked(index.names.lock, timeout_s=lock_timeout):
            outcomes.append(
                _restart(index, [r for r in _ORDER if not role or r in role], manager, clock, timeout)
            )
    worst = max(outcomes, key=lambda outcome: outcome.exit_code)
    reports = [with_placement(report) for outcome in outcomes for report in outcome.reports]
    obj = envelope(worst.exit_code, worst.message, deployments=[report.to_json() for report in reports])
    emit(as_json, obj, status_text(reports))
    if worst.exit_code:
        click.echo(f"pd-units: {worst.message}", err=True)
    return worst.exit_code


def _restart(
    index: Index, roles: list[Role], manager: Manager, clock: Clock, timeout_s: float | None
) -> Outcome:
    outcome = Outcome(exit_code=ExitCode.OK, message="nothing to restart", reports=())
    progress = Progress(clock)
    for role in roles:
        units = [unit.unit for unit in index.units if unit.role is role]
        began = clock.wall()
        for unit in units:
            click.echo(f"restarting {unit}", err=True)
            manager.reset_failed(unit)
            manager.restart(unit)
        if not units:
            continue
        failing = FirstFailure(index.names, units, began)

        def selected(unit: UnitReport, units: list[str] = units) -> bool:
            return unit.unit in units

        outcome = wait_until_ready(
            manager,
            [index],
            timeout_s=timeout_s if timeout_s is not None else index.timeout_s + ROUTER_S,
            clock=clock,
            seen=progress,
            selected=selected,
            failing=failing,
            end_of=failing.end,
        )
        if outcome.exit_code:
            break
    return outcome
