"""Ctrl-C while GLib is at work: an exception raised inside one of its callbacks is printed, and lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class DeferredInterrupt:
    """A block in which SIGINT only sets `requested`; its usual handler runs at the block's end."""

    def __init__(self) -> None:
        self.requested = False
        self._handler: Any = None

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True

    def __enter__(self) -> DeferredInterrupt:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self.requested:
                self._handler(signal.SIGINT, None)
