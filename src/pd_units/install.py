"""Runs a ChangeSet: files whole or not at all, one reload, units in their order, readiness waited for."""

from __future__ import annotations

import contextlib

from pd_units.adapters.signals import deal_with
from pd_units.changes import Kind
from pd_units.errors import ExitCode, HostError, PdUnitsError
from pd_units.generations import (
    Result,
    keep_judgements,
    prune,
    read_generation,
    write_failed_units,
    write_outcome,
)
from pd_units.goal import Goal, Installed
from pd_units.index import current_generation
from pd_units.manifest import end_operation, note_stopped, read_operation, what_next
from pd_units.observe import UnitState
from pd_units.placing import Guard, Placer
from pd_units.ports import Clock, Manager
from pd_units.schedule import schedule
from pd_units.steps import Say, Stepper
from pd_units.waiting import DeploymentReport, Outcome, Watcher


class Installer:
    """Applies the changes of one deployment to the host."""

    def __init__(
        self,
        manager: Manager,
        clock: Clock,
        say: Say,
        seen: Watcher,
        *,
        timeout_s: float | None = None,
        guard: Guard = lambda _goal: contextlib.nullcontext(),
    ) -> None:
        """`guard` is held while it is written down what a goal takes (claimed.alone_on_host)."""
        self._clock = clock
        self._placer = Placer(manager, clock, say, guard)
        self._stepper = Stepper(manager, clock, say, seen, timeout_s=timeout_s)

    def apply(self, goal: Goal, *, wait: bool = True) -> Outcome:
        """Make the changes, and with `wait` wait until the deployment is ready, or has failed.

        Raises: TemplateError 21, HostError 30 to 33; Stopped by a signal. The operation record then stays,
        for the next call, unless nothing was changed.
        """
        began = self._clock.wall()
        try:
            pending = read_operation(goal.names)
            lost = not current_generation(goal.names.deployment, goal.names.root)  # its index is written anew
            if goal.changes.changed or pending is not None or lost:
                under_way = goal.makes_generation or pending is not None
                with contextlib.suppress(HostError):  # a full disk is met, and told, below
                    keep_judgements(goal.names, but=goal.index.generation if under_way else 0)
                self._placer.place(goal)
            return self._run(goal, began, wait=wait)
        except PdUnitsError as error:
            if read_operation(goal.names) is None:
                raise
            raise _broke_off(goal, error) from error
        except KeyboardInterrupt as error:
            with contextlib.suppress(PdUnitsError):
                note_stopped(goal.names, deal_with(error))
            raise

    def _run(self, goal: Goal, began: float, *, wait: bool) -> Outcome:
        reasons = {change.unit: change.reason for change in goal.changes.of(Kind.START, Kind.RESTART)}
        steps = schedule(goal.changes, goal.rendered, goal.state, force=goal.force)
        outcome = self._stepper.run(goal.index, steps, reasons, wait=wait)
        self._placer.unretire(goal)
        if outcome.exit_code:
            return outcome
        if not wait:
            return Outcome(exit_code=ExitCode.OK, message="installed; not waited for readiness", reports=())
        return self._stepper.wait(goal.index, goal.changes.units(Kind.START, Kind.RESTART), began)


def conclude(
    goal: Goal, outcome: Outcome, clock: Clock, *, waited: bool = True, ends: bool = True
) -> Installed:
    """Record how an install ended, and with `ends` that the operation is over. Raises: HostError 32."""
    result = Result.INSTALLED
    if waited:
        result = {ExitCode.OK: Result.READY, ExitCode.NOT_READY: Result.NOT_READY}.get(
            outcome.exit_code, Result.FAILED
        )
    report = outcome.reports[0] if outcome.reports else None
    kept = read_generation(goal.names, goal.index.generation)
    known_good = kept is not None and kept.result is Result.READY
    if not known_good:
        _record(goal, outcome, result, report, at=clock.wall())
        if kept is not None and kept.rolled_back and result is Result.READY:
            write_outcome(goal.names, goal.index.generation, rolled_back=False)
    if ends:
        end_operation(goal.names)
        prune(goal.names, current=goal.index.generation)
    unchanged = not goal.changes.changed and result in (Result.READY, Result.INSTALLED)
    return Installed(
        name=goal.index.name,
        generation=goal.index.generation,
        result="unchanged" if unchanged else str(result),
        changes=goal.changes,
        exit_code=outcome.exit_code,
        message=outcome.message,
        report=report,
    )


def _record(
    goal: Goal, outcome: Outcome, result: Result, report: DeploymentReport | None, *, at: float
) -> None:
    """Keep the outcome with its generation. Raises: HostError 32, which tells the outcome too."""
    units = report.to_json()["units"] if report is not None and outcome.exit_code else []
    try:
        failed = [unit for unit in units if unit["cause"] != "none"]
        write_failed_units(goal.names, goal.index.generation, failed)
        write_outcome(
            goal.names,
            goal.index.generation,
            result=str(result),
            ended=at,
            message=outcome.message,
            seconds_to_ready=_seconds(report),
        )
    except HostError as error:
        raise HostError(
            f"generation {goal.index.generation} of {goal.index.name} is in place ({outcome.message}), "
            "but that could not be recorded",
            detail=f"{error.brief}: {error.detail}",
            hint=f"{error.hint}; then `pd-units install {goal.index.name}` records it",
        ) from error


def _seconds(report: DeploymentReport | None) -> float | None:
    if report is None or report.state is not UnitState.READY:
        return None
    return max((unit.seconds_to_ready or 0.0 for unit in report.units), default=None)


def _broke_off(goal: Goal, error: PdUnitsError) -> PdUnitsError:
    """The error of a change that broke off, with where it stands."""
    todo = what_next(goal.names.deployment, goal.kind, goal.index.generation)
    undone = f"the {goal.kind} of {goal.index.name} is unfinished: {todo}"
    kind = type(error)
    return kind(
        error.brief,
        detail=error.detail,
        hint=f"{error.hint}; {undone}" if error.hint else undone,
        faults=error.faults,
        exit_code=error.exit_code,
    )
