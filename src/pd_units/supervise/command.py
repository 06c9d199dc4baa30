"""The command line of gate, watcher and recorder, and what they share."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from pd_units.adapters.notify import send_status
from pd_units.errors import HostError, PdUnitsError
from pd_units.naming import Names, Role, stem
from pd_units.ports import ActiveState, Manager, UnitStatus
from pd_units.starts import PhaseTime, Start, note_start
from pd_units.verdicts import LiveVerdict, write_live

if TYPE_CHECKING:
    from pd_units.adapters.dbus import SystemdManager

EX_OK, EX_FAILED = 0, 1
_LONGEST_SAID = 2000


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of a router: its unit, role and base URL."""

    unit: str
    role: Role
    url: str

    @classmethod
    def parse(cls, text: str) -> Backend:
        """`UNIT=ROLE=URL`."""
        unit, role, url = text.split("=", 2)
        return cls(unit, Role(role), url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one of our commands was started for; `invocation_id` and `main_pid` come from systemd."""

    names: Names
    unit: str
    role: Role
    invocation_id: str
    main_pid: int
    url: str = ""
    timeout_s: float = 0.0
    no_progress_s: float = 0.0
    no_progress_declared: bool = False
    extend_s: float = 0.0
    smoke_test: bool = True
    backends: tuple[Backend, ...] = ()


class Terminated(Exception):
    """SIGTERM or SIGINT came."""


class Stop:
    """Turns SIGTERM into a flag and a readable descriptor, so that one poll covers it."""

    def __init__(self, early: Sequence[int] = ()) -> None:
        self._early = early
        self._requested = False
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._requested = True

    @property
    def requested(self) -> bool:
        """Whether a signal came, also before this was made."""
        return self._requested or bool(self._early)

    def fileno(self) -> int:
        """A descriptor that becomes readable at the signal."""
        return self._read.fileno()

    def check(self) -> None:
        """Raises: Terminated if a signal came."""
        if self.requested:
            raise Terminated


def wait_for(stop: Stop, seconds: float) -> None:
    """Sleep until a signal comes, at most so long. After one it returns at once."""
    if not stop.requested:
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        poll.poll(1000 * seconds)


def say(text: str) -> None:
    """One line for the unit's journal, marked as ours: the diagnosis never reads such a line.

    What it quotes must not look like a line of the engine's; a journal that takes nothing is no reason to
    end a watch.
    """
    line = " ".join(text.split())[:_LONGEST_SAID]
    with contextlib.suppress(OSError, ValueError):
        print(f"pd-units: {line}", flush=True)


def publish(task: Task, verdict: LiveVerdict, status: str) -> None:
    """Make a verdict known, in /run and as the unit's status. A full disk is no reason to end a watch."""
    try:
        write_live(task.names, verdict)
    except PdUnitsError as error:
        say(f"the verdict was not written: {error.brief}: {error.detail}")
    send_status(status)


def keep_start(task: Task, began: float, evidence: str, phases: tuple[PhaseTime, ...]) -> None:
    """Add a start that is ready now to the history. `began`: its start, in seconds of the monotonic clock."""
    seconds = now() - began
    start = Start(
        unit=task.unit,
        invocation_id=task.invocation_id,
        began=round(time.time() - seconds, 3),
        outcome="ready",
        seconds=round(seconds, 3),
        evidence=evidence,
        phases=phases,
    )
    try:
        note_start(task.names, start)
    except PdUnitsError as error:
        say(f"the start was not kept: {error.brief}: {error.detail}")


def after_signal(manager: Manager | None, task: Task) -> int:
    """The exit code after SIGTERM: 0 only if the unit is being stopped."""
    return failed_unless_stopped(manager, task, "its watch was told to end: not ready")


def failed_unless_stopped(manager: Manager | None, task: Task, text: str) -> int:
    """The exit code of a watch that ends without "ready": 0 if the unit is being stopped, else 1 and `text`.

    Exit 0 with the unit still starting would make it `active` without being ready; another exit while it
    is being stopped would make it `failed`. A stop ends the main process too, and that may be seen first.
    """
    try:
        state = (manager or _manager()).unit(task.unit).active_state
    except PdUnitsError:
        state = ActiveState.ACTIVATING
    if state in (ActiveState.DEACTIVATING, ActiveState.INACTIVE):
        return EX_OK
    say(f"{stem(task.unit)}: {text}")
    return EX_FAILED


def is_stopped(status: UnitStatus | None) -> bool:
    """Whether the unit is being stopped already: the signal for it came too early to be seen."""
    return status is not None and status.active_state is ActiveState.DEACTIVATING


def _manager() -> SystemdManager:
    from pd_units.adapters.dbus import SystemdManager

    return SystemdManager(timeout_s=5.0)


@contextlib.contextmanager
def systemd() -> Iterator[Manager | None]:
    """The manager for a moment. A connection that is kept wakes systemd, the bus and us at every change."""
    manager = connect()
    try:
        yield manager
    finally:
        if manager is not None:
            manager.close()


def connect() -> SystemdManager | None:
    """The manager, or None with a line in the journal: a watch goes on without it where it can."""
    try:
        return _manager()
    except HostError as error:
        say(f"systemd cannot be asked: {error.brief}: {error.detail}")
        return None


def parse_task(args: Sequence[str]) -> tuple[str, Task]:
    """The command and its task, from argv and systemd's variables."""
    parser = argparse.ArgumentParser(prog="pd_units.supervise", allow_abbrev=False)
    parser.add_argument("command", choices=("gate", "watch", "record", "measure"))
    parser.add_argument("--deployment", required=True)
    parser.add_argument("--unit", required=True)
    parser.add_argument("--role", type=Role, default=Role.ROUTER)
    parser.add_argument("--url", default="")
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("--no-progress", type=float, default=600.0)
    parser.add_argument("--no-progress-declared", action="store_true")
    parser.add_argument("--extend", type=float, default=0.0)
    parser.add_argument("--no-smoke-test", action="store_true")
    parser.add_argument("--backend", action="append", default=[])
    options = parser.parse_args(args)
    full = options.command == "watch"
    return options.command, Task(
        names=Names(options.deployment),
        unit=options.unit,
        role=options.role,
        invocation_id=os.environ.get("INVOCATION_ID", ""),
        main_pid=int(os.environ.get("MAINPID", "0")),
        url=options.url,
        timeout_s=options.timeout,
        no_progress_s=options.no_progress,
        no_progress_declared=options.no_progress_declared,
        extend_s=options.extend,
        smoke_test=not options.no_smoke_test,
        backends=tuple(Backend.parse(b) if full else Backend(b, Role.PREFILL, "") for b in options.backend),
    )


def main(args: Sequence[str], early: Sequence[int] = ()) -> int:
    """Run one command; its exit code, which systemd turns into the unit's state.

    `early` holds the SIGTERMs that came before this.
    """
    command, task = parse_task(args)
    if command == "record":
        from pd_units.supervise.record import record

        return record(task, os.environ)
    if command == "measure":
        from pd_units.supervise.measure import measure

        return measure(task)
    stop = Stop(early)
    if command == "gate":
        from pd_units.supervise.gate import pass_gate

        return pass_gate(task, stop)
    if task.role is Role.ROUTER:
        from pd_units.supervise.router import watch_router

        return watch_router(task, stop)
    from pd_units.supervise.backend import watch_backend
    from pd_units.supervise.measure import measure_beside

    code = watch_backend(task, stop)
    if code == EX_OK:
        measure_beside(task)
    return code


def hurry() -> None:
    """Be served before everything else from now on: for the last milliseconds of a watch, on a busy host.

    A nice value would do nothing: each unit is a scheduling group of its own (sched(7), autogroup).
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def now() -> float:
    """Seconds of the monotonic clock."""
    return time.monotonic()
