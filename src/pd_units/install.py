"""Runs a ChangeSet: files whole or not at all, one reload, units in dependency order, readiness waited for.

The operation record is written before the first change and removed after the last, so that the next call can
tell what an interrupted one left undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pd_units.adapters.files import read_json, remove, write_atomic, write_json
from pd_units.changes import ChangeSet, InstalledState, Kind
from pd_units.errors import ExitCode, HostError, PdUnitsError
from pd_units.generations import (
    Result,
    content_digest,
    numbers,
    prune,
    read_generation,
    write_generation,
    write_outcome,
)
from pd_units.index import Index, write_index
from pd_units.manifest import (
    Operation,
    begin_operation,
    digest,
    end_operation,
    manifest_path,
    read_manifest,
    read_operation,
    write_manifest,
)
from pd_units.naming import Names
from pd_units.observe import UnitReport, UnitState
from pd_units.ports import ActiveState, Clock, Manager
from pd_units.render import RenderedUnit
from pd_units.schedule import Do, Step, schedule
from pd_units.verdicts import EndOfLife, read_last_end
from pd_units.waiting import DeploymentReport, Outcome, Watcher, wait_until_ready

STOP_TIMEOUT_S = 900.0
# The router's own start, after its backends: its worker check, and the first generation.
ROUTER_S = 180.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is to be on the host, the host as it is, and the changes between the two."""

    names: Names
    index: Index
    text: str
    rendered: tuple[RenderedUnit, ...]
    shared: tuple[RenderedUnit, ...]
    state: InstalledState
    changes: ChangeSet
    kind: str = "install"
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What came of an install or a rollback. `failed` is the generation that was rolled back."""

    name: str
    generation: int
    result: str
    changes: ChangeSet
    exit_code: ExitCode
    message: str
    report: DeploymentReport | None = None
    failed: Mapping[str, Any] | None = None

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        return self.changes.changed

    def to_json(self) -> dict[str, Any]:
        """The contract's object."""
        units = self.report.to_json()["units"] if self.report is not None else []
        value: dict[str, Any] = {
            "name": self.name,
            "generation": self.generation,
            "result": self.result,
            "changes": [change.to_json() for change in self.changes.changes],
            "units": units,
        }
        if self.failed is not None:
            value["failed"] = dict(self.failed)
        return value


def next_number(names: Names, rendered: Sequence[RenderedUnit], changes: ChangeSet, current: int) -> int:
    """The generation that an install would be.

    A new number where files change; the interrupted install's own where it is finished; else the current one.
    """
    operation = read_operation(names)
    if operation is not None and operation.generation:
        begun = read_generation(names, operation.generation)
        if begun is not None and begun.content == content_digest(rendered):
            return operation.generation
    if current and not changes.of(Kind.WRITE, Kind.REMOVE):
        return current
    return max((*numbers(names), current), default=0) + 1


