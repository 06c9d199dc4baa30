"""Back to a generation that worked: its units as they were, written, started and waited for."""

from __future__ import annotations

from dataclasses import replace

from pd_units.changes import ChangeSet, plan_changes
from pd_units.claimed import require_free, retired_by
from pd_units.errors import ExitCode, HostError, PdUnitsError
from pd_units.generations import (
    Generation,
    Result,
    content_digest,
    last_good,
    read_generation,
    read_generations,
    stored_index,
    stored_text,
    stored_units,
    write_outcome,
)
from pd_units.goal import Goal, Installed, index_at_work, with_failed
from pd_units.index import Index, current_generation
from pd_units.install import Installer, conclude
from pd_units.installed import read_installed, refuse_foreign
from pd_units.manifest import Operation, begin_operation, read_operation
from pd_units.naming import Names
from pd_units.placing import require_safe
from pd_units.ports import Clock, Manager
from pd_units.received import fragment_digest
from pd_units.rendered import RenderedUnit
from pd_units.schedule import drained_router, exchanged
from pd_units.shared import shared_units

_ANOTHER = "go back to another generation (--to N), or move or uninstall the other deployment"


def stored_goal(
    names: Names,
    number: int,
    manager: Manager,
    *,
    kind: str = "rollback",
    adopt: bool = False,
    force: bool = False,
) -> Goal:
    """A kept generation as a goal for the host as it is now.

    Raises: HostError 32; DeploymentError 12 where a rollback would take what belongs to another deployment.
    """
    require_safe(names)
    text, back = stored_text(names, number), kind == "rollback"
    if back:
        require_free(names, stored_index(names, number), text, hint=_ANOTHER)
    rendered, shared = stored_units(names, number), shared_units()
    state = read_installed(names, rendered, shared, retired_by(names, text), manager, adopt=adopt)
    index = _index(names, number, rendered)
    state = replace(state, exchanged=exchanged(index_at_work(names, index), index))
    refuse_foreign(state, adopt=adopt)
    changes: ChangeSet = plan_changes(rendered, shared, state, start=True)
    if not force:
        changes = drained_router(changes, rendered, state)
    return Goal(
        names=names,
        index=index,
        text=text,
        rendered=rendered,
        shared=shared,
        state=state,
        changes=changes,
        kind=kind,
        force=force,
        leaves=_leaves(names, number) if back else (),
    )


def _leaves(names: Names, number: int) -> tuple[int, ...]:
    """What a rollback to `number` goes away from: what is installed, and what was being installed."""
    operation = read_operation(names)
    begun = operation.generation if operation is not None else 0
    return tuple(each for each in {current_generation(names.deployment, names.root), begun} if each > number)


def _index(names: Names, number: int, rendered: tuple[RenderedUnit, ...]) -> Index:
    index = stored_index(names, number)
    fragments = {unit.name: fragment_digest(unit.text) for unit in rendered}
    units = tuple(replace(unit, fragment=fragments[unit.unit]) for unit in index.units)
    return replace(index, generation=number, units=units)


def target_of(names: Names, number: int | None) -> Generation:
    """The generation to go back to: `number`, or the last good one before the current.

    After a rollback that was interrupted, it is that one's. Raises: HostError 32 if there is none.
    """
    operation = read_operation(names)
    if number is None and operation is not None and operation.kind == "rollback":
        number = operation.generation
    if number is not None:
        generation = read_generation(names, number)
        if generation is None:
            stored_index(names, number)  # says what is missing
            raise HostError(f"generation {number} of {names.deployment} is damaged")
        return generation
    current = current_generation(names.deployment, names.root)
    if operation is not None:
        current = max(current, operation.generation)
    good = last_good(names, other_than=current)
    if good is None:
        raise HostError(
            f"{names.deployment} has no good generation to go back to",
            detail=f"the current one is {current}; good is what became ready and stayed so, and was neither "
            "gone back from nor uninstalled since",
            hint=f"pd-units history {names.deployment} shows them; --to N takes one all the same",
        )
    return good


