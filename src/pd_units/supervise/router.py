"""The watcher of a router: every declared worker counted, one generation through it, the backends unchanged.

A router's own "ready" line and its `/health` say nothing: both come with no worker at all.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pd_units.adapters.http import Answer, Request
from pd_units.adapters.notify import send_status
from pd_units.adapters.procfs import ProcessHandle, command_line
from pd_units.errors import PdUnitsError
from pd_units.naming import stem
from pd_units.ports import ActiveState, Manager
from pd_units.supervise.backend import forget_explicit_starts
from pd_units.supervise.command import (
    EX_FAILED,
    EX_OK,
    Stop,
    Task,
    Terminated,
    after_signal,
    connect,
    now,
    say,
)
from pd_units.verdicts import LiveVerdict, read_live, write_live

_LOOK_S = 0.1
_BACKENDS_S = 0.5
# The first generation over NIXL takes 5 to 40 s while UCX warms up.
SMOKE_TIMEOUT_S = 120.0
SMOKE_BODY = json.dumps(
    {"text": "One, two, three,", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
).encode()


class Stage(StrEnum):
    """What the router's watch waits for."""

    READINESS = "waiting for /readiness"
    WORKERS = "waiting for every worker to be healthy"
    SMOKE = "one generation through the router"


class Failed(Exception):
    """The router's start has failed; the text says why."""


def missing_workers(workers: Any, declared: Iterable[str]) -> list[str]:
    """The declared worker URLs that `GET /workers` does not count as healthy.

    Shape of `workers`: {"workers": [{"url", "is_healthy", ...}, ...], ...} (sglang-router 0.3.2).
    """
    rows = workers.get("workers", ()) if isinstance(workers, dict) else ()
    healthy = {str(row.get("url", "")).rstrip("/") for row in rows if row.get("is_healthy")}
    return [url for url in declared if url.rstrip("/") not in healthy]


def smoke_headers(argv: tuple[str, ...]) -> dict[str, str]:
    """The Authorization header that a router started with `--api-key` wants."""
    for position, word in enumerate(argv):
        if word == "--api-key" and position + 1 < len(argv):
            return {"Authorization": f"Bearer {argv[position + 1]}"}
        if word.startswith("--api-key="):
            return {"Authorization": f"Bearer {word.partition('=')[2]}"}
    return {}


def generated(answer: Answer) -> bool:
    """Whether an answer of POST /generate holds a generation."""
    value = answer.json()
    if isinstance(value, list) and value:
        value = value[0]
    return answer.status == 200 and isinstance(value, dict) and ("text" in value or "output_ids" in value)


def watch_router(task: Task, stop: Stop) -> int:
    """Watch one start of a router; the exit code."""
    manager = connect()
    forget_explicit_starts(manager, task)
    try:
        process = ProcessHandle(task.main_pid)
    except (ProcessLookupError, OSError):
        say(f"{stem(task.unit)} ended before its watch began")
        return EX_FAILED
    watcher = RouterWatcher(task, stop, process, manager)
    try:
        watcher.run()
    except Terminated:
        return after_signal(manager, task)
    except Failed as failure:
        watcher.report("failed", str(failure))
        say(f"{stem(task.unit)}: {failure}")
        process.kill()
        return EX_FAILED
    return EX_OK


class RouterWatcher:
    """The loop. Each stage is one request, repeated until its answer is right."""

    def __init__(self, task: Task, stop: Stop, process: ProcessHandle, manager: Manager | None) -> None:
        self._task, self._stop, self._process, self._manager = task, stop, process, manager
        gate = read_live(task.names, task.unit, task.invocation_id)
        self._passed = dict(gate.backends) if gate is not None else {}
        self._began = now()
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
                raise Failed("the router ended before it was ready")
            if now() - self._began > self._task.timeout_s:
                raise Failed(f"not ready within {self._task.timeout_s:g} s, {self._stage}")
            if now() >= self._backends_at:
                self._check_backends()
            if self._advance():
                self._check_backends()
                if not self._process.alive():
                    raise Failed("the router ended before it was ready")
                how = "a generation came back" if self._task.smoke_test else "smoke test off"
                self.report("ready", f"ready: every worker healthy, {how}")
                say(f"{stem(self._task.unit)}: ready: every worker healthy, {how}")
                return

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        poll.register(self._process, select.POLLIN)
        if self._request is not None and self._request.fileno() >= 0:
            poll.register(self._request, self._request.events())
        poll.poll(_LOOK_S * 1000)

    def _check_backends(self) -> None:
        """Raises: Failed if a backend is not the one that the gate let pass."""
        self._backends_at = now() + _BACKENDS_S
        try:
            self._manager = self._manager or connect()
            if self._manager is None:
                return
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
            self._manager = None

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
            headers = smoke_headers(command_line(self._task.main_pid))
            url = f"{self._task.url}/generate"
            return Request(url, "POST", SMOKE_BODY, headers, timeout_s=SMOKE_TIMEOUT_S).start()
        path = "/readiness" if self._stage is Stage.READINESS else "/workers"
        headers = smoke_headers(command_line(self._task.main_pid))
        return Request(self._task.url + path, headers=headers, timeout_s=10.0).start()

    def _answered(self, answer: Answer) -> bool:
        if self._stage is Stage.SMOKE:
            return self._smoke_answered(answer)
        if answer.status != 200:
            why = answer.error or answer.body[:200].decode("utf-8", "replace") or str(answer.status)
            self._stage = Stage.READINESS
            self.report("waiting", f"{self._stage}: {why}")
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

    def _smoke_answered(self, answer: Answer) -> bool:
        if generated(answer):
            return True
        why = answer.error or f"{answer.status}: {answer.body[:200].decode('utf-8', 'replace')}"
        self.report("waiting", f"{self._stage}: {why}")
        if now() - (self._smoke_since or now()) > SMOKE_TIMEOUT_S:
            raise Failed(f"no generation came back through the router in {SMOKE_TIMEOUT_S:g} s: {why}")
        self._ask_at = now() + 1.0
        return False

    def report(self, state: str, text: str) -> None:
        """Make the state known, once a change."""
        if text == self._said:
            return
        self._said = text
        ended = state != "waiting"
        verdict = LiveVerdict(
            unit=self._task.unit,
            invocation_id=self._task.invocation_id,
            state=state,
            phase=str(self._stage),
            detail=text,
            cause="disaggregation" if state == "failed" else "none",
            source="http" if state == "ready" else None,
            since=time.time() - (now() - self._began),
            seconds=round(now() - self._began, 3) if ended else None,
            backends=self._passed,
        )
        write_live(self._task.names, verdict)
        send_status(text)