class Installer:
    """Applies the changes of one deployment to the host."""

    def __init__(
        self, manager: Manager, clock: Clock, say: Say, seen: Watcher, *, timeout_s: float | None = None
    ) -> None:
        self._manager, self._clock, self._say, self._seen = manager, clock, say, seen
        self._timeout_s = timeout_s

    def apply(self, goal: Goal, *, wait: bool = True) -> Outcome:
        """Make the changes, and with `wait` wait until the deployment is ready, or has failed.

        Raises: HostError 30, 31, 32; the operation record then stays, for the next call.
        """
        began = self._clock.wall()
        try:
            if goal.changes.changed:
                self._place_all(goal)
            return self._run(goal, began, wait=wait)
        except PdUnitsError as error:
            raise _broke_off(goal, error) from error

    def _place_all(self, goal: Goal) -> None:
        names, changes = goal.names, goal.changes
        number = goal.index.generation
        if goal.kind == "install" and changes.of(Kind.WRITE, Kind.REMOVE):
            reasons = [f"{c.kind} {c.unit}: {c.reason}" for c in changes.changes if c.kind is not Kind.KEEP]
            write_generation(names, goal.index, goal.text, goal.rendered, reasons, wall=self._clock.wall())
        digests = {unit.name: digest(unit.text) for unit in goal.rendered}
        restart = {unit: _invocation(goal, unit) for unit in changes.units(Kind.RESTART)}
        pending = read_operation(names)
        if pending is not None:
            restart = {**dict(pending.restart), **restart}
        operation = Operation(
            kind=goal.kind, generation=number, began=self._clock.wall(), restart=restart, digests=digests
        )
        begin_operation(names, operation)
        self._retire(goal)
        self._settle(goal)
        self._place(goal, digests)
        write_index(names, goal.index)
        if changes.units(Kind.ENABLE):
            self._manager.enable(list(changes.units(Kind.ENABLE)))
        if changes.of(Kind.RELOAD):
            self._manager.reload()

    def _retire(self, goal: Goal) -> None:
        units = goal.changes.units(Kind.RETIRE)
        if not units:
            return
        path = retired_path(goal.names)
        before = read_json(path) or {}
        for unit in units:
            status = goal.state.retired[unit]
            before[unit] = {
                "active": status.active_state is ActiveState.ACTIVE,
                "enabled": status.unit_file_state == "enabled",
            }
        write_json(path, before)
        for unit in units:
            self._say(f"retiring {unit}")
            stop_unit(self._manager, self._clock, unit)
            self._manager.disable([unit])

    def _settle(self, goal: Goal) -> None:
        """Stop what is removed, and what fails or waits for an automatic restart: that would run the new
        file by itself, halfway through."""
        changes = goal.changes
        for unit in changes.units(Kind.STOP):
            stop_unit(self._manager, self._clock, unit)
        written = set(changes.units(Kind.WRITE))
        for name, installed in goal.state.units.items():
            status = installed.status
            if name in written and status is not None and status.sub_state.startswith("auto-restart"):
                stop_unit(self._manager, self._clock, name)
        if changes.units(Kind.DISABLE):
            self._manager.disable(list(changes.units(Kind.DISABLE)))

    def _place(self, goal: Goal, digests: Mapping[str, str]) -> None:
        names, changes = goal.names, goal.changes
        texts = {unit.name: unit.text for unit in (*goal.rendered, *goal.shared)}
        for unit in changes.units(Kind.WRITE):
            self._say(f"writing {names.unit_dir / unit}")
            write_atomic(names.unit_dir / unit, texts[unit])
        for unit in changes.units(Kind.REMOVE):
            self._say(f"removing {names.unit_dir / unit}")
            remove(names.unit_dir / unit)
        common = {unit.name: digest(unit.text) for unit in goal.shared}
        write_manifest(names.shared_manifest, {**read_manifest(names.shared_manifest), **common})
        write_manifest(manifest_path(names), digests)
        write_atomic(names.state_dir / "deployment.toml", goal.text, mode=0o600)

    def _run(self, goal: Goal, began: float, *, wait: bool) -> Outcome:
        """Take the steps; the outcome of the last wait, or of the first that did not end well."""
        for unit in goal.changes.units(Kind.START, Kind.RESTART):
            self._manager.reset_failed(unit)
        reasons = {change.unit: change.reason for change in goal.changes.of(Kind.START, Kind.RESTART)}
        for step in schedule(goal.changes, goal.rendered, goal.state, force=goal.force):
            self._take(step, reasons)
            if step.wait and wait:
                outcome = self._wait(goal, began, only=step.units)
                if outcome.exit_code:
                    return outcome
        if not wait:
            return Outcome(exit_code=ExitCode.OK, message="installed; not waited for readiness", reports=())
        return self._wait(goal, began)

    def _take(self, step: Step, reasons: Mapping[str, str]) -> None:
        for unit in step.units:
            if step.do is Do.STOP:
                self._say(f"stopping {unit}: {reasons.get(unit, '')}")
                stop_unit(self._manager, self._clock, unit)
            elif step.do is Do.RESTART:
                self._say(f"restarting {unit}: {reasons.get(unit, '')}")
                self._manager.restart(unit)
            else:
                self._say(f"starting {unit}: {reasons.get(unit, '')}")
                self._manager.start(unit)

    def _wait(self, goal: Goal, began: float, *, only: Sequence[str] = ()) -> Outcome:
        started = goal.changes.units(Kind.START, Kind.RESTART)
        failing = FirstFailure(goal.names, only or started, began)
        total_s = self._timeout_s if self._timeout_s is not None else 2 * goal.index.timeout_s + ROUTER_S
        return wait_until_ready(
            self._manager,
            [goal.index],
            timeout_s=total_s,
            clock=self._clock,
            seen=self._seen,
            selected=(lambda unit: unit.unit in only) if only else (lambda _unit: True),
            failing=failing,
            end_of=failing.end,
        )


