"""Log lines as the real engine writes them: stamped, on stderr, access lines on stdout, one write each."""

from __future__ import annotations

import contextlib
import os
import sys
import time

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Output:
    """A process's view of the log. `prefix` is the rank's, such as ` TP0`; no level name is ever printed."""

    def __init__(self, level: str, prefix: str = "") -> None:
        self.threshold = LEVELS.get(level, 20)
        self.prefix = prefix

    def line(self, text: str, level: str = "info", *, access: bool = False) -> None:
        if LEVELS[level] >= self.threshold:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            self.raw(f"[{stamp}{self.prefix}] {text}\n", access=access)

    def raw(self, text: str, *, access: bool = False) -> None:
        """Text as it is: bars, tracebacks, C++ lines. A reader that has gone is not our problem."""
        data = text.encode()
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(1 if access else 2, data) :]

    def bar(self, what: str, done: int, total: int) -> None:
        """One state of a progress bar: no newline but a carriage return, as tqdm writes it."""
        if self.prefix in ("", " TP0"):
            percent = 100 * done // total
            tail = "\n" if done == total else ""
            self.raw(f"\r{what}: {percent:3d}% Completed | {done}/{total} [00:00<00:00,  9.00it/s]{tail}")


def die_now(*, code: int | None = None, signal: int | None = None) -> None:
    """Ends this process at once, by a signal or with a code; children go with it (parent-death signal)."""
    if signal is not None:
        os.kill(os.getpid(), signal)
        time.sleep(60)  # the signal may be slow to arrive; never run on
    sys.stderr.flush()
    os._exit(code if code is not None else 1)
