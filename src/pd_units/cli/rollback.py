"""`pd-units rollback`."""

from __future__ import annotations

from dataclasses import replace

import click

from pd_units.access import connect, require_root
from pd_units.adapters.clock import SystemClock
from pd_units.adapters.files import locked
from pd_units.adapters.host import verify_units
from pd_units.adapters.signals import deal_with, stoppable
from pd_units.changes import Kind
from pd_units.claimed import alone_on_host
from pd_units.cli.answers import broke_off, interrupted, whole
from pd_units.cli.output import emit, envelope, json_option
from pd_units.cli.progress import Progress
from pd_units.cli.waits import lock_timeout_option, timeout_option
from pd_units.errors import ExitCode, PdUnitsError
from pd_units.goal import Goal, Installed
from pd_units.index import read_indexes
from pd_units.install import Installer, conclude
from pd_units.measuring import with_placement
from pd_units.naming import Names
from pd_units.ports import Manager
from pd_units.report import changes_text, status_text
from pd_units.rollback import stored_goal, target_of


@click.command(name="rollback", short_help="Go back to a generation that worked.")
@click.argument("name")
@click.option("--to", "number", type=int, metavar="N", help="Go back to this generation, good or not.")
@click.option("--check", is_flag=True, help="Show what would change, change nothing; needs root, too.")
@click.option("--force", is_flag=True, help="Restart everything at once.")
@timeout_option
@lock_timeout_option
@click.option(
    "--adopt", "--overwrite", "adopt", is_flag=True, help="Replace unit files that were changed by hand."
)
@json_option
@whole
def command(
    name: str,
    number: int | None,
    check: bool,
    force: bool,
    timeout: float | None,
    lock_timeout: float,
    adopt: bool,
    as_json: bool,
) -> int:
    """Go back to what the current generation replaced, and wait until it is ready.

    If that was not good, to the newest good one before it.
    """
    require_root("rollback")
    read_indexes([name])
    names = Names(name)
    manager = connect(needed=True)
    assert manager is not None
    with stoppable(), locked(names.lock, timeout_s=lock_timeout):
        read_indexes([name])  # whoever held the lock may have uninstalled it
        target = target_of(names, number)
        goal = stored_goal(names, target.number, manager, adopt=adopt, force=force)
        if check:
            return _show(goal, as_json=as_json)
        if goal.changes.of(Kind.WRITE):
            verify_units((*goal.rendered, *goal.shared))  # with the drop-ins of now
        click.echo(f"{name}: going back to generation {target.number}", err=True)
        done = _roll_back(goal, manager, timeout)
    if done.error is not None and not as_json:
        raise done.error
    if done.report is not None:
        done = replace(done, report=with_placement(done.report))
    message = done.message if done.exit_code else f"{name} is at generation {target.number}, ready"
    obj = envelope(done.exit_code, message, changed=done.changed, deployments=[done.to_json()])
    obj |= done.error.to_json() if done.error is not None else {}
    emit(as_json, obj, message + ("\n" + status_text([done.report]) if done.report is not None else ""))
    return done.exit_code


def _roll_back(goal: Goal, manager: Manager, timeout_s: float | None) -> Installed:
    clock = SystemClock()
    progress = Progress(clock)
    installer = Installer(manager, clock, progress.say, progress, timeout_s=timeout_s, guard=alone_on_host)
    try:
        return conclude(goal, installer.apply(goal), clock)
    except KeyboardInterrupt as error:
        return interrupted(goal, deal_with(error), manager)
    except PdUnitsError as error:
        return broke_off(goal, error, manager)


def _show(goal: Goal, *, as_json: bool) -> int:
    name = goal.index.name
    obj = envelope(ExitCode.OK, "changes pending", changed=goal.changes.changed, check=True)
    obj["deployments"] = [
        {
            "name": name,
            "generation": goal.index.generation,
            "result": "would-change" if goal.changes.changed else "unchanged",
            "changes": [change.to_json() for change in goal.changes.changes],
            "units": [],
        }
    ]
    emit(as_json, obj, changes_text(name, goal.changes, diff=True))
    return ExitCode.OK
