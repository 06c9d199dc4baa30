"""The child processes: one scheduler a rank, and a detokenizer. They speak, fail and die on their own."""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sglang.control import Control
from sglang.output import Output
from sglang.script import RANK_PHASES, Rank
from sglang.trouble import Trouble

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


@dataclass
class Child:
    """A child as its parent knows it. `status` is set when it was reaped: -9 for SIGKILL."""

    name: str
    pid: int
    pipe: int
    ready: bool = False
    status: int | None = None
    rest: bytes = field(default=b"", repr=False)


@dataclass
class Death:
    """A rank asked the main process to die this way."""

    code: int | None
    signal: int | None


def _become(name: str) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NAME, name.encode()[:15])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _run_rank(rank: int, args: argparse.Namespace, control: Control, pipe: int, *, newer: bool) -> None:
    prefix = f" TP{rank}" if args.tp > 1 else ""
    _become(f"sglang::scheduler{prefix.replace(' ', '_')}")
    out = Output(args.level, prefix)
    trouble = Trouble(control, out, pipe) if rank == 0 else None
    story = Rank(args, control, out, trouble, newer=newer)
    for phase in RANK_PHASES:
        story.tell(phase)
    os.write(pipe, b'{"ready": true}\n')


def _run_detokenizer(pipe: int) -> None:
    _become("sglang::detokenizer")


def _spawn(name: str, body: Callable[[int], None], closing: list[int]) -> Child:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return Child(name, pid, read_end)
    try:
        for descriptor in [*closing, read_end]:
            os.close(descriptor)
        body(write_end)
        while True:
            time.sleep(3600)
    finally:
        os._exit(1)


class Children:
    """All children; `wait_ready` for the load, `lost` for what died since."""

    def __init__(
        self, args: argparse.Namespace, control: Control, *, newer: bool, closing: list[int]
    ) -> None:
        self.all: list[Child] = []
        for rank in range(args.tp):
            body = functools.partial(_run_rank, rank, args, control, newer=newer)
            self.all.append(_spawn(f"scheduler_{rank}", body, [*closing, *self.pipes()]))
        self.all.append(_spawn("detokenizer", _run_detokenizer, [*closing, *self.pipes()]))
        self.all[-1].ready = True

    def pipes(self) -> list[int]:
        return [child.pipe for child in self.all if child.status is None]

    def read(self, ready: list[int]) -> Death | None:
        """Takes in what the children said; an end of file means that one died."""
        for child in self.all:
            if child.pipe not in ready or child.status is not None:
                continue
            data = os.read(child.pipe, 4096)
            if not data:
                child.status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
                continue
            *lines, child.rest = (child.rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "die" in message:
                    return Death(message["die"]["code"], message["die"]["signal"])
                child.ready = True
        return None

    def lost(self) -> Child | None:
        return next((child for child in self.all if child.status is not None), None)

    def wait_ready(self) -> Death | Child | None:
        """None when all are loaded; else the first child that died, or the ordered death."""
        while not all(child.ready for child in self.all):
            ready, _, _ = select.select(self.pipes(), [], [])
            death = self.read(ready)
            if death or self.lost():
                return death or self.lost()
        return None

    def kill(self) -> None:
        for child in self.all:
            if child.status is None:
                os.kill(child.pid, signal.SIGKILL)
