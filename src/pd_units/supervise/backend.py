"""The watcher of a backend: its unit is `activating` until this ends, and `active` only if it ends with 0.

One poll loop over the journal, the main process, HTTP, signals and the clock feeds the state machine of
`readiness`, which decides.
"""

from __future__ import annotations

import select
import time
from dataclasses import replace

from pd_units.adapters.http import Request
from pd_units.adapters.journal import Life, LifeReader
from pd_units.adapters.notify import send_status
from pd_units.adapters.procfs import ProcessHandle, holds_port, start_time_us
from pd_units.diagnosis import Classifier, load_rules
from pd_units.errors import PdUnitsError
from pd_units.naming import stem
from pd_units.ports import Manager
from pd_units.readiness import (
    Event,
    HealthAnswered,
    LogSeen,
    ProcessEnded,
    Source,
    State,
    Tick,
    UnitWatch,
    step,
)
from pd_units.received import try_note_received
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
from pd_units.verdicts import LiveVerdict, write_live

# journald tells of new entries up to 250 ms late; they can be read at once. Looking every 20 ms costs half a
# percent of one core.
_LOOK_S = 0.02
_PROBE_S = 2.0
_PROBE_READY_S = 0.5
# `/health` is a generation: it may take the engine's own 20 s.
_PROBE_TIMEOUT_S = 30.0
_REPORT_S = 0.5


def watch_backend(task: Task, stop: Stop) -> int:
    """Watch one start until it is ready, failed or out of time; the exit code."""
    manager = connect()
    forget_explicit_starts(manager, task)
    try:
        process = ProcessHandle(task.main_pid)
    except (ProcessLookupError, OSError):
        say(f"{stem(task.unit)} ended before its watch began")
        return EX_FAILED
    watcher = BackendWatcher(task, stop, process)
    try:
        watch = watcher.run()
    except Terminated:
        return after_signal(manager, task)
    if watch.state is State.READY:
        return EX_OK
    # It never became ready, so there is nothing to drain; an engine that ignores SIGTERM would hold the
    # start job open for all of TimeoutStopSec.
    process.kill()
    return EX_FAILED


def forget_explicit_starts(manager: Manager | None, task: Task) -> None:
    """Keep explicit starts out of the start limit: it is for automatic restarts, which NRestarts counts."""
    if manager is None:
        return
    try:
        status = manager.unit(task.unit)
        if status.n_restarts == 0:
            manager.reset_failed(task.unit)
        trouble = try_note_received(task.names, status)
        if trouble:
            say(trouble)
    except PdUnitsError as error:
        say(f"the start limit was not reset: {error.brief}")