def retired_path(names: Names) -> Path:
    """Where it is kept what was retired, and how it was before."""
    return names.state_dir / "retired.json"


def _invocation(goal: Goal, unit: str) -> str:
    status = goal.state.units[unit].status
    return status.invocation_id if status is not None else ""


def stop_unit(manager: Manager, clock: Clock, unit: str) -> None:
    """Stop a unit and wait until it is down. Raises: HostError 33 if it does not stop."""
    manager.watch([unit])
    if not manager.unit(unit).exists:
        return
    manager.stop(unit)
    deadline = clock.monotonic() + STOP_TIMEOUT_S
    while True:
        status = manager.unit(unit)
        if status.active_state in (ActiveState.INACTIVE, ActiveState.FAILED) and not status.job_id:
            break
        if clock.monotonic() > deadline:
            raise HostError(
                f"{unit} does not stop",
                detail=f"still {status.active_state} after {STOP_TIMEOUT_S:g} s",
                hint=f"systemctl kill --signal=SIGKILL {unit}",
                exit_code=ExitCode.JOB_WITHOUT_RUN,
            )
        manager.pump(0.5)
    if status.active_state is ActiveState.FAILED:
        manager.reset_failed(unit)  # an engine that ends its drain by SIGKILL leaves `failed` behind


class FirstFailure:
    """Tells the first failed start of a unit that was started here, also when its restart goes on."""

    def __init__(self, names: Names, started: Sequence[str], since_wall: float) -> None:
        self._names, self._started, self._since = names, frozenset(started), since_wall

    def __call__(self, unit: UnitReport) -> bool:
        """Whether this unit's start has failed."""
        if unit.unit not in self._started:
            return unit.failed_for_good
        if unit.status.active_state is ActiveState.DEACTIVATING:
            return False  # its end is being recorded: the cause is known after that
        restarted = unit.status.n_restarts > 0 or unit.state is UnitState.RESTARTING
        return restarted or unit.failed_for_good

    def end(self, unit: UnitReport) -> EndOfLife | None:
        """How the failed life ended, also if the next one has begun."""
        if unit.end is not None:
            return unit.end
        last = read_last_end(self._names, unit.unit)
        return last if last is not None and last.ended >= self._since else None


def conclude(goal: Goal, outcome: Outcome, clock: Clock, *, waited: bool = True) -> Installed:
    """Record how an install ended, and end the operation."""
    result = Result.INSTALLED
    if waited:
        result = {ExitCode.OK: Result.READY, ExitCode.NOT_READY: Result.NOT_READY}.get(
            outcome.exit_code, Result.FAILED
        )
    report = outcome.reports[0] if outcome.reports else None
    kept = read_generation(goal.names, goal.index.generation)
    known_good = kept is not None and kept.result is Result.READY
    if (goal.changes.changed and goal.kind == "install") or not known_good:
        units = report.to_json()["units"] if report is not None and outcome.exit_code else []
        write_outcome(
            goal.names,
            goal.index.generation,
            result=str(result),
            ended=clock.wall(),
            message=outcome.message,
            seconds_to_ready=_seconds(report),
            failed_units=[unit for unit in units if unit["cause"] != "none"],
        )
    end_operation(goal.names)
    prune(goal.names, keep=(goal.index.generation,))
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


def _seconds(report: DeploymentReport | None) -> float | None:
    if report is None or report.state is not UnitState.READY:
        return None
    return max((unit.seconds_to_ready or 0.0 for unit in report.units), default=None)


def _broke_off(goal: Goal, error: PdUnitsError) -> HostError:
    """The error of a change that broke off, with where it stands."""
    undone = f"the {goal.kind} of {goal.index.name} broke off: `pd-units install` finishes what is left"
    return HostError(
        error.brief,
        detail=error.detail,
        hint=f"{error.hint}; {undone}" if error.hint else undone,
        faults=error.faults,
        exit_code=error.exit_code,
    )


def with_failed(installed: Installed, *, exit_code: ExitCode, message: str, failed: Installed) -> Installed:
    """The story of a rollback: what is restored, beside what had failed."""
    units = failed.report.to_json()["units"] if failed.report is not None else []
    story = {"generation": failed.generation, "message": failed.message, "units": units}
    return replace(
        installed,
        exit_code=exit_code,
        message=message,
        changes=failed.changes,
        failed=story,
        result="rolled-back" if exit_code is ExitCode.ROLLED_BACK else "rollback-failed",
    )
