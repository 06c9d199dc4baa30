"""The gate before a router: it waits until every declared backend is ready now.

It waits rather than fails: a gate that failed would run into its start limit while a model loads, and the
router would stay down for good (docs/adr/0001).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pd_units.errors import PdUnitsError
from pd_units.naming import stem
from pd_units.ports import ActiveState, Manager, UnitStatus
from pd_units.supervise.command import (
    EX_OK,
    Stop,
    Task,
    Terminated,
    after_signal,
    connect,
    is_stopped,
    publish,
    say,
    wait_for,
)
from pd_units.verdicts import LiveVerdict, write_live

if TYPE_CHECKING:
    from pd_units.adapters.dbus import SystemdManager

_RECHECK_S = 1.0
_PASSED = "gate-passed"


def pass_gate(task: Task, stop: Stop) -> int:
    """Wait for the backends; the exit code."""
    manager: SystemdManager | None = None
    said, trouble, began = "", "", time.time()
    while True:
        try:
            stop.check()
            if manager is None:
                manager = connect()
                if manager is not None and is_stopped(manager.unit(task.unit)):
                    return EX_OK
            waiting, invocations = _look(manager, task)
            stop.check()
            if not waiting:
                _write(task, _PASSED, "", invocations, began)
                say("every backend is ready: the router may start")
                return EX_OK
            text = "waiting for " + ", ".join(waiting)
            if text != said:
                say(text)
                _write(task, "gate", text, {}, began)
                said = text
            if manager is not None:
                manager.pump(_RECHECK_S)
            else:
                wait_for(stop, _RECHECK_S)
            stop.check()
        except Terminated:
            return after_signal(None, task)
        except PdUnitsError as error:
            if error.brief != trouble:
                say(f"asking again: {error.brief}: {error.detail}")
            trouble = error.brief
            if manager is not None:
                manager.close()
            manager = None
            wait_for(stop, _RECHECK_S)


def _look(manager: Manager | None, task: Task) -> tuple[list[str], dict[str, str]]:
    """What is waited for, in words, and the invocations of what is ready."""
    if manager is None:
        return ["systemd to answer"], {}
    manager.watch([backend.unit for backend in task.backends])
    waiting: list[str] = []
    invocations: dict[str, str] = {}
    for backend in task.backends:
        status = manager.unit(backend.unit)
        if status.active_state is ActiveState.ACTIVE:
            invocations[backend.unit] = status.invocation_id
        else:
            waiting.append(f"{stem(backend.unit)} ({_words(status)})")
    return waiting, invocations


def _words(status: UnitStatus) -> str:
    if not status.exists:
        return "no such unit"
    if status.sub_state == "auto-restart":
        return "restarting"
    return {ActiveState.ACTIVATING: "starting", ActiveState.INACTIVE: "stopped"}.get(
        status.active_state, str(status.active_state)
    )


def _write(task: Task, state: str, text: str, invocations: dict[str, str], began: float) -> None:
    phase = "waiting for backends"
    verdict = LiveVerdict(
        unit=task.unit,
        invocation_id=task.invocation_id,
        state=state,
        phase=phase,
        detail=text,
        since=began,
        backends=invocations,
        phases=({"name": "gate", "text": phase, "at_s": 0.0},),
    )
    if state == _PASSED:
        write_live(task.names, verdict)  # the router's watch compares with it: without it, rather wait
    publish(task, verdict, text or "every backend is ready")
