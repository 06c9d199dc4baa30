"""The recorder of ends: runs in ExecStopPost=, after every life, also one that its watcher never saw.

It names the cause while the journal's lines are fresh, keeps it, and stops automatic restarts of a start that
cannot succeed unchanged (a bad argument, a missing model), and those of one that failed too often.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from pd_units.adapters.journal import Life, LifeReader
from pd_units.diagnosis import NOT_RETRIED, Cause, Classifier, Diagnosis, ExitStatus
from pd_units.errors import PdUnitsError
from pd_units.logtext import is_usage
from pd_units.naming import Role, stem
from pd_units.ports import JournalLine, Manager, UnitStatus
from pd_units.starts import Start, note_start, phases_from, read_starts
from pd_units.supervise.command import EX_OK, Task, connect, say
from pd_units.supervise.engine_log import rules
from pd_units.supervise.limit import is_last_try
from pd_units.verdicts import EndOfLife, LiveVerdict, read_live, write_end

# A dead process's last lines can reach the journal after its exit is seen.
_QUIET_S = 0.15
_GRACE_S = 0.6
_LOOK_S = 0.02
_LAST_LINES = 12
# systemd.exec(5): the program could not be executed.
_NOT_EXECUTED = "203"
# Of a start this much is read, and of a long life this much of its end.
_HEAD_ENTRIES = 400_000
_TAIL_ENTRIES = 5_000


def record(task: Task, environment: Mapping[str, str]) -> int:
    """Record the end of a life; always exit 0: a fault here must not change the unit's result."""
    try:
        _record(task, environment)
    except Exception as error:  # noqa: BLE001  (a fault of ours must not become the unit's)
        say(f"{stem(task.unit)}: its end was not recorded: {error!r}")
    return EX_OK


def _record(task: Task, environment: Mapping[str, str]) -> None:
    manager = connect()
    status = _status(manager, task)
    live = read_live(task.names, task.unit, task.invocation_id)
    requested = status is not None and status.job_type in ("stop", "restart")
    was_ready = live is not None and live.state == "ready"
    end = EndOfLife(
        unit=task.unit,
        invocation_id=task.invocation_id,
        ended=time.time(),
        was_ready=was_ready,
        requested=requested,
        cause="none",
        phase=live.phase if live is not None else None,
        service_result=environment.get("SERVICE_RESULT", ""),
        exit_code=environment.get("EXIT_CODE", ""),
        exit_status=environment.get("EXIT_STATUS", ""),
        warnings=tuple(live.warnings) if live is not None else (),
        capacity=dict(live.capacity) if live is not None else {},
    )
    if requested or (end.service_result == "success" and not _failed(live)):
        _write(task, end)
        return
    end = _with_cause(task, end, live, status, environment)
    _write(task, end)
    if was_ready and _soon(status):
        _note_crash(task, end.cause)
    if not was_ready:
        _keep_start(task, end, live, status)
    say(f"{stem(task.unit)} ended: {end.cause}" + (f": {end.advice}" if end.advice else ""))
    if manager is None:
        return
    if not end.retried:
        _give_up(task, f"{end.cause} comes back until the deployment is changed", manager, status)
    elif status is not None and is_last_try(status, read_starts(task.names, task.unit), now=end.ended):
        lives = status.start_limit_burst - 1
        _give_up(task, f"that was try {lives} of {lives}; an explicit start begins anew", manager, status)


def _give_up(task: Task, why: str, manager: Manager, before: UnitStatus | None) -> None:
    """Cancel the automatic restart, unless somebody has asked for another start since `before`.

    A job that was there before is the one of the start that failed.
    """
    present = manager.unit(task.unit)
    known = before.job_id if before is not None else present.job_id
    if present.job_id != known and present.job_type in ("start", "restart"):
        return
    say(f"{stem(task.unit)} is not restarted: {why}")
    manager.stop(task.unit)