def way_back(goal: Goal, outcome_code: ExitCode) -> Generation | None:
    """The generation that a failed install is to be undone to, None if it is to stand.

    What had been ready before in the same form is not undone: going further back would not repair the host.
    """
    if not outcome_code or goal.kind != "install":
        return None
    kept = read_generation(goal.names, goal.index.generation)
    if kept is not None and kept.result is Result.READY:
        return None
    good = last_good(goal.names, other_than=goal.index.generation)
    if good is not None and good.content == content_digest(goal.rendered):
        return None  # an earlier install of the very same units: there is nothing to go back to
    return good


def roll_back_failed(
    failed: Installed, good: Generation, names: Names, manager: Manager, installer: Installer, clock: Clock
) -> Installed:
    """Undo a failed install: 43 if the generation `good` is ready again, 44 if not.

    The operation is a rollback from its first step on: where it breaks off, the next call goes on with it.
    """
    try:
        _begin(names, good.number, clock)
        write_outcome(names, failed.generation, rolled_back=True)
        restored = _restore(names, good.number, manager, installer, clock)
    except PdUnitsError as error:
        message = f"{failed.message}; and going back to generation {good.number} failed: {_why(error)}"
        return with_failed(failed, exit_code=ExitCode.ROLLBACK_FAILED, message=message, failed=failed)
    if restored.exit_code:
        message = f"{failed.message}; and generation {good.number} did not become ready: {restored.message}"
        return with_failed(restored, exit_code=ExitCode.ROLLBACK_FAILED, message=message, failed=failed)
    message = (
        f"generation {failed.generation} failed: {failed.message}; generation {good.number} is ready again"
    )
    return with_failed(restored, exit_code=ExitCode.ROLLED_BACK, message=message, failed=failed)


def finish_rollback(
    known: Installed, number: int, names: Names, manager: Manager, installer: Installer, clock: Clock
) -> Installed:
    """Go on with the rollback to generation `number` of what is `known` to fail: `known`'s answer, or 44."""
    try:
        _begin(names, number, clock)
        restored = _restore(names, number, manager, installer, clock)
    except PdUnitsError as error:
        message = f"{known.message}; and going back to generation {number} failed: {_why(error)}"
        code, result = ExitCode.ROLLBACK_FAILED, "rollback-failed"
        return replace(known, exit_code=code, result=result, message=message)
    code, result, message = known.exit_code, known.result, known.message
    if restored.exit_code:
        code, result = ExitCode.ROLLBACK_FAILED, "rollback-failed"
        message = f"{message}; and generation {number} did not become ready: {restored.message}"
    return replace(restored, exit_code=code, result=result, message=message, failed=known.failed)


def _begin(names: Names, number: int, clock: Clock) -> None:
    """Record that what is under way is a rollback to generation `number`. Raises: HostError 32."""
    fresh = Operation(kind="rollback", generation=number, began=clock.wall())
    pending = read_operation(names)
    if pending is not None:
        fresh = replace(fresh, restart=pending.restart, digests=pending.digests, index=pending.index)
    begin_operation(names, fresh)


def _restore(names: Names, number: int, manager: Manager, installer: Installer, clock: Clock) -> Installed:
    back = stored_goal(names, number, manager)
    return conclude(back, installer.apply(back), clock)


def _why(error: PdUnitsError) -> str:
    faults = "; ".join(str(fault) for fault in error.faults)
    return ": ".join(part for part in (error.brief, faults, error.detail) if part)


def unfinished_rollback(names: Names, failed: Generation) -> int | None:
    """The generation that a rollback from `failed` was on its way to when it broke off, None if none was."""
    operation = read_operation(names)
    if operation is None or operation.kind not in ("install", "rollback"):
        return None
    if operation.kind == "rollback":
        return operation.generation
    good = last_good(names, other_than=failed.number) if operation.generation == failed.number else None
    return good.number if good is not None else None


def known_to_fail(goal: Goal) -> Generation | None:
    """The generation of the same content that failed and was rolled back, if the last such one did."""
    content = content_digest(goal.rendered)
    same = [each for each in read_generations(goal.names) if each.content == content]
    return same[-1] if same and same[-1].rolled_back else None
