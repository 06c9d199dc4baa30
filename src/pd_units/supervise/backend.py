"""The watcher of a backend: its unit is `activating` until this ends, and `active` only if it ends with 0.

One poll loop over the journal, the main process, HTTP, signals and the clock feeds the state machine of
`readiness`, which decides.
"""

from __future__ import annotations

import gc
import select
import time
from dataclasses import asdict, replace

from pd_units.adapters.journal import Life
from pd_units.adapters.notify import extend_timeout
from pd_units.adapters.procfs import (
    ProcessHandle,
    command_line,
    defunct_children,
    start_mono_us,
    unit_of,
)
from pd_units.errors import PdUnitsError
from pd_units.naming import stem
from pd_units.ports import Manager, UnitStatus
from pd_units.readiness import (
    ChildDefunct,
    Event,
    HealthAnswered,
    ProcessEnded,
    Source,
    State,
    Tick,
    UnitWatch,
    step,
)
from pd_units.received import try_note_received
from pd_units.supervise.command import (
    EX_OK,
    Stop,
    Task,
    Terminated,
    after_signal,
    failed_unless_stopped,
    hurry,
    is_stopped,
    keep_start,
    now,
    publish,
    say,
    systemd,
)
from pd_units.supervise.engine_log import EngineLog, is_silent
from pd_units.supervise.probe import Answered, HealthProbe
from pd_units.supervise.words import ready_evidence, short_line, status_line
from pd_units.verdicts import LiveVerdict

# journald tells of new entries up to 250 ms late; they can be read at once. This is how often it is looked:
# often while the ready line may come any moment, less often while weights load.
_LOOK_S = 0.02
_LOOK_NEARLY_S = 0.016
_NEARLY = ("serving", "warming")
# The rest is done when something has happened, and this often: clocks, processes, questions, reports.
_TURN_S = 0.25
_REPORT_S = 0.5
# The process's own state, which the pidfd does not show: a zombie with living threads, children nobody reaps.
_STATE_S = 1.0
_CHILDREN_S = 5.0
# Titles of the engine's own processes. A short-lived tool that was not waited for means nothing.
_RANKS = "sglang::"
# With `extend`, systemd is asked for this much time at a time.
_EXTEND_S = 90.0
_EXTEND_EVERY_S = 20.0


def watch_backend(task: Task, stop: Stop) -> int:
    """Watch one start until it is ready, failed or out of time; the exit code."""
    process = main_process(task)
    with systemd() as manager:
        status = forget_explicit_starts(manager, task)
    if is_stopped(status):
        return EX_OK
    if process is None:
        return failed_unless_stopped(None, task, "ended before its watch began")
    watcher = BackendWatcher(task, stop, process, status.log_namespace if status is not None else "")
    try:
        watch = watcher.run()
    except Terminated:
        return after_signal(None, task)
    if watch.state is State.READY:
        return EX_OK
    # It never became ready, so there is nothing to drain; an engine that ignores SIGTERM would hold the
    # start job open for all of TimeoutStopSec.
    process.kill()
    return failed_unless_stopped(None, task, str(watch.state))


def main_process(task: Task) -> ProcessHandle | None:
    """The unit's main process; None if it has ended, and perhaps another process has its PID now."""
    try:
        process = ProcessHandle(task.main_pid)
    except OSError:
        return None
    return process if unit_of(task.main_pid) == task.unit else None


def forget_explicit_starts(manager: Manager | None, task: Task) -> UnitStatus | None:
    """Keep explicit starts out of the start limit: it is for automatic restarts, which NRestarts counts."""
    if manager is None:
        return None
    try:
        status = manager.unit(task.unit)
        if status.n_restarts == 0:
            manager.reset_failed(task.unit)
        trouble = try_note_received(task.names, status)
        if trouble:
            say(trouble)
    except PdUnitsError as error:
        say(f"the start limit was not reset: {error.brief}")
        return None
    return status


