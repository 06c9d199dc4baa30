"""`pd-units uninstall`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import click

from pd_units.access import connect, require_root
from pd_units.adapters.clock import SystemClock
from pd_units.adapters.files import locked
from pd_units.adapters.signals import deal_with, stoppable
from pd_units.changes import ChangeSet
from pd_units.cli.answers import whole
from pd_units.cli.output import emit, envelope, json_option
from pd_units.cli.waits import lock_timeout_option
from pd_units.errors import DeploymentError, ExitCode, PdUnitsError
from pd_units.index import known_names, read_index
from pd_units.manifest import manifest_path, note_stopped, operation_path, read_operation, what_next
from pd_units.naming import RUN_ROOT, Names, name_problem
from pd_units.ports import Manager
from pd_units.report import changes_text
from pd_units.uninstall import plan_uninstall, shared_left, sweep_shared, uninstall


@click.command(name="uninstall", short_help="Stop a deployment and remove its units.")
@click.argument("name")
@click.option("--purge", is_flag=True, help="Remove its history and kept files too.")
@click.option(
    "--restore-retired", is_flag=True, help="Enable and start again the units that it had replaced."
)
@click.option("--check", is_flag=True, help="Show what would change, change nothing; needs no root.")
@lock_timeout_option
@json_option
@whole
def command(
    name: str, purge: bool, restore_retired: bool, check: bool, lock_timeout: float, as_json: bool
) -> int:
    """Stop a deployment in reverse order, disable it, and remove what pd-units wrote.

    If somebody has changed a unit file since, nothing is touched. Drop-ins and the deployment file stay.
    """
    if name_problem(name):
        raise DeploymentError(f"{name!r} {name_problem(name)}", exit_code=ExitCode.UNREADABLE)
    names = Names(name)
    if not check:
        require_root("uninstall")
    manager = connect(needed=True)
    assert manager is not None
    if not _installed(names) and not (purge and names.state_dir.exists()):
        if not check:
            sweep_shared(names)
        message = f"no deployment {name!r} is installed: nothing to do"
        emit(as_json, envelope(ExitCode.OK, message, changed=False, deployments=[]), message)
        return ExitCode.OK
    end = _End(ExitCode.OK, "would-change", f"{name} would be removed")
    if check:
        _, changes = plan_uninstall(names, manager)
    else:
        with stoppable(), locked(names.lock, timeout_s=lock_timeout):
            if read_operation(names) is not None:
                manager.reload()  # what is enabled, as it is after an operation that broke off
            _, changes = plan_uninstall(names, manager)
            end = _uninstall(names, changes, manager, purge=purge, restore_retired=restore_retired)
        with contextlib.suppress(OSError):
            RUN_ROOT.rmdir()  # the lock was the last in it
    if end.error is not None and not as_json:
        raise end.error
    told = [change.to_json() for change in changes.changes]
    obj = envelope(
        end.code,
        end.message,
        changed=changes.changed,
        check=check,
        deployments=[{"name": name, "generation": None, "result": end.result, "changes": told, "units": []}],
    )
    obj |= end.error.to_json() if end.error is not None else {}
    emit(as_json, obj, changes_text(name, changes, diff=False) if check else end.message)
    return end.code


def _installed(names: Names) -> bool:
    """Whether anything of it is there, or what all deployments share without any deployment."""
    there = manifest_path(names).exists() or operation_path(names).exists()
    shared_alone = not known_names() and shared_left(names)
    return there or shared_alone or read_index(names.deployment) is not None


@dataclass(frozen=True, slots=True)
class _End:
    """How it ended; `error` is what it broke off with."""

    code: ExitCode
    result: str
    message: str
    error: PdUnitsError | None = None


def _uninstall(
    names: Names, changes: ChangeSet, manager: Manager, *, purge: bool, restore_retired: bool
) -> _End:
    """Carry it out; how it ended. Raises: HostError 30 to 33 if nothing was changed."""
    try:
        uninstall(
            names,
            changes,
            manager,
            SystemClock(),
            lambda line: click.echo(line, err=True),
            purge=purge,
            restore_retired=restore_retired,
        )
    except KeyboardInterrupt as error:
        signal = deal_with(error)
        note_stopped(names, signal)
        begun = read_operation(names)
        todo = what_next(names.deployment, "uninstall", 0, begun.options if begun is not None else None)
        message = f"the uninstall was interrupted by {signal}: {todo}"
        return _End(ExitCode.INTERRUPTED, "interrupted", message)
    except PdUnitsError as error:
        if read_operation(names) is None:
            raise
        return _End(error.exit_code, "failed", error.brief, error)
    return _End(ExitCode.OK, "removed", f"{names.deployment} is removed")
