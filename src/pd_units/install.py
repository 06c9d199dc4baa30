"""Runs a ChangeSet: files whole or not at all, one reload, units in dependency order, readiness waited for.

The operation record is written before the first change and removed after the last, so that the next call can
tell what an interrupted one left undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pd_units.adapters.files import remove, write_atomic
from pd_units.changes import ChangeSet, Kind
from pd_units.errors import ExitCode, HostError, PdUnitsError
from pd_units.generations import next_number, numbers, write_generation, write_outcome
from pd_units.index import Index, index_of, write_index
from pd_units.manifest import (
    SHARED_MANIFEST,
    Operation,
    begin_operation,
    digest,
    end_operation,
    manifest_path,
    read_manifest,
    write_manifest,
)
from pd_units.naming import UNIT_DIR, Names
from pd_units.observe import UnitReport, UnitState
from pd_units.ports import ActiveState, Clock, Manager
from pd_units.prepare import Prepared
from pd_units.verdicts import EndOfLife, read_last_end
from pd_units.waiting import DeploymentReport, Outcome, Watcher, wait_until_ready

STOP_TIMEOUT_S = 900.0
# The router's own start, after its backends: its worker check, and the first generation.
ROUTER_S = 180.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What came of an install."""

    name: str
    generation: int
    result: str
    changes: ChangeSet
    exit_code: ExitCode
    message: str
    report: DeploymentReport | None = None

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        return self.changes.changed

    def to_json(self) -> dict[str, Any]:
        """The contract's object."""
        units = self.report.to_json()["units"] if self.report is not None else []
        return {
            "name": self.name,
            "generation": self.generation,
            "result": self.result,
            "changes": [change.to_json() for change in self.changes.changes],
            "units": units,
        }


class Installer:
    """Applies the changes of one deployment to the host."""

    def __init__(self, manager: Manager, clock: Clock, say: Say) -> None:
        self._manager, self._clock, self._say = manager, clock, say

    def apply(self, prepared: Prepared) -> Index:
        """Make the changes, without waiting for readiness; the new index.

        Raises: HostError 30, 31, 32; the operation record then stays, for the next call.
        """
        names, changes = prepared.names, prepared.changes
        number = self._generation(prepared)
        index = index_of(prepared.plan, generation=number)
        if not changes.changed:
            return index
        digests = {unit.name: digest(unit.text) for unit in prepared.rendered}
        restart = {unit: _invocation(prepared, unit) for unit in changes.units(Kind.RESTART)}
        begin_operation(
            names,
            Operation(
                kind="install", generation=number, began=self._clock.wall(), restart=restart, digests=digests
            ),
        )
        self._retire(changes)
        self._settle(prepared)
        self._place(prepared, digests)
        write_index(index)
        self._enable(changes)
        if changes.of(Kind.RELOAD):
            self._manager.reload()
        self._start(prepared)
        return index

    def _generation(self, prepared: Prepared) -> int:
        names, changes = prepared.names, prepared.changes
        if not changes.of(Kind.WRITE, Kind.REMOVE) and numbers(names):
            return numbers(names)[-1]
        number = next_number(names)
        if changes.changed:
            write_generation(names, number, prepared.source.text, prepared.rendered, wall=self._clock.wall())
        return number

    def _retire(self, changes: ChangeSet) -> None:
        for unit in changes.units(Kind.RETIRE):
            self._say(f"retiring {unit}")
            stop_unit(self._manager, self._clock, unit)
            self._manager.disable([unit])

    def _settle(self, prepared: Prepared) -> None:
        """Stop what is removed, and what fails or waits for an automatic restart: that would run the new
        file by itself, halfway through."""
        changes = prepared.changes
        for unit in changes.units(Kind.STOP):
            stop_unit(self._manager, self._clock, unit)
        written = set(changes.units(Kind.WRITE))
        for name, installed in prepared.state.units.items():
            status = installed.status
            if name in written and status is not None and status.sub_state.startswith("auto-restart"):
                stop_unit(self._manager, self._clock, name)
        if changes.units(Kind.DISABLE):
            self._manager.disable(list(changes.units(Kind.DISABLE)))

    def _place(self, prepared: Prepared, digests: dict[str, str]) -> None:
        names, changes = prepared.names, prepared.changes
        shared = {unit.name: unit for unit in prepared.shared}
        texts = {unit.name: unit.text for unit in (*prepared.rendered, *prepared.shared)}
        for unit in changes.units(Kind.WRITE):
            self._say(f"writing {UNIT_DIR / unit}")
            write_atomic(UNIT_DIR / unit, texts[unit])
        for unit in changes.units(Kind.REMOVE):
            remove(UNIT_DIR / unit)
        common = read_manifest(SHARED_MANIFEST) | {name: digest(unit.text) for name, unit in shared.items()}
        write_manifest(SHARED_MANIFEST, common)
        write_manifest(manifest_path(names), digests)
        write_atomic(names.state_dir / "deployment.toml", prepared.source.text, mode=0o600)

    def _enable(self, changes: ChangeSet) -> None:
        units = list(changes.units(Kind.ENABLE))
        if units:
            self._manager.enable(units)

    def _start(self, prepared: Prepared) -> None:
        """Queue every start at once: systemd orders the router after its backends, and its gate waits."""
        order = [unit.name for unit in prepared.rendered]
        for change in prepared.changes.of(Kind.START, Kind.RESTART):
            if change.unit in order:
                self._manager.reset_failed(change.unit)
        for change in prepared.changes.of(Kind.START, Kind.RESTART):
            self._say(f"{change.kind}ing {change.unit}: {change.reason}")
            if change.kind is Kind.RESTART:
                self._manager.restart(change.unit)
            else:
                self._manager.start(change.unit)


def _invocation(prepared: Prepared, unit: str) -> str:
    status = prepared.state.units[unit].status
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


def wait_for(
    prepared: Prepared,
    index: Index,
    manager: Manager,
    clock: Clock,
    seen: Watcher,
    *,
    timeout_s: float | None,
    since_wall: float,
) -> Outcome:
    """Wait until the deployment is ready, up to its first failed start."""
    started = prepared.changes.units(Kind.START, Kind.RESTART)
    failing = FirstFailure(prepared.names, started, since_wall)
    total_s = timeout_s if timeout_s is not None else 2 * index.timeout_s + ROUTER_S
    return wait_until_ready(
        manager, [index], timeout_s=total_s, clock=clock, seen=seen, failing=failing, end_of=failing.end
    )


def conclude(prepared: Prepared, index: Index, outcome: Outcome, clock: Clock) -> Installed:
    """Record how the install ended, and end the operation."""
    result = {ExitCode.OK: "ready", ExitCode.NOT_READY: "not-ready"}.get(outcome.exit_code, "failed")
    changed = prepared.changes.changed
    if changed:
        write_outcome(
            prepared.names,
            index.generation,
            {"result": result, "ended": clock.wall(), "message": outcome.message},
        )
    end_operation(prepared.names)
    return Installed(
        name=index.name,
        generation=index.generation,
        result=result if changed or result != "ready" else "unchanged",
        changes=prepared.changes,
        exit_code=outcome.exit_code,
        message=outcome.message,
        report=outcome.reports[0] if outcome.reports else None,
    )


def left_undone(prepared: Prepared, error: PdUnitsError) -> HostError:
    """The error of an install that broke off, with where it stands."""
    return HostError(
        error.brief,
        detail=error.detail,
        hint=(error.hint + "; " if error.hint else "")
        + f"the install of {prepared.names.deployment} broke off: run it again, it finishes what is left",
        faults=error.faults,
        exit_code=error.exit_code,
    )
