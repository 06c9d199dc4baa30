"""Signals that ask a verb to stop, as one exception: the record then says interrupted, not failed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """Somebody asked this process to stop; `signal` is the signal's name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.signal = name


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Within it the first SIGINT, SIGTERM or SIGHUP raises Stopped; later ones let its clean-up go on.

    A signal that is ignored (nohup) stays ignored.
    """
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    handled = [number for number in _NUMBERS if before[number] is not signal.SIG_IGN]

    def on_signal(number: int, _frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    for number in handled:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
