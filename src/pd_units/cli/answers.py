"""What install, rollback and restart answer when they did not come to their end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from pd_units.changes import ChangeSet
from pd_units.cli.output import emit, envelope
from pd_units.errors import ExitCode, PdUnitsError
from pd_units.generations import Generation
from pd_units.goal import Goal, Installed
from pd_units.index import read_index
from pd_units.manifest import Phase, read_operation, what_next
from pd_units.observe import observe
from pd_units.ports import Manager
from pd_units.waiting import DeploymentReport


def whole(command: Callable[..., int]) -> Callable[..., int]:
    """The verb, with every key of its answers in that of an error too: nothing was changed then."""

    @functools.wraps(command)
    def run(*, as_json: bool, **options: Any) -> int:
        try:
            return command(as_json=as_json, **options)
        except PdUnitsError as error:
            if not as_json:
                raise
            told = {"changed": False, "deployments": [], **error.to_json()}
            emit(True, envelope(error.exit_code, error.brief, **told), "")
            return error.exit_code

    return run


def broke_off(goal: Goal, error: PdUnitsError, manager: Manager) -> Installed:
    """The answer after an error: how far it came, and what it met."""
    begun = True
    with contextlib.suppress(PdUnitsError):
        begun = read_operation(goal.names) is not None
    return Installed(
        name=goal.index.name,
        generation=goal.index.generation,
        result="failed",
        changes=goal.changes if begun else ChangeSet(()),
        exit_code=error.exit_code,
        message=error.brief,
        report=_now(goal.index.name, manager),
        error=error,
    )


def interrupted(goal: Goal, signal: str, manager: Manager) -> Installed:
    """The answer after Ctrl-C, SIGTERM or SIGHUP: what goes on, and how to finish or undo it."""
    operation = read_operation(goal.names)
    kind, number = goal.kind, goal.index.generation
    if operation is not None and operation.kind == "rollback":
        kind, number = operation.kind, operation.generation  # a failed install has become a rollback
    todo = what_next(goal.index.name, kind, number)
    if operation is None:
        where = "nothing was changed"
    elif operation.phase is Phase.FILES:
        where = f"its files may not all be in place: {todo}"
    else:
        where = f"its units go on by themselves, and nobody waits for them: {todo}"
    return Installed(
        name=goal.index.name,
        generation=goal.index.generation,
        result="interrupted",
        changes=goal.changes if operation is not None else ChangeSet(()),
        exit_code=ExitCode.INTERRUPTED,
        message=f"the {kind} of generation {number} was interrupted by {signal}; {where}",
        report=_now(goal.index.name, manager),
    )


def not_again(failed: Generation) -> str:
    """Why an install of what failed before does nothing."""
    return (
        f"generation {failed.number} was the same and failed ({failed.message}): not tried again; "
        "change the deployment file, or --force tries it once more"
    )


def failed_before(goal: Goal, failed: Generation, manager: Manager) -> Installed:
    """The answer to an install of what failed before and was rolled back: it is not tried blindly again."""
    message = not_again(failed)
    story = {
        "generation": failed.number,
        "message": failed.message,
        "units": [dict(unit) for unit in failed.failed_units],
    }
    return Installed(
        name=goal.index.name,
        generation=goal.index.generation,
        result="failed-before",
        changes=ChangeSet(()),
        exit_code=ExitCode.UNIT_FAILED,
        message=message,
        report=_now(goal.index.name, manager),
        failed=story,
    )


def _now(name: str, manager: Manager) -> DeploymentReport | None:
    """The units of what is installed, as they are now. The router is not asked: it could take its time."""
    try:
        index = read_index(name)
        return DeploymentReport(index=index, units=observe(manager, index)) if index is not None else None
    except PdUnitsError:
        return None
