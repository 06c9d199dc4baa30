"""Waits until deployments are ready, and says what goes on meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pd_units.adapters.http import Answer, Request, fetch
from pd_units.adapters.identity import process_identity
from pd_units.errors import ExitCode, PdUnitsError
from pd_units.execstart import exec_start
from pd_units.index import Index, IndexUnit, read_index
from pd_units.manifest import Operation, operation_words, read_operation
from pd_units.naming import RECOVER, Role, stem
from pd_units.observe import RouterView, UnitReport, UnitState, is_backend, observe_unit, summary
from pd_units.ports import ActiveState, Clock, Manager
from pd_units.router_api import SMOKE_BODY, SMOKE_TIMEOUT_S, generated, missing_workers, smoke_headers
from pd_units.verdicts import EndOfLife

_LOOK_S = 0.5
_SMOKE_LOOK_S = 0.3
# After a first failure, others that are ending just then are given this long to say why.
_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentReport:
    """A deployment, as it is now."""

    index: Index
    units: tuple[UnitReport, ...]
    router: RouterView | None = None
    operation: Operation | None = None

    @property
    def interrupted(self) -> str:
        """What there is to say of an operation that is at work on it, or was interrupted."""
        return operation_words(self.index.name, self.operation) if self.operation is not None else ""

    @property
    def state(self) -> UnitState:
        """Ready only if all of its units are, all of one generation, and the router says so now."""
        state = summary(self.units)
        if state is UnitState.READY and any(unit.outdated for unit in self.units):
            return UnitState.STARTING
        if state is UnitState.READY and self.router is not None and not self.router.ready:
            return UnitState.STARTING
        return state

    def to_json(self) -> dict[str, Any]:
        """The contract's object of `status` and `wait-ready`."""
        return {
            "name": self.index.name,
            "state": str(self.state),
            "generation": self.index.generation,
            "units": [self._unit(unit) for unit in self.units],
            "router": self.router.to_json() if self.router is not None else None,
            **self._operation(),
        }

    def _operation(self) -> dict[str, Any]:
        operation = self.operation
        if operation is None:
            return {"operation": None, "interrupted": None}
        return {
            "operation": {
                "kind": operation.kind,
                "generation": operation.generation,
                "at_work": operation.at_work,
            },
            "interrupted": None if operation.at_work else self.interrupted,
        }

    def _unit(self, unit: UnitReport) -> dict[str, Any]:
        value = unit.to_json()
        if self.router is not None and unit.declared.role is Role.ROUTER and unit.state is UnitState.READY:
            value["state"] = str(UnitState.READY if self.router.ready else UnitState.STARTING)
            value["detail"] = self.router.detail or value["detail"]
        return value


def with_operation(report: DeploymentReport) -> DeploymentReport:
    """The report, with what is at work on its deployment or was interrupted. Raises: HostError 32."""
    return replace(report, operation=read_operation(report.index.names))


class SmokeTests:
    """The generations sent through routers during one call of a verb, and what came back.

    A generation can take two minutes; `ask` does not block for longer than it is told, so that whoever waits
    for it can say so meanwhile.
    """

    def __init__(self) -> None:
        self._passed: dict[str, dict[str, str]] = {}
        self._asked: dict[str, tuple[dict[str, str], Request]] = {}

    def passed(self, router: str, invocations: dict[str, str]) -> bool:
        """Whether a generation of ours went through these invocations."""
        return self._passed.get(router) == invocations

    def ask(
        self,
        router: IndexUnit,
        headers: Mapping[str, str],
        invocations: dict[str, str],
        *,
        wait_s: float,
    ) -> Answer | None:
        """What came back through these invocations; None if nothing did within `wait_s`: ask again later."""
        asked_of, request = self._asked.get(router.unit, (None, None))
        if request is None or asked_of != invocations:
            url = f"{router.url}/generate"
            request = Request(url, "POST", SMOKE_BODY, headers, timeout_s=SMOKE_TIMEOUT_S).start()
            self._asked[router.unit] = (invocations, request)
        answer = request.wait(wait_s)
        if answer is None:
            return None
        del self._asked[router.unit]
        if generated(answer):
            self._passed[router.unit] = invocations
        return answer


def observe_deployment(
    manager: Manager, index: Index, smoke: SmokeTests, *, smoke_wait_s: float = SMOKE_TIMEOUT_S
) -> DeploymentReport:
    """A deployment as it is now. Asks the router, and sends one generation if its backends are new to it.

    Waits for that generation for at most `smoke_wait_s`.
    """
    units = tuple(observe_unit(manager, index, declared) for declared in index.units)
    router = None
    if index.router is not None:
        report = next(unit for unit in units if unit.unit == index.router.unit)
        router = _router_view(index, index.router, report, units, smoke, smoke_wait_s)
    return DeploymentReport(index=index, units=units, router=router)


