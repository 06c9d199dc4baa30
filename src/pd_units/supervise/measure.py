"""Measures where a backend that has just become ready runs, in a process beside: no start is held up.

Everybody may read the result, while only root could measure: /run/pd-units/NAME/UNIT.placement.json.
"""

from __future__ import annotations

import contextlib
import os
import sys

from pd_units.errors import PdUnitsError
from pd_units.naming import stem
from pd_units.supervise.command import EX_OK, Task, say

_NICE = 10


def measure_beside(task: Task) -> None:
    """Start the measurement and leave it to itself. It ends with the unit, whose control group it is in."""
    argv = [sys.executable, "-I", "-m", "pd_units.supervise", "measure"]
    argv += ["--deployment", task.names.deployment, "--unit", task.unit, "--role", str(task.role)]
    environment = {
        "INVOCATION_ID": task.invocation_id,
        "MAINPID": str(task.main_pid),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    try:
        pid = os.posix_spawn(sys.executable, argv, environment)
        # Idle until the start is through: on a busy machine it would take the time that systemd needs.
        # (The C library refuses this policy as an attribute of the spawn.)
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        say(f"{stem(task.unit)}: the measurement of its placement could not be started: {error.strerror}")


def measure(task: Task) -> int:
    """Measure, keep, and say in the journal what deviates; always exit 0."""
    from pd_units.index import read_index  # with planning and rendering: not for the watcher that starts this
    from pd_units.measuring import measure_and_keep

    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    try:
        index = read_index(task.names.deployment)
        if index is not None:
            found = measure_and_keep(index, task.unit, task.invocation_id, task.main_pid)
            for deviation in found.deviations if found is not None else ():
                say(f"wrong placement: {deviation}")
    except (PdUnitsError, OSError) as error:
        say(f"{stem(task.unit)}: its placement was not measured: {error}")
    return EX_OK
