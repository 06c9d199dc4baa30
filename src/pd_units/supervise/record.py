"""The recorder of ends: runs in ExecStopPost=, after every life, also one that its watcher never saw.

It names the cause while the journal's lines are fresh, keeps it, and stops automatic restarts of a start that
cannot succeed unchanged (a bad argument, a missing model).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pd_units.adapters.journal import Life, LifeReader
from pd_units.diagnosis import NOT_RETRIED, Classifier, Diagnosis, ExitStatus, load_rules
from pd_units.errors import PdUnitsError
from pd_units.generations import STABLE_S, note_crash
from pd_units.index import read_index
from pd_units.logtext import is_usage
from pd_units.naming import Role, stem
from pd_units.ports import JournalLine, Manager, UnitStatus
from pd_units.supervise.command import EX_OK, Task, connect, say
from pd_units.verdicts import EndOfLife, LiveVerdict, read_live, write_end

# A dead process's last lines can reach the journal after its exit is seen.
_QUIET_S = 0.15
_GRACE_S = 0.6
_LOOK_S = 0.02
_LAST_LINES = 12


def record(task: Task, environment: Mapping[str, str]) -> int:
    """Record the end of a life; always exit 0: a fault here must not change the unit's result."""
    try:
        _record(task, environment)
    except (PdUnitsError, OSError) as error:
        say(f"{stem(task.unit)}: its end was not recorded: {error}")
    return EX_OK


def _record(task: Task, environment: Mapping[str, str]) -> None:
    manager = connect()
    status = _status(manager, task)
    live = read_live(task.names, task.unit, task.invocation_id)
    classifier, lines = _read(task, status)
    requested = status is not None and status.job_type in ("stop", "restart")
    was_ready = live is not None and live.state == "ready"
    result = environment.get("SERVICE_RESULT", "")
    exit_status = None if _ended_by_watcher(live) else _exit_status(environment)
    clean = requested or (result == "success" and not _failed(live))
    diagnosis = classifier.diagnose(exit_status, alive=False)
    cause = "none" if clean else _cause(live, diagnosis)
    retried = task.role is Role.ROUTER or cause not in NOT_RETRIED
    end = EndOfLife(
        unit=task.unit,
        invocation_id=task.invocation_id,
        ended=time.time(),
        was_ready=was_ready,
        requested=requested,
        cause=cause,
        phase=diagnosis.phase,
        retried=retried,
        service_result=result,
        exit_code=environment.get("EXIT_CODE", ""),
        exit_status=environment.get("EXIT_STATUS", ""),
        advice="" if clean else diagnosis.advice,
        evidence=() if clean else _evidence(live, diagnosis, environment),
        last_lines=() if clean else tuple(lines),
        warnings=tuple({"name": w.name, "text": w.text, "advice": w.advice} for w in diagnosis.warnings),
        capacity=dict(diagnosis.capacity),
    )
    write_end(task.names, end)
    if was_ready and not clean and _soon(live):
        _note_crash(task, cause)
    if clean:
        return
    say(f"{stem(task.unit)} ended: {cause}" + (f": {end.advice}" if end.advice else ""))
    if not retried and manager is not None:
        say(f"{stem(task.unit)} is not restarted: {cause} comes back until the deployment is changed")
        manager.stop(task.unit)


def _soon(live: LiveVerdict | None) -> bool:
    """Whether a life that had become ready ended soon after that."""
    return live is not None and time.time() - live.since - (live.seconds or 0.0) < STABLE_S


def _note_crash(task: Task, cause: str) -> None:
    index = read_index(task.names.deployment)
    if index is not None:
        note_crash(task.names, index.generation, task.unit, cause)


def _status(manager: Manager | None, task: Task) -> UnitStatus | None:
    try:
        return manager.unit(task.unit) if manager is not None else None
    except PdUnitsError as error:
        say(f"systemd did not answer: {error.brief}")
        return None


def _read(task: Task, status: UnitStatus | None) -> tuple[Classifier, list[str]]:
    """The life's journal, classified, and its last lines; waits briefly for late ones."""
    classifier = Classifier(load_rules(), role=task.role.value, cut_lives=False)
    last: list[str] = []
    life = Life(
        unit=task.unit,
        invocation_id=task.invocation_id,
        main_pid=status.exec_main_pid if status is not None else 0,
        since_us=_since_us(status),
    )
    reader = LifeReader(life)
    began = quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < _QUIET_S and time.monotonic() - began < _GRACE_S:
        for line in reader.lines():
            classifier.feed(line.text)
            last = (last + _worth_keeping(line))[-_LAST_LINES:]
            quiet_since = time.monotonic()
        reader.process()
        time.sleep(_LOOK_S)  # the journal's own signal comes up to 250 ms late: this is the poll
    reader.close()
    return classifier, last


def _worth_keeping(line: JournalLine) -> list[str]:
    if line.text.startswith("pd-units:") or "server_args=" in line.text or not line.text.strip():
        return []
    if is_usage(line.text):
        return []
    return [line.text.rsplit("\r", 1)[-1].rstrip()[:2000]]


def _since_us(status: UnitStatus | None) -> int:
    if status is None or not status.exec_main_start_mono_us:
        return 0
    offset_us = (time.time_ns() - time.monotonic_ns()) // 1000
    return status.exec_main_start_mono_us + offset_us - 1_000_000


def _exit_status(environment: Mapping[str, str]) -> ExitStatus | None:
    """systemd's EXIT_CODE and EXIT_STATUS: "exited" and a number, or "killed"/"dumped" and a signal name."""
    code, status = environment.get("EXIT_CODE", ""), environment.get("EXIT_STATUS", "")
    if code == "exited" and status.isdigit():
        return ExitStatus.parse(status)
    if code in ("killed", "dumped") and status:
        return ExitStatus.parse(status if status.startswith("SIG") else f"SIG{status}")
    return None


def _ended_by_watcher(live: LiveVerdict | None) -> bool:
    """Whether the watcher killed the engine itself: its exit status then says nothing."""
    return _failed(live) and live is not None and live.source != "process"


def _failed(live: LiveVerdict | None) -> bool:
    return live is not None and live.state in ("failed", "timed-out")


def _cause(live: LiveVerdict | None, diagnosis: Diagnosis) -> str:
    """The watcher's word where it ended the life (a clock, a decisive text); else what the log says."""
    if live is not None and live.state == "timed-out":
        return live.cause
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
