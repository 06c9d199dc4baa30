"""The host's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """`ports.Clock` of this host."""

    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()
