"""`python -I -m pd_units.supervise gate|watch|record`: the commands in the units' Exec lines."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

# The unit's environment is the engine's: a loader path or module path in it must not steer code that runs
# as root. `python -I` ignores Python's own variables; the rest goes here, before anything else is imported.
_KEPT = ("INVOCATION_ID", "MAINPID", "NOTIFY_SOCKET", "SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS")
_KEPT_VALUES = {name: os.environ[name] for name in _KEPT if name in os.environ}
os.environ.clear()
os.environ.update(_KEPT_VALUES, PATH="/usr/sbin:/usr/bin:/sbin:/bin", LANG="C.UTF-8")

# A stop may come while the rest is imported: if it killed us, a unit that is stopped would be `failed`. Until
# here the signal is ignored, and lost (the units' Exec lines): gate and watcher ask systemd once.
EARLY: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _frame: EARLY.append(number))

from pd_units.supervise.command import main  # noqa: E402  (after the environment was dropped)

code = main(sys.argv[1:], EARLY)
with contextlib.suppress(OSError):
    sys.stdout.flush()
# Not sys.exit: a start waits, and GLib's own thread can crash an interpreter that is being taken down.
os._exit(code)