class BackendWatcher:
    """The loop. Feeds `readiness.step` and reports phases on the way."""

    def __init__(self, task: Task, stop: Stop, process: ProcessHandle) -> None:
        self._task, self._stop, self._process = task, stop, process
        self._port = int(task.url.rsplit(":", 1)[1].rstrip("/"))
        self._log = Classifier(load_rules(), role=task.role.value, cut_lives=False)
        since_us = start_time_us(task.main_pid, wall_s=time.time())
        life = Life(
            unit=task.unit, invocation_id=task.invocation_id, main_pid=task.main_pid, since_us=since_us
        )
        self._journal = LifeReader(life)
        self._began = now()
        self._watch = UnitWatch(
            invocation_id=task.invocation_id,
            started_at=self._began,
            timeout_s=task.timeout_s,
            no_progress_s=task.no_progress_s,
            no_progress_declared=task.no_progress_declared,
        )
        self._request: Request | None = None
        self._asked_at = 0.0
        self._probe_at = self._began + _PROBE_S
        self._reported = ("", 0.0)

    def run(self) -> UnitWatch:
        """The final watch. Raises: Terminated."""
        while not self._watch.ended:
            self._wait()
            self._stop.check()
            self._read_journal()
            if not self._process.alive():
                self._feed(ProcessEnded(invocation_id=self._task.invocation_id))
            self._probe()
            self._feed(Tick())
            self._report()
        if self._watch.state is State.READY and not self._process.alive():
            self._watch = replace(self._watch, state=State.FAILED, source=Source.PROCESS)
        self._report(final=True)
        return self._watch

    def _feed(self, event: Event) -> None:
        self._watch = step(self._watch, event, now())

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if self._watch.ended_at is None:
            poll.register(self._process, select.POLLIN)
        poll.register(self._journal, select.POLLIN)
        if self._request is not None and self._request.fileno() >= 0:
            poll.register(self._request, self._request.events())
        for descriptor, _ in poll.poll(_LOOK_S * 1000):
            if descriptor == self._journal.fileno():
                self._journal.process()

    def _read_journal(self) -> None:
        seen = 0
        for line in self._journal.lines():
            self._log.feed(line.text)
            seen += 1
        if not seen:
            return
        log = self._log
        self._feed(
            LogSeen(
                invocation_id=self._task.invocation_id,
                ready_line=log.ready_line,
                warmup_failed=log.warmup_failed,
                cause=str(log.decisive) if log.decisive else None,
                symptom=log.symptom,
                ticks=log.progress_ticks,
                allowed_silence_s=log.allowed_silence_s,
            )
        )

    def _probe(self) -> None:
        line_at = self._watch.ready_line_at
        if line_at is not None and self._asked_at < line_at:
            if self._request is not None:
                self._request.close()  # asked before the line was seen: ask again, now
            self._ask()
        if self._request is None:
            if now() >= self._probe_at:
                self._ask()
            return
        answer = self._request.step()
        if answer is None:
            return
        self._request = None
        waiting_for_http = line_at is not None or answer.status == 200
        self._probe_at = now() + (_PROBE_READY_S if waiting_for_http else _PROBE_S)
        own = answer.status == 200 and holds_port(self._task.main_pid, self._port)
        self._read_journal()  # a failure text that came before this answer decides against it
        if not self._process.alive():
            self._feed(ProcessEnded(invocation_id=self._task.invocation_id))
        self._feed(
            HealthAnswered(
                invocation_id=self._task.invocation_id, status=answer.status, own=own, asked_at=self._asked_at
            )
        )

    def _ask(self) -> None:
        self._asked_at = now()
        self._request = Request(f"{self._task.url}/health", timeout_s=_PROBE_TIMEOUT_S).start()

    def _report(self, *, final: bool = False) -> None:
        text = status_line(self._log, self._watch)
        last, at = self._reported
        if text == last or (not final and now() - at < _REPORT_S):
            return
        self._reported = (text, now())
        if final or last.split(" ")[:2] != text.split(" ")[:2]:
            say(f"{stem(self._task.unit)}: {text}")
        self._write_verdict()
        send_status(text)

    def _write_verdict(self) -> None:
        watch, log = self._watch, self._log
        cause = watch.cause if watch.cause != "none" or not log.decisive else str(log.decisive)
        verdict = LiveVerdict(
            unit=self._task.unit,
            invocation_id=self._task.invocation_id,
            state=str(watch.state),
            phase=log.phase,
            detail=status_line(log, watch),
            cause=cause,
            source=str(watch.source) if watch.source else None,
            since=time.time() - (now() - self._began),
            seconds=round(now() - self._began, 3) if watch.ended else None,
            capacity=dict(log.capacity),
            warnings=tuple({"name": w.name, "text": w.text, "advice": w.advice} for w in log.warnings),
        )
        write_live(self._task.names, verdict)


def status_line(log: Classifier, watch: UnitWatch) -> str:
    """The start so far, for `systemctl status`: "loading weights 23/46"."""
    if watch.state is State.READY:
        tokens = log.capacity.get("kv_tokens")
        how = " (by HTTP alone: the journal did not show the engine's ready line)"
        return (
            "ready"
            + (f", {tokens:,.0f} KV tokens" if tokens else "")
            + (how if watch.source == "http" else "")
        )
    if watch.state is State.TIMED_OUT:
        limit = watch.timeout_s if watch.cause == "timeout" else max(watch.no_progress_s, 0)
        what = "not ready" if watch.cause == "timeout" else "no progress"
        return f"{what} within {limit:g} s, last phase: {log.phase or 'none seen'}"
    if watch.state is State.FAILED:
        return "failed while " + (log.phase or "starting")
    if watch.ready_line_at is not None:
        return "waiting for /health to answer 200"
    progress = log.progress
    return (log.phase or "starting") + (f" {progress.done}/{progress.total}" if progress else "")
