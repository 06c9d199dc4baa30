"""The ordered misbehaviour: what to print, where to hang, how to die."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from sglang.control import Control
from sglang.output import Output, die_now

SITE = "/opt/venv/lib/python3.12/site-packages/sglang/srt"
RANK_TRACEBACK = f'  File "{SITE}/managers/scheduler.py", line 4046, in run_scheduler_process\n'
MAIN_TRACEBACK = f'  File "{SITE}/entrypoints/http_server.py", line 2401, in launch_server\n'


def signal_number(name: Any) -> int | None:
    """9, "9", "KILL" or "SIGKILL" as a number; None for none."""
    if name is None:
        return None
    if isinstance(name, int) or str(name).isdigit():
        return int(name)
    return int(signal.Signals[f"SIG{str(name).removeprefix('SIG')}"])


class Trouble:
    """Makes trouble at the ordered phase. `pipe`: a rank's way to its main process; None in that one."""

    def __init__(self, control: Control, out: Output, pipe: int | None = None) -> None:
        self.control, self.out, self.pipe = control, out, pipe

    def at(self, phase: str) -> None:
        control = self.control
        if phase in control.prints:
            self.out.raw(control.prints[phase].rstrip("\n") + "\n")
        if control.flood.get("phase") == phase:
            self.flood(
                int(control.flood["lines"]), str(control.flood.get("text", "flood line {n} of the stub"))
            )
        if control.hang == phase:
            while True:
                time.sleep(3600)
        if control.fail.get("phase") == phase:
            self.fail(control.fail)

    def flood(self, lines: int, text: str) -> None:
        """Many lines in few writes, as a chatty library does."""
        chunk = 500
        for first in range(0, lines, chunk):
            numbers = range(first, min(first + chunk, lines))
            self.out.raw("".join(text.replace("{n}", str(n)) + "\n" for n in numbers))

    def fail(self, order: dict[str, Any]) -> None:
        """Dies as ordered: `exit`, `signal` are the main process's; without them, as a failing rank does."""
        text = str(order.get("text", "")).rstrip("\n")
        code, number = order.get("exit"), signal_number(order.get("signal"))
        own = signal_number(order.get("rank_signal"))
        if text and order.get("raw", False):
            self.out.raw(f"{text}\n")
        elif text and self.pipe is None:
            self.out.raw(f"Traceback (most recent call last):\n{MAIN_TRACEBACK}{text}\n")
        elif text:
            traceback = f"Traceback (most recent call last):\n{RANK_TRACEBACK}{text}\n"
            self.out.line(f"Scheduler hit an exception: {traceback}", "error")
        if self.pipe is None:
            die_now(code=code, signal=number)
        elif own is not None:
            die_now(signal=own)
        elif code is not None or number is not None:
            os.write(self.pipe, json.dumps({"die": {"code": code, "signal": number}}).encode() + b"\n")
        else:
            os.kill(os.getppid(), signal.SIGQUIT)
        time.sleep(3600)
