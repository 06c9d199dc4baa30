"""The last automatic restart, one before systemd's start limit: an explicit start must never run into that.

Once the limit has tripped, systemd refuses `systemctl start` too, for as long as its interval lasts: five
loads of a large model take hours. So the recorder ends the restarts itself while one start is left. That one
is an explicit start's, whose watcher takes all earlier ones off the count.
"""

from __future__ import annotations

from collections.abc import Sequence

from pd_units.ports import UnitStatus
from pd_units.starts import Start


def is_last_try(status: UnitStatus, starts: Sequence[Start], *, now: float) -> bool:
    """Whether the life that ends at `now` (seconds since the epoch) was the last one to be tried by itself.

    `starts` are the unit's, the newest last. Only automatic restarts count, as in the limit; a unit without a
    limit is always tried again.
    """
    lives = status.start_limit_burst - 1
    if lives < 1 or not status.start_limit_interval_us or status.n_restarts < lives - 1:
        return False
    newest = starts[-lives:]
    return len(newest) == lives and now - newest[0].began < status.start_limit_interval_us / 1e6
