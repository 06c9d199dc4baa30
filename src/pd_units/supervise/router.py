"""The watcher of a router: every declared worker counted, one generation through it, the backends unchanged.

A router's own "ready" line and its `/health` say nothing: both come with no worker at all.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pd_units.adapters.http import Answer, Request
from pd_units.adapters.procfs import ProcessHandle, holds_port, start_mono_us
from pd_units.errors import PdUnitsError
from pd_units.execstart import exec_start
from pd_units.naming import stem
from pd_units.ports import ActiveState
from pd_units.readiness import State
from pd_units.router_api import SMOKE_BODY, SMOKE_TIMEOUT_S, generated, missing_workers, smoke_headers
from pd_units.starts import PhaseLog
from pd_units.supervise.backend import forget_explicit_starts, main_process
from pd_units.supervise.command import (
    EX_OK,
    Stop,
    Task,
    Terminated,
    after_signal,
    connect,
    failed_unless_stopped,
    is_stopped,
    keep_start,
    now,
    publish,
    say,
)
from pd_units.verdicts import LiveVerdict, read_live

if TYPE_CHECKING:
    from pd_units.adapters.dbus import SystemdManager

_LOOK_S = 0.1
_ANOTHER = "another process answers on the router's port"
_BACKENDS_S = 0.5


class Stage(StrEnum):
    """What the router's watch waits for."""

    READINESS = "waiting for /readiness"
    WORKERS = "waiting for every worker to be healthy"
    SMOKE = "one generation through the router"


class Failed(Exception):
    """The router's start has failed; the text says why. `ended`: its process ended by itself."""

    def __init__(self, text: str, state: State = State.FAILED, *, ended: bool = False) -> None:
        super().__init__(text)
        self.state, self.ended = state, ended


def watch_router(task: Task, stop: Stop) -> int:
    """Watch one start of a router; the exit code."""
    process = main_process(task)
    manager = connect()
    status = forget_explicit_starts(manager, task)
    if is_stopped(status):
        return EX_OK
    if process is None:
        return failed_unless_stopped(manager, task, "ended before its watch began")
    began_us = status.inactive_exit_mono_us if status is not None else 0
    watcher = RouterWatcher(task, stop, process, manager, began_us / 1e6 if began_us else now())
    try:
        watcher.run()
    except Terminated:
        return after_signal(None, task)
    except Failed as failure:
        watcher.report(failure.state, str(failure), ended=failure.ended)
        process.kill()
        return failed_unless_stopped(None, task, str(failure))
    return EX_OK