def _with_cause(
    task: Task,
    end: EndOfLife,
    live: LiveVerdict | None,
    status: UnitStatus | None,
    environment: Mapping[str, str],
) -> EndOfLife:
    """The end of a life that nobody asked for, with its cause from the journal and the exit status."""
    classifier, lines = _read(task, status, with_manager=not _ended_by_watcher(live))
    timed_out = live is not None and live.state == "timed-out"
    diagnosis = classifier.diagnose(
        None if _ended_by_watcher(live) else _exit_status(environment),
        alive=False,
        stalled=live.cause if live is not None and timed_out else None,
    )
    cause = _cause(live, diagnosis)
    return replace(
        end,
        cause=cause,
        timed_out=timed_out,
        by_watcher=_ended_by_watcher(live),
        phase=diagnosis.phase,
        retried=task.role is Role.ROUTER or not _comes_back(cause, classifier, live, environment),
        advice=classifier.rules.advice.get(Cause(cause), ""),
        evidence=_evidence(live, diagnosis, environment),
        last_lines=tuple(lines),
        warnings=tuple({"name": w.name, "text": w.text, "advice": w.advice} for w in diagnosis.warnings),
        capacity=dict(diagnosis.capacity),
    )


def _comes_back(
    cause: str, classifier: Classifier, live: LiveVerdict | None, environment: Mapping[str, str]
) -> bool:
    """Whether the next start would fail of the same: of what was ready once it is not so, nor of a program
    that could not be executed at all, which may lie on a mount that is late.
    """
    was_ready = classifier.was_ready or (live is not None and live.state == "ready")
    return cause in NOT_RETRIED and not was_ready and environment.get("EXIT_STATUS") != _NOT_EXECUTED


def _write(task: Task, end: EndOfLife) -> None:
    """Record the end. Without a place to write to, a start that cannot succeed must still not be retried."""
    try:
        write_end(task.names, end)
    except PdUnitsError as error:
        say(f"{stem(task.unit)}: its end was not recorded: {error.brief}: {error.detail}")


def _soon(status: UnitStatus | None) -> bool:
    """Whether a life that had become ready ended soon after that."""
    from pd_units.generations import STABLE_S  # and with it all of planning and rendering: not for every end

    return status is not None and time.monotonic() - status.active_enter_mono_us / 1e6 < STABLE_S


def _keep_start(task: Task, end: EndOfLife, live: LiveVerdict | None, status: UnitStatus | None) -> None:
    """Add a start that did not become ready to the history; its watcher has added the others."""
    began_us = status.exec_main_start_mono_us if status is not None else 0
    lasted = time.monotonic() - began_us / 1e6 if began_us else 0.0
    seconds = live.seconds if live is not None and live.seconds is not None else lasted
    start = Start(
        unit=task.unit,
        invocation_id=task.invocation_id,
        began=round(end.ended - lasted, 3),
        outcome="timed-out" if live is not None and live.state == "timed-out" else "failed",
        seconds=round(seconds, 3),
        cause=end.cause,
        phases=phases_from(live.phases) if live is not None else (),
    )
    try:
        note_start(task.names, start)
    except PdUnitsError as error:
        say(f"{stem(task.unit)}: the start was not kept: {error.brief}: {error.detail}")


def _note_crash(task: Task, cause: str) -> None:
    from pd_units.generations import note_crash
    from pd_units.index import read_index

    index = read_index(task.names.deployment)
    if index is not None:
        note_crash(task.names, index.generation, task.unit, cause)


def _status(manager: Manager | None, task: Task) -> UnitStatus | None:
    try:
        return manager.unit(task.unit) if manager is not None else None
    except PdUnitsError as error:
        say(f"systemd did not answer: {error.brief}")
        return None


