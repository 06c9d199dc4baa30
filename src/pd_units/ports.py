"""What the core asks of the world, as types. The real parts are in `adapters/`, the fakes in tests;
both are held to the same contract tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ActiveState(StrEnum):
    """`ActiveState` of a unit (org.freedesktop.systemd1(5))."""

    ACTIVE = "active"
    RELOADING = "reloading"
    INACTIVE = "inactive"
    FAILED = "failed"
    ACTIVATING = "activating"
    DEACTIVATING = "deactivating"
    MAINTENANCE = "maintenance"
    REFRESHING = "refreshing"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStatus:
    """A unit as the manager sees it now.

    `job_id` is 0 when no job is queued. `invocation_id` is 32 hex digits, "" before the first start.
    Times are microseconds: `*_us` of the wall clock, `*_mono_us` of CLOCK_MONOTONIC; 0 = never.
    Source: properties of org.freedesktop.systemd1.Unit and .Service, systemd 252.
    """

    unit: str
    load_state: str
    active_state: ActiveState
    sub_state: str
    job_id: int = 0
    job_type: str = ""
    unit_file_state: str = ""  # as of the last reload: Manager.unit_file_state() is of now
    fragment_path: str = ""
    drop_in_paths: tuple[str, ...] = ()
    need_daemon_reload: bool = False
    invocation_id: str = ""
    result: str = ""
    main_pid: int = 0
    exec_main_pid: int = 0
    exec_main_code: int = 0
    exec_main_status: int = 0
    exec_main_start_mono_us: int = 0
    n_restarts: int = 0
    start_limit_burst: int = 0
    start_limit_interval_us: int = 0
    state_change_us: int = 0
    inactive_exit_mono_us: int = 0
    active_enter_mono_us: int = 0
    active_enter_us: int = 0
    control_group: str = ""
    status_text: str = ""
    log_namespace: str = ""

    @property
    def exists(self) -> bool:
        """Whether systemd found a unit file for it."""
        return self.load_state not in {"not-found", ""}

    @property
    def is_down(self) -> bool:
        """Whether it neither runs nor is about to: a start that is queued behind others is a job."""
        down = self.active_state in (ActiveState.INACTIVE, ActiveState.FAILED)
        return down and not (self.job_id and self.job_type != "stop")

    @property
    def seconds_to_ready(self) -> float | None:
        """Seconds from the start of this invocation to `active`, None while it is not active."""
        if self.active_state is not ActiveState.ACTIVE or not self.active_enter_mono_us:
            return None
        return max(0.0, (self.active_enter_mono_us - self.inactive_exit_mono_us) / 1e6)


class Manager(Protocol):
    """The systemd manager. Every call is bounded in time; errors are HostError 30, 31 or 32."""

    def version(self) -> int:
        """The manager's version, 252 for "252.38-1~deb12u1"."""

    def unit(self, name: str) -> UnitStatus:
        """The state of a unit; `load_state` is "not-found" if there is none."""

    def start(self, name: str) -> str:
        """Queue a start job (mode replace); the job's path."""

    def stop(self, name: str) -> str:
        """Queue a stop job; the job's path."""

    def restart(self, name: str) -> str:
        """Queue a restart job; the job's path."""

    def job_result(self, job: str) -> str | None:
        """`done`, `failed`, `canceled`, ...; None while the job is queued or running."""

    def reset_failed(self, name: str) -> None:
        """Forget a failed state and the start limit's count; nothing if the unit is not loaded."""

    def reload(self) -> None:
        """daemon-reload, waited for."""

    def enable(self, names: Sequence[str]) -> bool:
        """Enable unit files; whether a symlink was changed."""

    def disable(self, names: Sequence[str]) -> bool:
        """Disable unit files; whether a symlink was changed."""

    def unit_file_state(self, name: str) -> str:
        """Whether a unit starts at boot, as its links are now; "" if there is no such file.

        A unit's own property is that of the last reload.
        """

    def watch(self, names: Iterable[str]) -> None:
        """Ask for change signals of these units, so that `pump` returns early on them."""

    def pump(self, timeout_s: float) -> None:
        """Handle signals; return at the first one, or after `timeout_s`."""


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One journal entry of a unit's life. `text` may hold `\\r`; `pid` is 0 if the entry has none."""

    text: str
    pid: int
    realtime_us: int
    of_manager: bool = False


class Clock(Protocol):
    """Time. `monotonic` in seconds, as time.monotonic; `wall` in seconds since the epoch."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...
