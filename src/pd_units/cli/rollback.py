"""`pd-units rollback`."""

from __future__ import annotations

from dataclasses import replace

import click

from pd_units.adapters.clock import SystemClock
from pd_units.adapters.files import locked
from pd_units.cli.options import DURATION
from pd_units.cli.output import emit, envelope, json_option
from pd_units.cli.progress import Progress
from pd_units.errors import ExitCode
from pd_units.index import read_indexes
from pd_units.install import Installer, conclude
from pd_units.measuring import with_placement
from pd_units.naming import Names
from pd_units.prepare import connect, require_root
from pd_units.report import changes_text, status_text
from pd_units.rollback import stored_goal, target_of


@click.command(name="rollback")
@click.argument("name")
@click.option("--to", "number", type=int, metavar="N", help="This generation (default: the last good one).")
@click.option("--check", is_flag=True, help="Show what would change, change nothing.")
@click.option("--timeout", type=DURATION, help="Longest wait for readiness (default: from [readiness]).")
@click.option("--lock-timeout", type=DURATION, default=10.0, help="Longest wait for another pd-units.")
@click.option("--adopt", is_flag=True, help="Replace unit files that were changed by hand.")
@json_option
def command(
    name: str,
    number: int | None,
    check: bool,
    timeout: float | None,
    lock_timeout: float,
    adopt: bool,
    as_json: bool,
) -> int:
    """Go back to a good generation, and wait until it is ready."""
    require_root("rollback")
    read_indexes([name])
    names = Names(name)
    manager = connect(needed=True)
    assert manager is not None
    clock = SystemClock()
    with locked(names.lock, timeout_s=lock_timeout):
        target = target_of(names, number)
        goal = stored_goal(names, target.number, manager, adopt=adopt)
        if check:
            obj = envelope(ExitCode.OK, "changes pending", changed=goal.changes.changed, check=True)
            obj["deployments"] = [
                {
                    "name": name,
                    "generation": target.number,
                    "result": "would-change" if goal.changes.changed else "unchanged",
                    "changes": [change.to_json() for change in goal.changes.changes],
                    "units": [],
                }
            ]
            emit(as_json, obj, changes_text(name, goal.changes, diff=True))
            return ExitCode.OK
        click.echo(f"{name}: going back to generation {target.number}", err=True)
        installer = Installer(
            manager, clock, lambda line: click.echo(line, err=True), Progress(clock), timeout_s=timeout
        )
        done = conclude(goal, installer.apply(goal), clock)
    if done.report is not None:
        done = replace(done, report=with_placement(done.report))
    message = done.message if done.exit_code else f"{name} is at generation {target.number}, ready"
    emit(
        as_json,
        envelope(done.exit_code, message, changed=done.changed, deployments=[done.to_json()]),
        message + ("\n" + status_text([done.report]) if done.report is not None else ""),
    )
    return done.exit_code
