"""`pd-units restart`."""

from __future__ import annotations

import click

from pd_units.access import connect, require_root
from pd_units.adapters.clock import SystemClock
from pd_units.adapters.files import locked
from pd_units.adapters.signals import deal_with, stoppable
from pd_units.cli.output import emit, envelope, json_option
from pd_units.cli.progress import Progress
from pd_units.cli.waits import DURATION, lock_timeout_option
from pd_units.errors import DeploymentError, ExitCode, HostError
from pd_units.index import Index, index_to_json, read_indexes
from pd_units.manifest import (
    Operation,
    Phase,
    begin_operation,
    end_operation,
    note_stopped,
    read_operation,
    what_next,
)
from pd_units.measuring import with_placement
from pd_units.naming import Role
from pd_units.placing import require_safe
from pd_units.ports import Manager
from pd_units.report import status_text
from pd_units.restarting import ORDER, restart_steps
from pd_units.steps import Stepper
from pd_units.waiting import Outcome


@click.command(name="restart", short_help="Restart deployments, one role at a time.")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--role",
    type=click.Choice([str(role) for role in Role]),
    multiple=True,
    help="Only units of this role; may be repeated.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Restart all instances of a role at once, though no pair serves then.",
)
@click.option(
    "--timeout",
    type=DURATION,
    help="Longest wait for each role (default: twice [readiness] timeout, plus 3 min).",
)
@lock_timeout_option
@json_option
def command(
    names: tuple[str, ...],
    role: tuple[str, ...],
    force: bool,
    timeout: float | None,
    lock_timeout: float,
    as_json: bool,
) -> int:
    """Restart deployments in order, one role at a time, each waited for.

    Without a NAME: every installed deployment. Of several instances of a role one at a time: the others go on
    serving.
    """
    require_root("restart")
    indexes = read_indexes(names)
    manager = connect(needed=True)
    assert manager is not None
    roles = [each for each in ORDER if not role or each in role]
    if not any(unit.role in roles for index in indexes for unit in index.units):
        raise DeploymentError(f"no unit has the role {', '.join(role)}", exit_code=ExitCode.UNREADABLE)
    for index in indexes:
        _require_whole(index)
    outcomes = []
    with stoppable():
        for index in indexes:
            with locked(index.names.lock, timeout_s=lock_timeout):
                (now,) = read_indexes([index.name])  # whoever held the lock may have changed it
                outcomes.append(_restart(now, roles, manager, timeout, force=force))
            if outcomes[-1].exit_code == ExitCode.INTERRUPTED:
                break
    worst = max(outcomes, key=lambda outcome: outcome.exit_code)
    reports = [with_placement(report) for outcome in outcomes for report in outcome.reports]
    obj = envelope(worst.exit_code, worst.message, deployments=[report.to_json() for report in reports])
    emit(as_json, obj, status_text(reports))
    if worst.exit_code:
        click.echo(f"pd-units: {worst.message}", err=True)
    return worst.exit_code


def _require_whole(index: Index) -> None:
    """Raises: HostError 32 where an interrupted operation left units that are half old and half new."""
    pending = read_operation(index.names)
    if pending is None or pending.at_work or pending.kind == "restart":
        return
    name = index.names.deployment
    raise HostError(
        f"an interrupted {pending.kind} of {name} comes first; nothing of it was restarted",
        hint=what_next(name, pending.kind, pending.generation, pending.options),
    )


def _restart(
    index: Index, roles: list[Role], manager: Manager, timeout_s: float | None, *, force: bool
) -> Outcome:
    """Restart one deployment; an interrupted one is named by the next command. Raises: HostError."""
    names, clock = index.names, SystemClock()
    require_safe(names)
    _require_whole(index)
    steps = restart_steps(index, roles, manager, force=force)
    if not steps:
        return Outcome(exit_code=ExitCode.OK, message="nothing to restart", reports=())
    operation = Operation(
        kind="restart",
        generation=index.generation,
        began=clock.wall(),
        phase=Phase.UNITS,
        index=index_to_json(index),
    )
    begin_operation(names, operation)
    progress = Progress(clock)
    stepper = Stepper(manager, clock, progress.say, progress, timeout_s=timeout_s)
    try:
        outcome = stepper.run(index, steps, {})
    except KeyboardInterrupt as error:
        signal = deal_with(error)
        note_stopped(names, signal)
        message = f"the restart was interrupted by {signal}; what was begun goes on: pd-units status"
        return Outcome(exit_code=ExitCode.INTERRUPTED, message=message, reports=())
    end_operation(names)
    return outcome
