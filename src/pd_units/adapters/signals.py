"""Signals that ask a verb to stop, as one exception: the record then says interrupted, not failed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# A finalizer, and the wait whose callbacks come from GLib: it ends within a second.
_DEAF = frozenset({"__del__", "pump"})


class Stopped(KeyboardInterrupt):
    """Somebody asked this process to stop; `signal` is the signal's name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.signal = name


class _Request:
    """The signal that has come, "" if none, and those that are ours to handle at the moment."""

    name = ""
    handled: tuple[signal.Signals, ...] = ()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Within it SIGINT, SIGTERM and SIGHUP raise Stopped. A signal that is ignored (nohup) stays ignored.

    Python drops an exception that is raised while it runs a finalizer or a callback from C, with a traceback
    on the terminal: there nothing is raised, and `raise_if_stopped` does it soon after.
    """
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    handled = tuple(number for number in _NUMBERS if before[number] is not signal.SIG_IGN)

    def on_signal(number: int, frame: FrameType | None) -> None:
        _Request.name = signal.Signals(number).name
        if not _is_inside(frame, _DEAF):
            raise Stopped(_Request.name)

    _Request.handled = handled
    for number in handled:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        _Request.name, _Request.handled = "", ()
        for number in handled:
            signal.signal(number, before[number])


def _is_inside(frame: FrameType | None, functions: frozenset[str]) -> bool:
    while frame is not None:
        if frame.f_code.co_name in functions:
            return True
        frame = frame.f_back
    return False


def raise_if_stopped() -> None:
    """Raises: Stopped if a signal has come that nothing has dealt with."""
    if _Request.name:
        raise Stopped(_Request.name)


def deal_with(error: KeyboardInterrupt) -> str:
    """The signal that an interruption came from; no further one disturbs the rest of `stoppable`'s block."""
    _Request.name = ""
    for number in _Request.handled:
        signal.signal(number, signal.SIG_IGN)
    return error.signal if isinstance(error, Stopped) else "SIGINT"