def _read(task: Task, status: UnitStatus | None, *, with_manager: bool) -> tuple[Classifier, list[str]]:
    """The life's journal, classified, and its last lines; waits briefly for late ones.

    Of a life that was ready and served for weeks only its start and its end are read. `with_manager`: PID 1's
    lines count; where the watcher has killed the engine, they would only tell of that.
    """
    classifier = Classifier(rules(), role=task.role.value, cut_lives=False)
    last: deque[str] = deque(maxlen=_LAST_LINES)
    life = Life(
        unit=task.unit,
        invocation_id=task.invocation_id,
        main_pid=status.exec_main_pid if status is not None else 0,
        since_mono_us=max(0, status.exec_main_start_mono_us - 1_000_000) if status is not None else 0,
        namespace=status.log_namespace if status is not None else "",
    )
    try:
        reader = LifeReader(life)
    except PdUnitsError as error:
        say(f"without the journal: {error.brief}: {error.detail}")
        return classifier, []

    def take(line: JournalLine) -> None:
        if with_manager or not line.of_manager:
            classifier.feed(line.text, manager=line.of_manager)
        last.extend(_worth_keeping(line))

    for line in reader.lines(_HEAD_ENTRIES):
        take(line)
        if classifier.was_ready:
            break
    try:
        if reader.skip_to_last(_TAIL_ENTRIES):
            last.clear()
    except OSError as error:
        say(f"part of the journal cannot be read: {error.strerror}")  # what follows can perhaps
    _read_end(reader, take)
    return classifier, list(last)


def _read_end(reader: LifeReader, take: Callable[[JournalLine], None]) -> None:
    """Read on until nothing has come for a moment: a dead process's last lines may be late."""
    began = quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < _QUIET_S and time.monotonic() - began < _GRACE_S:
        seen = False
        for line in reader.lines():
            take(line)
            seen = True
        if seen:
            quiet_since = time.monotonic()
        reader.refresh()
        time.sleep(_LOOK_S)  # the journal's own signal comes up to 250 ms late: this is the poll
    for line in reader.lines(final=True):
        take(line)
    reader.close()


def _worth_keeping(line: JournalLine) -> list[str]:
    if line.text.startswith("pd-units:") or "server_args=" in line.text or not line.text.strip():
        return []
    if is_usage(line.text):
        return []
    return [line.text.rsplit("\r", 1)[-1].rstrip()[:2000]]


def _exit_status(environment: Mapping[str, str]) -> ExitStatus | None:
    """systemd's EXIT_CODE and EXIT_STATUS: "exited" and a number, or "killed"/"dumped" and a signal name."""
    code, status = environment.get("EXIT_CODE", ""), environment.get("EXIT_STATUS", "")
    if code == "exited" and status.isdigit():
        return ExitStatus.parse(status)
    if code in ("killed", "dumped") and status:
        try:
            return ExitStatus.parse(status if status.startswith("SIG") else f"SIG{status}")
        except ValueError:
            return None  # a real-time signal
    return None


def _ended_by_watcher(live: LiveVerdict | None) -> bool:
    """Whether the watcher killed the engine itself: its exit status then says nothing."""
    return _failed(live) and live is not None and live.source != "process"


def _failed(live: LiveVerdict | None) -> bool:
    return live is not None and live.state in ("failed", "timed-out")


def _cause(live: LiveVerdict | None, diagnosis: Diagnosis) -> str:
    """What the log says; the watcher's word where it ended the life and the log names no cause."""
    if str(diagnosis.cause) in ("none", "unknown") and _failed(live) and live is not None:
        return live.cause if live.cause != "none" else "unknown"
    return "unknown" if str(diagnosis.cause) == "none" else str(diagnosis.cause)


def _evidence(
    live: LiveVerdict | None, diagnosis: Diagnosis, environment: Mapping[str, str]
) -> tuple[Mapping[str, str], ...]:
    rows = [{"text": each.text, "source": "journal"} for each in diagnosis.evidence]
    if live is not None and live.state in ("failed", "timed-out") and live.detail:
        rows.append({"text": live.detail, "source": "watcher"})
    code, status = environment.get("EXIT_CODE", ""), environment.get("EXIT_STATUS", "")
    if code:
        rows.append({"text": f"main process {code}, status {status}", "source": "systemd"})
    return tuple(rows)
