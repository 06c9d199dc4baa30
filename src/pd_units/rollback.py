"""Back to a generation that worked: its units as they were, written, started and waited for."""

from __future__ import annotations

from dataclasses import replace

from pd_units.changes import plan_changes
from pd_units.errors import ExitCode, HostError
from pd_units.generations import (
    Generation,
    last_good,
    read_generation,
    stored_index,
    stored_text,
    stored_units,
    write_outcome,
)
from pd_units.index import read_index
from pd_units.install import Goal, Installed, Installer, conclude, with_failed
from pd_units.installed import read_installed, refuse_foreign
from pd_units.manifest import read_operation
from pd_units.naming import Names
from pd_units.ports import Clock, Manager
from pd_units.render import shipped_units
from pd_units.schedule import drained_router


def stored_goal(names: Names, number: int, manager: Manager, *, adopt: bool = False) -> Goal:
    """A kept generation as a goal for the host as it is now. Raises: HostError 32."""
    rendered, shared = stored_units(names, number), shipped_units()
    state = read_installed(names, rendered, shared, (), manager)
    refuse_foreign(state, adopt=adopt)
    changes = drained_router(plan_changes(rendered, shared, state, start=True), rendered, state)
    return Goal(
        names=names,
        index=replace(stored_index(names, number), generation=number),
        text=stored_text(names, number),
        rendered=rendered,
        shared=shared,
        state=state,
        changes=changes,
        kind="rollback",
    )


def target_of(names: Names, number: int | None) -> Generation:
    """The generation to go back to: `number`, or the last good one before the current.

    Raises: HostError 32 if there is none.
    """
    if number is not None:
        generation = read_generation(names, number)
        if generation is None:
            stored_index(names, number)  # says what is missing
            raise HostError(f"generation {number} of {names.deployment} is damaged")
        return generation
    index, operation = read_index(names.deployment), read_operation(names)
    current = max(index.generation if index is not None else 0, operation.generation if operation else 0)
    good = last_good(names, other_than=current)
    if good is None:
        raise HostError(
            f"{names.deployment} has no good generation to go back to",
            detail=f"the current one is {current}; good is what became ready and stayed so",
            hint=f"pd-units history {names.deployment} shows them; --to N takes one all the same",
        )
    return good


def roll_back_failed(
    failed: Installed, goal: Goal, manager: Manager, installer: Installer, clock: Clock
) -> Installed:
    """Undo a failed install: 43 if the last good generation is ready again, 44 if not.

    Where there is no good one, the failed install stands as it is, for the operator to look at.
    """
    good = last_good(goal.names, other_than=failed.generation)
    if good is None:
        return failed
    try:
        back = stored_goal(goal.names, good.number, manager)
        outcome = installer.apply(back)
    except HostError as error:
        message = f"{failed.message}; and going back to generation {good.number} failed: {error.brief}"
        return with_failed(failed, exit_code=ExitCode.ROLLBACK_FAILED, message=message, failed=failed)
    write_outcome(goal.names, failed.generation, rolled_back=True)
    restored = conclude(back, outcome, clock)
    if outcome.exit_code:
        message = f"{failed.message}; and generation {good.number} did not become ready: {outcome.message}"
        return with_failed(restored, exit_code=ExitCode.ROLLBACK_FAILED, message=message, failed=failed)
    message = (
        f"generation {failed.generation} failed: {failed.message}; generation {good.number} is ready again"
    )
    return with_failed(restored, exit_code=ExitCode.ROLLED_BACK, message=message, failed=failed)


def known_to_fail(goal: Goal) -> Generation | None:
    """The generation of the same content that failed and was rolled back, if the last such one did."""
    from pd_units.generations import content_digest, read_generations

    content = content_digest(goal.rendered)
    same = [each for each in read_generations(goal.names) if each.content == content]
    return same[-1] if same and same[-1].rolled_back else None