class BackendWatcher:
    """The loop. Feeds `readiness.step` and reports phases on the way."""

    def __init__(self, task: Task, stop: Stop, process: ProcessHandle, namespace: str) -> None:
        self._task, self._stop, self._process = task, stop, process
        since_us = start_mono_us(task.main_pid)
        self._began = since_us / 1e6 if since_us else now()
        life = Life(
            unit=task.unit,
            invocation_id=task.invocation_id,
            main_pid=task.main_pid,
            since_mono_us=since_us,
            namespace=namespace,
        )
        self._log = EngineLog(life, task.role.value, self._began)
        self._probe = HealthProbe(task.url, task.main_pid)
        self._silent = is_silent(command_line(task.main_pid))
        self._watch = UnitWatch(
            invocation_id=task.invocation_id,
            started_at=self._began,
            timeout_s=task.timeout_s,
            no_progress_s=task.no_progress_s,
            no_progress_declared=task.no_progress_declared,
            extend_s=task.extend_s,
            silent_log=True,  # until the journal shows a line: one that shows none tells of no standstill
        )
        self._answered: Answered | None = None
        self._state_at = self._children_at = self._extend_at = self._turn_at = 0.0
        self._defunct = False
        self._reported = ("", "", 0.0)
        self._poll = select.poll()
        self._look_ms = 0.0

    def run(self) -> UnitWatch:
        """The final watch. Raises: Terminated."""
        gc.freeze()  # thousands of compiled rules: collecting among them costs milliseconds at any moment
        self._listen()
        while not self._watch.ended:
            woken = self._wait()
            self._stop.check()
            news = self._read()
            if not (woken or news or now() >= self._turn_at):
                continue  # what most looks are: a hundred of them a second must cost nothing
            self._turn_at = now() + _TURN_S
            self._look_at_processes()
            self._ask()
            self._feed(Tick())
            self._report()
            self._listen()
        if self._watch.state is State.READY and not self._process.alive():
            self._watch = replace(self._watch, state=State.FAILED, source=Source.PROCESS)
        self._report(final=True)
        if self._watch.state is State.READY:
            keep_start(self._task, self._began, str(self._watch.source), self._log.phases.times)
        return self._watch

    def _feed(self, event: Event) -> None:
        self._watch = step(self._watch, event, now())

    def _wait(self) -> bool:
        """Sleep until it is time to look again, or something happens; whether something did."""
        ready = {descriptor for descriptor, _ in self._poll.poll(self._look_ms)}
        if not ready:
            return False
        if self._process.fileno() in ready:
            self._feed(ProcessEnded(invocation_id=self._task.invocation_id))
        return True

    def _listen(self) -> None:
        """Wait for what there is to wait for now."""
        self._poll = select.poll()
        self._poll.register(self._stop, select.POLLIN)
        if self._watch.ended_at is None:
            self._poll.register(self._process, select.POLLIN)
        for request in self._probe.requests():
            self._poll.register(request, request.events())
        nearly = self._log.classifier.phase_name in _NEARLY
        self._look_ms = 1000 * (_LOOK_NEARLY_S if nearly else _LOOK_S)

    def _read(self) -> bool:
        if not self._log.read():
            return False
        before = self._watch.ready_line_at
        self._watch = replace(self._watch, silent_log=self._silent)
        self._feed(self._log.seen())
        if before is None and self._watch.ready_line_at is not None:
            hurry()
        return True

    def _look_at_processes(self) -> None:
        if now() - self._state_at < _STATE_S:
            return
        self._state_at = now()
        if not self._process.alive():
            self._feed(ProcessEnded(invocation_id=self._task.invocation_id))
        if self._defunct or now() - self._children_at >= _CHILDREN_S:
            self._children_at = now()
            before = self._defunct
            self._defunct = any(name.startswith(_RANKS) for name in defunct_children(self._task.main_pid))
            if before and self._defunct:  # twice: it is not just about to be waited for
                self._feed(ChildDefunct(invocation_id=self._task.invocation_id))

    def _ask(self) -> None:
        watch = self._watch
        answers = self._probe.step(
            now(), line_at=watch.ready_line_at, generation=watch.needs_generation and watch.ended_at is None
        )
        for answer in answers:
            if answer.status == 200:
                self._read()  # a failure text that came before this answer decides against it
                if not self._process.alive():
                    self._feed(ProcessEnded(invocation_id=self._task.invocation_id))
            self._answered = answer if answer.counts or self._answered is None else self._answered
            self._feed(
                HealthAnswered(
                    invocation_id=self._task.invocation_id,
                    status=answer.status,
                    own=answer.own,
                    counts=answer.counts,
                    generated=answer.generated,
                )
            )

    def _report(self, *, final: bool = False) -> None:
        self._extend()
        last, short, at = self._reported
        line_at = self._watch.ready_line_at
        if not final and (now() - at < _REPORT_S or (line_at is not None and now() - line_at < _REPORT_S)):
            return  # above all not between the ready line and the answer that is on its way
        text = status_line(self._log.classifier, self._watch, self._answered)
        if text == last:
            return
        brief = short_line(text)
        if final or brief != short:
            say(f"{stem(self._task.unit)}: {text}")
        self._reported = (text, brief, now())
        publish(self._task, self._verdict(text), text)

    def _extend(self) -> None:
        """Ask systemd for the time that the file's `extend` allows, from shortly before the deadline on."""
        watch, moment = self._watch, now()
        near = moment >= watch.deadline_at - _EXTEND_S
        if watch.extend_s and near and moment - self._extend_at >= _EXTEND_EVERY_S:
            self._extend_at = moment
            extend_timeout(_EXTEND_S)

    def _verdict(self, text: str) -> LiveVerdict:
        watch, log = self._watch, self._log.classifier
        cause = watch.cause if watch.cause != "none" or not log.decisive else str(log.decisive)
        if watch.source is Source.CHILDREN and cause == "none":
            cause = "child-died"
        return LiveVerdict(
            unit=self._task.unit,
            invocation_id=self._task.invocation_id,
            state=str(watch.state),
            phase=log.phase,
            detail=text,
            cause=cause,
            source=str(watch.source) if watch.source else None,
            since=time.time() - (now() - self._began),
            seconds=round(now() - self._began, 3) if watch.ended else None,
            capacity=dict(log.capacity),
            warnings=tuple({"name": w.name, "text": w.text, "advice": w.advice} for w in log.warnings),
            evidence=ready_evidence(watch, self._answered, self._log.losses),
            phases=tuple(asdict(phase) for phase in self._log.phases.times),
        )
