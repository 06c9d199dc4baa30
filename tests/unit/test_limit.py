"""When the recorder ends the automatic restarts: one before systemd's start limit."""

from __future__ import annotations

import pytest

from pd_units.ports import ActiveState, UnitStatus
from pd_units.starts import Start
from pd_units.supervise.limit import is_last_try


def status(restarts: int, burst: int = 6, interval_s: int = 1000) -> UnitStatus:
    return UnitStatus(
        unit="oak.service",
        load_state="loaded",
        active_state=ActiveState.DEACTIVATING,
        sub_state="stop-post",
        n_restarts=restarts,
        start_limit_burst=burst,
        start_limit_interval_us=interval_s * 1_000_000,
    )


def begun(*times: float) -> list[Start]:
    return [
        Start(unit="oak.service", invocation_id="", began=t, outcome="failed", seconds=1.0) for t in times
    ]


FIVE = (10.0, 20.0, 30.0, 40.0, 50.0)


@pytest.mark.parametrize("restarts", range(4))
def test_each_life_but_the_last_is_tried_again(restarts: int) -> None:
    assert not is_last_try(status(restarts), begun(*FIVE[: restarts + 1]), now=60.0)


def test_the_fifth_life_in_the_interval_is_the_last() -> None:
    assert is_last_try(status(4), begun(*FIVE), now=60.0)
    assert is_last_try(status(9), begun(1.0, 2.0, *FIVE), now=60.0)


def test_lives_that_began_before_the_interval_do_not_count() -> None:
    assert not is_last_try(status(4), begun(*FIVE), now=1010.0)
    assert not is_last_try(status(400), begun(*FIVE[1:], 990.0), now=1020.0)


def test_starts_by_hand_do_not_count() -> None:
    assert not is_last_try(status(0), begun(*FIVE), now=60.0)


def test_without_a_limit_there_is_no_last_try() -> None:
    assert not is_last_try(status(99, burst=0), begun(*FIVE), now=60.0)
    assert not is_last_try(status(99, burst=1), begun(*FIVE), now=60.0)
    assert not is_last_try(status(99, interval_s=0), begun(*FIVE), now=60.0)


def test_a_history_that_is_not_whole_leaves_it_to_systemd() -> None:
    assert not is_last_try(status(5), begun(*FIVE[1:]), now=60.0)