class RouterWatcher:
    """The loop. Each stage is one request, repeated until its answer is right."""

    def __init__(
        self, task: Task, stop: Stop, process: ProcessHandle, manager: SystemdManager | None, began: float
    ) -> None:
        self._task, self._stop, self._process, self._manager = task, stop, process, manager
        gate = read_live(task.names, task.unit, task.invocation_id)
        self._passed = dict(gate.backends) if gate is not None else {}
        self._watched = now()
        started_us = start_mono_us(task.main_pid)
        started = started_us / 1e6 if started_us else self._watched
        if gate is not None:
            # systemd's own time counts the delay before an automatic restart too
            began = max(began, min(started, now() - (time.time() - gate.since)))
        self._began = began
        self._phases = PhaseLog()
        self._phases.enter("gate", "waiting for backends", 0.0)
        self._phases.enter("router-starting", "starting the router", started - began)
        self._headers = smoke_headers(exec_start(task.names, task.unit))
        self._stage = Stage.READINESS
        self._request: Request | None = None
        self._ask_at = 0.0
        self._backends_at = 0.0
        self._smoke_since: float | None = None
        self._said = ""

    def run(self) -> None:
        """Return when the router is ready. Raises: Failed, Terminated."""
        while True:
            self._wait()
            self._stop.check()
            if not self._process.alive():
                raise Failed("the router ended before it was ready", ended=True)
            if now() - self._watched > self._task.timeout_s:
                text = f"not ready within {self._task.timeout_s:g} s, {self._stage}"
                raise Failed(text, State.TIMED_OUT)
            if now() >= self._backends_at:
                self._check_backends()
            if self._advance() and self._is_ready():
                how = "a generation came back" if self._task.smoke_test else "smoke test off"
                self.report("ready", f"ready: every worker healthy, {how}")
                say(f"{stem(self._task.unit)}: ready: every worker healthy, {how}")
                keep_start(self._task, self._began, "http", self._phases.times)
                return

    def _is_ready(self) -> bool:
        """Whether nothing has changed since the router was asked: its process, and the backends."""
        if not self._check_backends():
            # systemd does not answer: ask all of it again
            self._stage, self._smoke_since = Stage.READINESS, None
            return False
        if not self._process.alive():
            raise Failed("the router ended before it was ready", ended=True)
        return True

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        poll.register(self._process, select.POLLIN)
        if self._request is not None and self._request.fileno() >= 0:
            poll.register(self._request, self._request.events())
        poll.poll(_LOOK_S * 1000)

    def _check_backends(self) -> bool:
        """Whether every backend is the one that the gate let pass; False if systemd does not answer.

        Raises: Failed if one is not.
        """
        self._backends_at = now() + _BACKENDS_S
        try:
            self._manager = self._manager or connect()
            if self._manager is None:
                return False
            for backend in self._task.backends:
                status = self._manager.unit(backend.unit)
                passed = self._passed.get(backend.unit)
                if status.active_state is not ActiveState.ACTIVE or status.invocation_id != passed:
                    raise Failed(
                        f"{stem(backend.unit)} is no longer the one that was ready when the router started "
                        f"({status.active_state}): back to the gate"
                    )
        except PdUnitsError as error:
            say(f"asking again: {error.brief}")
            if self._manager is not None:
                self._manager.close()
            self._manager = None
            return False
        return True

    def _advance(self) -> bool:
        """Move the stage's request on; whether everything is done."""
        if self._request is None:
            if now() >= self._ask_at:
                self._request = self._ask()
            return False
        answer = self._request.step()
        if answer is None:
            return False
        self._request = None
        self._ask_at = now() + 0.2
        return self._answered(answer)

    def _ask(self) -> Request:
        if self._stage is Stage.SMOKE:
            self._smoke_since = self._smoke_since or now()
            url = f"{self._task.url}/generate"
            return Request(url, "POST", SMOKE_BODY, self._headers, timeout_s=SMOKE_TIMEOUT_S).start()
        path = "/readiness" if self._stage is Stage.READINESS else "/workers"
        return Request(self._task.url + path, headers=self._headers, timeout_s=10.0).start()

    def _answered(self, answer: Answer) -> bool:
        if self._stage is Stage.SMOKE:
            return self._smoke_answered(answer)
        if answer.status != 200 or not self._own():
            why = answer.error or answer.body[:200].decode("utf-8", "replace") or str(answer.status)
            self._stage = Stage.READINESS
            self.report("waiting", f"{self._stage}: {why if answer.status != 200 else _ANOTHER}")
            return False
        if self._stage is Stage.READINESS:
            self._stage, self._ask_at = Stage.WORKERS, now()
            return False
        missing = missing_workers(answer.json(), (backend.url for backend in self._task.backends))
        if missing:
            self._stage = Stage.READINESS
            self.report("waiting", f"waiting for workers: {', '.join(missing)}")
            return False
        if not self._task.smoke_test:
            return True
        self._stage, self._ask_at = Stage.SMOKE, now()
        self.report("waiting", str(self._stage))
        return False

    def _own(self) -> bool:
        """Whether the router itself listens on its port, and not another server."""
        parts = urlsplit(self._task.url)
        return holds_port(self._task.main_pid, parts.port or 80, parts.hostname or "")

    def _smoke_answered(self, answer: Answer) -> bool:
        if generated(answer) and self._own():
            return True
        why = answer.error or f"{answer.status}: {answer.body[:200].decode('utf-8', 'replace')}"
        self.report("waiting", f"{self._stage}: {why}")
        if now() - (self._smoke_since or now()) > SMOKE_TIMEOUT_S:
            raise Failed(f"no generation came back through the router in {SMOKE_TIMEOUT_S:g} s: {why}")
        self._ask_at = now() + 1.0
        return False

    def report(self, state: str, text: str, *, ended: bool = False) -> None:
        """Make the state known, once a change. `ended`: the process ended by itself; its end tells why."""
        if text == self._said:
            return
        self._said = text
        self._phases.enter(self._stage.name.lower(), str(self._stage), now() - self._began)
        seconds = now() - self._began
        failed = state in (State.FAILED, State.TIMED_OUT)
        verdict = LiveVerdict(
            unit=self._task.unit,
            invocation_id=self._task.invocation_id,
            state=state,
            phase=str(self._stage),
            detail=text,
            cause=_cause(state, ended=ended) if failed else "none",
            source="process" if ended else None if state == "waiting" else "http",
            since=time.time() - seconds,
            seconds=None if state == "waiting" else round(seconds, 3),
            backends=self._passed,
            evidence=self._evidence() if state == "ready" else (),
            phases=tuple(asdict(phase) for phase in self._phases.times),
        )
        publish(self._task, verdict, text)

    def _evidence(self) -> tuple[Mapping[str, str], ...]:
        count = len(self._task.backends)
        rows = [{"text": f"/readiness 200, {count} declared workers healthy in /workers", "source": "http"}]
        if self._task.smoke_test and self._smoke_since is not None:
            took = f"{now() - self._smoke_since:.2f} s"
            rows.append({"text": f"a generation came back through the router after {took}", "source": "http"})
        return tuple(rows)


def _cause(state: str, *, ended: bool) -> str:
    if ended:
        return "unknown"
    return "timeout" if state == State.TIMED_OUT else "disaggregation"
