"""What is so now: each unit of a deployment, from the manager, its watcher's verdict and its recorded end.

Needs no rights: ActiveState, SubState and Job come over the system bus, verdicts are world-readable. What is
not readable is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pd_units.index import Index, IndexUnit
from pd_units.naming import Role
from pd_units.ports import ActiveState, Manager, UnitStatus
from pd_units.received import read_received
from pd_units.verdicts import EndOfLife, LiveVerdict, read_end, read_live
from pd_units.verification import Verification


class UnitState(StrEnum):
    """The state of a unit, in the contract's words."""

    READY = "ready"
    STARTING = "starting"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReport:
    """One unit, as `status` and `wait-ready` report it.

    `outdated`: its process was started from a unit file of another generation than the installed one.
    """

    declared: IndexUnit
    status: UnitStatus
    state: UnitState
    live: LiveVerdict | None = None
    end: EndOfLife | None = None
    note: str = ""
    outdated: bool = False
    placement: Verification | None = None

    @property
    def unit(self) -> str:
        """The unit's name."""
        return self.declared.unit

    @property
    def failed_for_good(self) -> bool:
        """Whether no job and no automatic restart will bring it back."""
        if self.end is not None and not self.end.retried and self.state is UnitState.RESTARTING:
            return True
        return self.state in (UnitState.FAILED, UnitState.STOPPED) and not self.status.job_id

    @property
    def cause(self) -> str:
        """The cause of the contract; "none" when ready or starting."""
        if self.state in (UnitState.READY, UnitState.STARTING):
            return "none"
        if self.end is not None:
            return self.end.cause
        if self.live is not None and self.live.state in ("failed", "timed-out"):
            return self.live.cause
        return "unknown" if self.state in (UnitState.FAILED, UnitState.RESTARTING) else "none"

    @property
    def phase(self) -> str | None:
        """What it is doing, or was doing when it ended."""
        if self.state is UnitState.STARTING and self.status.active_state is ActiveState.INACTIVE:
            return self.live.phase if self.live is not None else "queued"
        source = self.live or self.end
        return source.phase if source is not None else None

    @property
    def seconds_to_ready(self) -> float | None:
        """Seconds from the start of this invocation to ready, None while it is not.

        As its watcher measured them; systemd's own times count the delay before an automatic restart too.
        """
        seconds = self.status.seconds_to_ready
        if seconds is not None and self.live is not None and self.live.state == "ready":
            seconds = min(seconds, self.live.seconds) if self.live.seconds is not None else seconds
        return round(seconds, 3) if seconds is not None else None

    def to_json(self) -> dict[str, Any]:
        """The unit's object of the contract."""
        source = self.live or self.end
        evidence = list(self.end.evidence) if self.end is not None and self.cause != "none" else []
        return {
            "unit": self.unit,
            "role": str(self.declared.role),
            "state": str(self.state),
            "phase": self.phase,
            "invocation_id": self.status.invocation_id or None,
            "main_pid": self.status.main_pid or None,
            "since": _time(self.status.state_change_us),
            "seconds_to_ready": self.seconds_to_ready,
            "restarts": self.status.n_restarts,
            "cause": self.cause,
            "advice": self.end.advice if self.end is not None and self.cause != "none" else "",
            "evidence": [dict(row) for row in evidence],
            "last_lines": list(self.end.last_lines) if self.end is not None and self.cause != "none" else [],
            "capacity": dict(source.capacity) if source is not None else {},
            "warnings": [dict(row) for row in source.warnings] if source is not None else [],
            "placement": self.declared.placement() | (self.placement.to_json() if self.placement else {}),
            "detail": self.note or (self.live.detail if self.live is not None else ""),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterView:
    """The router as a client sees it now: `/readiness`, and whether a generation came through it.

    `asked` says whether it was asked at all: a router that has not started is not. `missing` are the URLs of
    the declared workers to which it sends no requests now.
    """

    unit: str
    ready: bool
    asked: bool = True
    workers: Mapping[str, Any] = field(default_factory=dict)
    smoke: str = "not needed"
    detail: str = ""
    missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The deployment's `router` object."""
        return {
            "unit": self.unit,
            "ready": self.ready,
            "readiness": dict(self.workers),
            "smoke_test": self.smoke,
            "detail": self.detail,
        }


def unit_state(status: UnitStatus, end: EndOfLife | None) -> UnitState:
    """The contract's state of a unit.

    A stop that somebody asked for can leave `failed` behind (an engine that ends its drain by SIGKILL): its
    recorded end tells. A router queued behind `After=` is `inactive` with a job: it is starting.
    """
    active, sub = status.active_state, status.sub_state
    if active in (ActiveState.ACTIVE, ActiveState.RELOADING, ActiveState.REFRESHING):
        return UnitState.READY
    if active is ActiveState.ACTIVATING:
        return UnitState.RESTARTING if sub.startswith("auto-restart") else UnitState.STARTING
    if active is ActiveState.DEACTIVATING:
        if end is not None and end.requested:
            return UnitState.STOPPED
        if end is not None and not end.retried:
            return UnitState.FAILED
        return UnitState.STOPPED if status.job_type == "stop" else UnitState.RESTARTING
    if status.job_id and status.job_type in ("start", "restart", "verify-active"):
        return UnitState.STARTING
    if active is ActiveState.FAILED:
        return UnitState.STOPPED if end is not None and end.requested else UnitState.FAILED
    if active is ActiveState.INACTIVE:
        return UnitState.STOPPED if status.exists else UnitState.UNKNOWN
    return UnitState.UNKNOWN


def observe_unit(manager: Manager, index: Index, declared: IndexUnit) -> UnitReport:
    """One unit, as it is now."""
    status = manager.unit(declared.unit)
    live = read_live(index.names, declared.unit, status.invocation_id)
    end = read_end(index.names, declared.unit, status.invocation_id)
    state = unit_state(status, end)
    outdated = state is UnitState.READY and _outdated(index, declared, status)
    note = "its process is of an earlier generation" if outdated else ""
    return UnitReport(
        declared=declared, status=status, state=state, live=live, end=end, note=note, outdated=outdated
    )


def _outdated(index: Index, declared: IndexUnit, status: UnitStatus) -> bool:
    received = read_received(index.names, declared.unit, status.invocation_id)
    return bool(declared.fragment) and received is not None and received.fragment != declared.fragment


def observe(manager: Manager, index: Index) -> tuple[UnitReport, ...]:
    """Every unit of a deployment, backends first."""
    return tuple(observe_unit(manager, index, declared) for declared in index.units)


def summary(reports: Iterable[UnitReport]) -> UnitState:
    """The state of a deployment: ready only if all of its units are."""
    states = {report.state for report in reports}
    if states == {UnitState.READY}:
        return UnitState.READY
    for state in (UnitState.FAILED, UnitState.RESTARTING, UnitState.STARTING, UnitState.UNKNOWN):
        if state in states:
            return state
    return UnitState.STOPPED


def _time(microseconds: int) -> str | None:
    if not microseconds:
        return None
    moment = datetime.datetime.fromtimestamp(microseconds / 1e6, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_backend(report: UnitReport) -> bool:
    """Whether it is an engine, not the router."""
    return report.declared.role is not Role.ROUTER
