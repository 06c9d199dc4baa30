"""A manager that outlives its own restart: after `daemon-reexec`, or a restart of the bus, calls go on.

A call that gets no answer is made again for a while. Those that queue a job are made again only if the
manager shows no trace of the first one, so that nothing is restarted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pd_units.adapters.signals import raise_if_stopped
from pd_units.errors import ExitCode, HostError
from pd_units.ports import ActiveState, Manager, UnitStatus

T = TypeVar("T")
_PATIENCE_S = 20.0
_PAUSE_S = 0.1


class PatientManager:
    """`ports.Manager` before another one, which may be away for a moment."""

    def __init__(self, inner: Manager, *, patience_s: float = _PATIENCE_S) -> None:
        self._inner, self._patience_s = inner, patience_s

    def _again(self, call: Callable[[], T], *, done: Callable[[], T | None] = lambda: None) -> T:
        """The call's answer. After a call without one, `done` may tell that it took effect all the same.

        Raises: HostError 30 if there is still no answer after the patience; every other error at once.
        """
        deadline = time.monotonic() + self._patience_s
        unanswered = False
        while True:
            raise_if_stopped()
            try:
                if unanswered:
                    answer = done()
                    if answer is not None:
                        return answer
                return call()
            except HostError as error:
                if error.exit_code is not ExitCode.NO_MANAGER or time.monotonic() >= deadline:
                    raise
                unanswered = True
                self._pause()

    def _pause(self) -> None:
        """A moment; a connection that was closed is opened again, if it can be."""
        try:
            self._inner.pump(_PAUSE_S)
        except HostError:
            time.sleep(_PAUSE_S)  # nobody to wait on: this is the poll for the manager's return

    def version(self) -> int:
        """As the inner one's."""
        return self._again(self._inner.version)

    def unit(self, name: str) -> UnitStatus:
        """As the inner one's."""
        return self._again(lambda: self._inner.unit(name))

    def start(self, name: str) -> str:
        """As the inner one's."""

        def started() -> str | None:
            status = self._inner.unit(name)
            runs = status.active_state in (ActiveState.ACTIVE, ActiveState.ACTIVATING)
            return name if runs or status.job_type == "start" else None

        return self._again(lambda: self._inner.start(name), done=started)

    def stop(self, name: str) -> str:
        """As the inner one's."""

        def stopped() -> str | None:
            status = self._inner.unit(name)
            down = status.active_state in (ActiveState.INACTIVE, ActiveState.FAILED, ActiveState.DEACTIVATING)
            return name if down or status.job_type == "stop" else None

        return self._again(lambda: self._inner.stop(name), done=stopped)

    def restart(self, name: str) -> str:
        """As the inner one's."""
        before = self.unit(name)

        def restarted() -> str | None:
            status = self._inner.unit(name)
            other = status.invocation_id != before.invocation_id
            return name if other or status.job_type in ("start", "restart", "stop") else None

        return self._again(lambda: self._inner.restart(name), done=restarted)

    def job_result(self, job: str) -> str | None:
        """As the inner one's."""
        return self._inner.job_result(job)

    def reset_failed(self, name: str) -> None:
        """As the inner one's."""
        self._again(lambda: self._inner.reset_failed(name))

    def reload(self) -> None:
        """As the inner one's."""
        self._again(self._inner.reload)

    def enable(self, names: Sequence[str]) -> bool:
        """As the inner one's."""
        return self._again(lambda: self._inner.enable(names))

    def disable(self, names: Sequence[str]) -> bool:
        """As the inner one's."""
        return self._again(lambda: self._inner.disable(names))

    def unit_file_state(self, name: str) -> str:
        """As the inner one's."""
        return self._again(lambda: self._inner.unit_file_state(name))

    def watch(self, names: Iterable[str]) -> None:
        """As the inner one's."""
        every = tuple(names)
        self._again(lambda: self._inner.watch(every))

    def pump(self, timeout_s: float) -> None:
        """As the inner one's."""
        self._again(lambda: self._inner.pump(timeout_s))
        raise_if_stopped()