def _router_view(
    index: Index,
    declared: IndexUnit,
    report: UnitReport,
    units: Sequence[UnitReport],
    smoke: SmokeTests,
    smoke_wait_s: float,
) -> RouterView:
    if report.state is not UnitState.READY:
        return RouterView(
            unit=declared.unit, ready=False, asked=False, detail=f"the router is {report.state}"
        )
    headers = smoke_headers(exec_start(index.names, declared.unit))
    answer = fetch(f"{declared.url}/readiness", headers=headers, timeout_s=5.0)
    counts = answer.json() if isinstance(answer.json(), dict) else {}
    if answer.status != 200:
        why = answer.error or str(counts.get("reason") or answer.status)
        return RouterView(
            unit=declared.unit,
            ready=False,
            workers=counts,
            detail=f"/readiness: {why}",
            missing=tuple(backend.url for backend in index.backends),
        )
    workers = fetch(f"{declared.url}/workers", headers=headers, timeout_s=5.0).json()
    missing = missing_workers(workers, (backend.url for backend in index.backends))
    if missing:
        detail = f"not healthy for the router: {', '.join(missing)}"
        return RouterView(
            unit=declared.unit, ready=False, workers=counts, detail=detail, missing=tuple(missing)
        )
    lost = [unit.unit for unit in units if is_backend(unit) and unit.state is not UnitState.READY]
    if lost or not index.smoke_test:
        detail = f"waits for {', '.join(stem(u) for u in lost)}" if lost else ""
        return RouterView(unit=declared.unit, ready=not lost, workers=counts, smoke="off", detail=detail)
    invocations = {unit.unit: unit.status.invocation_id for unit in units if is_backend(unit)}
    if report.live is not None and dict(report.live.backends) == invocations:
        return RouterView(unit=declared.unit, ready=True, workers=counts, smoke="passed")
    if smoke.passed(declared.unit, invocations):
        return RouterView(unit=declared.unit, ready=True, workers=counts, smoke="passed")
    returned = smoke.ask(declared, headers, invocations, wait_s=smoke_wait_s)
    if returned is not None and generated(returned):
        return RouterView(unit=declared.unit, ready=True, workers=counts, smoke="passed")
    why = "asked, no answer yet"
    if returned is not None:
        why = returned.error or f"{returned.status}: {returned.body[:160].decode('utf-8', 'replace')}"
    detail = f"backends restarted, and no generation comes back yet: {why}"
    smoked = "failed" if returned is not None else "under way"
    return RouterView(unit=declared.unit, ready=False, workers=counts, smoke=smoked, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a wait ended."""

    exit_code: ExitCode
    message: str
    reports: tuple[DeploymentReport, ...]


Watcher = Callable[[Sequence[DeploymentReport]], None]
Select = Callable[[UnitReport], bool]
Failing = Callable[[UnitReport], bool]
EndOf = Callable[[UnitReport], EndOfLife | None]


def wait_until_ready(
    manager: Manager,
    indexes: Sequence[Index],
    *,
    timeout_s: float,
    clock: Clock,
    seen: Watcher,
    selected: Select = lambda _unit: True,
    failing: Failing = lambda unit: unit.failed_for_good,
    end_of: EndOf = lambda unit: unit.end,
    routed: bool = False,
) -> Outcome:
    """Wait until every selected unit is ready (40: one is failing; 41: the time is over).

    With `routed`, until a router that is up also sends requests to each of them again.
    """
    deadline = clock.monotonic() + timeout_s
    smoke, failed_at = SmokeTests(), None
    manager.watch([unit.unit for index in indexes for unit in index.units])
    while True:
        indexes = tuple(map(_as_it_is_now, indexes))
        # Asked before the units are looked at: what ends in between has queued their starts.
        changing = any(_is_changing(manager, index) for index in indexes)
        reports = tuple(
            observe_deployment(manager, index, smoke, smoke_wait_s=_SMOKE_LOOK_S) for index in indexes
        )
        seen(reports)
        units = [unit for report in reports for unit in report.units if selected(unit)]
        failed = [unit for unit in units if failing(unit)]
        if changing:
            failed = []  # their files may not be in place yet, or they are about to be started
        failed_at = (failed_at or clock.monotonic()) if failed else None
        if failed_at is not None and (not _ending(units) or clock.monotonic() > failed_at + _SETTLE_S):
            ends = {unit.unit: replace(unit, end=end_of(unit)) for unit in failed}
            message = _failure(tuple(ends.values()))
            reports = tuple(
                replace(report, units=tuple(ends.get(unit.unit, unit) for unit in report.units))
                for report in reports
            )
            return Outcome(exit_code=_exit_code(ends.values()), message=message, reports=reports)
        if all(_is_ready(report, selected, routed=routed) for report in reports):
            return Outcome(exit_code=ExitCode.OK, message="ready", reports=reports)
        left = deadline - clock.monotonic()
        if left <= 0:
            return Outcome(
                exit_code=ExitCode.NOT_READY, message=_timeout(reports, timeout_s), reports=reports
            )
        manager.pump(min(_LOOK_S, max(left, 0.01)))


def _as_it_is_now(index: Index) -> Index:
    """The index again: an install, or the recovery at boot, may put another generation in place meanwhile."""
    try:
        return read_index(index.name) or index
    except PdUnitsError:
        return index


def _is_changing(manager: Manager, index: Index) -> bool:
    """Whether another process is at work on this deployment, or the recovery at boot is about to be."""
    try:
        operation = read_operation(index.names)
        if operation is None:
            return False
        if operation.at_work:
            return operation.doer != process_identity(os.getpid())
        status = manager.unit(RECOVER)
    except PdUnitsError:
        return False
    return bool(status.job_id) or status.active_state is ActiveState.ACTIVATING


def _ending(units: Iterable[UnitReport]) -> bool:
    return any(unit.status.active_state is ActiveState.DEACTIVATING for unit in units)


def _is_ready(report: DeploymentReport, selected: Select, *, routed: bool = False) -> bool:
    units = [unit for unit in report.units if selected(unit)]
    with_router = any(not is_backend(unit) for unit in units)
    ready = all(unit.state is UnitState.READY and not unit.outdated for unit in units)
    if routed and ready and not all(serves(report, unit) for unit in units):
        return False
    return ready and (not with_router or report.router is None or report.router.ready)


def serves(report: DeploymentReport, unit: UnitReport) -> bool:
    """Whether a unit is ready, and gets requests from a router that is up."""
    router = report.router
    asked = router is not None and router.asked
    return unit.state is UnitState.READY and not (
        asked and router is not None and unit.declared.url in router.missing
    )


def wait_until_serving(
    manager: Manager,
    index: Index,
    units: Sequence[str],
    *,
    timeout_s: float,
    clock: Clock,
    seen: Watcher,
) -> Outcome:
    """Wait until one of `units` serves; 41 if none does in time."""
    deadline = clock.monotonic() + timeout_s
    smoke = SmokeTests()
    manager.watch(units)
    while True:
        report = observe_deployment(manager, index, smoke, smoke_wait_s=_SMOKE_LOOK_S)
        seen((report,))
        if any(unit.unit in units and serves(report, unit) for unit in report.units):
            return Outcome(exit_code=ExitCode.OK, message="serving", reports=(report,))
        if clock.monotonic() >= deadline:
            return Outcome(exit_code=ExitCode.NOT_READY, message="none serves", reports=(report,))
        manager.pump(_LOOK_S)


def _exit_code(failed: Iterable[UnitReport]) -> ExitCode:
    """41 where the clocks ran out with every failed engine alive, 40 where one failed by itself."""
    return ExitCode.NOT_READY if all(map(_timed_out, failed)) else ExitCode.UNIT_FAILED


def _timed_out(unit: UnitReport) -> bool:
    if unit.end is not None:
        return unit.end.timed_out
    return unit.live is not None and unit.live.state == "timed-out"


def _failure(failed: Sequence[UnitReport]) -> str:
    parts = []
    for unit in failed:
        cause = f": {unit.cause}" if unit.cause != "none" else ""
        state = "has failed" if unit.state is UnitState.FAILED else f"is {unit.state}"
        parts.append(f"{unit.unit} {state}{cause}")
    return "; ".join(parts)


def _why(unit: UnitReport) -> str:
    """Where it stands: the cause of its last end, or else its phase."""
    why = unit.cause if unit.cause != "none" else unit.phase
    return f" ({why})" if why else ""


def _timeout(reports: Sequence[DeploymentReport], timeout_s: float) -> str:
    waiting = [
        f"{stem(unit.unit)} is {unit.state}{_why(unit)}"
        for report in reports
        for unit in report.units
        if unit.state is not UnitState.READY
    ]
    waiting += [
        f"{stem(unit.unit)} still runs a process of an earlier generation"
        for report in reports
        for unit in report.units
        if unit.outdated
    ]
    waiting += [
        f"{stem(report.router.unit)}: {report.router.detail}"
        for report in reports
        if report.router is not None and not report.router.ready and summary(report.units) is UnitState.READY
    ]
    return f"not ready within {timeout_s:g} s: {', '.join(waiting)}"
