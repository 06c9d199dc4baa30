"""In which order units are stopped and started: changes in, steps out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pd_units.changes import Change, ChangeSet, InstalledState, InstalledUnit, Kind, Ownership
from pd_units.differences import main_directives
from pd_units.index import Index, IndexUnit
from pd_units.naming import Role
from pd_units.ports import ActiveState, UnitStatus
from pd_units.received import Received
from pd_units.rendered import RenderedUnit
from pd_units.schedule import Do, Step, drained_router, exchanged, moved, rolling, schedule

P0, P1, D0, D1, R, T = "p0", "p1", "d0", "d1", "r", "target"
ROLES = {P0: Role.PREFILL, P1: Role.PREFILL, D0: Role.DECODE, D1: Role.DECODE, R: Role.ROUTER}


def rendered(*names: str) -> list[RenderedUnit]:
    return [RenderedUnit(name, "", ROLES[name]) for name in names]


def state(**active: ActiveState) -> InstalledState:
    def unit(name: str) -> InstalledUnit:
        status = UnitStatus(unit=name, load_state="loaded", active_state=active[name], sub_state="")
        return InstalledUnit(name=name, text="", ownership=Ownership.OURS, status=status)

    units = {name: unit(name) for name in active}
    target = InstalledUnit(name=T, text=None, ownership=Ownership.ABSENT)
    return InstalledState(units=units, target=target, shared={}, obsolete={}, retired={})


def changes(*pairs: tuple[Kind, str]) -> ChangeSet:
    return ChangeSet(tuple(Change(name, kind, "because") for kind, name in pairs))


UP, DOWN, LOADING = ActiveState.ACTIVE, ActiveState.INACTIVE, ActiveState.ACTIVATING
PAIR = rendered(P0, D0, R)
TWO_PAIRS = rendered(P0, P1, D0, D1, R)
ALL_UP = state(p0=UP, p1=UP, d0=UP, d1=UP, r=UP)


def flat(steps: tuple[Step, ...]) -> list[tuple[Do, tuple[str, ...], bool]]:
    return [(step.do, step.units, step.wait) for step in steps]


def test_a_first_install_starts_the_router_after_its_backends_and_waits_once():
    starts = changes((Kind.START, P0), (Kind.START, D0), (Kind.START, R), (Kind.START, T))
    steps = schedule(starts, PAIR, state(p0=DOWN, d0=DOWN, r=DOWN))
    assert flat(steps) == [(Do.START, (P0, D0), False), (Do.START, (R, T), False)]


def test_one_pair_is_restarted_with_its_router_drained_first_and_started_last():
    at_work = state(p0=UP, d0=UP, r=UP)
    planned = drained_router(changes((Kind.RESTART, D0), (Kind.KEEP, R)), PAIR, at_work)
    assert planned.units(Kind.RESTART) == (D0, R)
    assert planned.units(Kind.KEEP) == ()
    assert "no other pair serves" in planned.of(Kind.RESTART)[1].reason
    steps = schedule(planned, PAIR, at_work)
    assert flat(steps) == [(Do.STOP, (R,), False), (Do.RESTART, (D0,), False), (Do.START, (R,), False)]


def test_with_two_pairs_one_instance_at_a_time_decode_first_and_the_router_stays():
    planned = changes(*((Kind.RESTART, name) for name in (P0, P1, D0, D1)))
    assert drained_router(planned, TWO_PAIRS, ALL_UP) == planned
    steps = schedule(planned, TWO_PAIRS, ALL_UP)
    assert flat(steps) == [(Do.RESTART, (name,), True) for name in (D0, D1, P0, P1)]
    assert [step.spares for step in steps] == [(D1,), (D0,), (P1,), (P0,)]


def test_a_router_that_restarts_too_does_so_after_the_instances():
    planned = changes((Kind.RESTART, D0), (Kind.RESTART, D1), (Kind.RESTART, R))
    assert flat(schedule(planned, TWO_PAIRS, ALL_UP)) == [
        (Do.RESTART, (D0,), True),
        (Do.RESTART, (D1,), True),
        (Do.RESTART, (R,), False),
    ]


def test_force_restarts_everything_at_once():
    planned = changes(*((Kind.RESTART, name) for name in (P0, P1, D0, D1)))
    assert flat(schedule(planned, TWO_PAIRS, ALL_UP, force=True)) == [(Do.RESTART, (P0, P1, D0, D1), False)]


def test_what_is_down_serves_before_what_serves_is_taken_away():
    planned = changes((Kind.START, D1), (Kind.RESTART, D0))
    steps = schedule(planned, TWO_PAIRS, state(p0=UP, p1=UP, d0=UP, d1=DOWN, r=UP))
    assert flat(steps) == [(Do.START, (D1,), True), (Do.RESTART, (D0,), True)]


def test_what_waits_for_an_automatic_restart_comes_before_what_serves():
    planned = changes((Kind.RESTART, D0), (Kind.RESTART, D1))
    steps = schedule(planned, TWO_PAIRS, state(p0=UP, p1=UP, d0=UP, d1=LOADING, r=UP))
    assert flat(steps) == [(Do.RESTART, (D1,), True), (Do.RESTART, (D0,), True)]


def test_a_new_instance_is_ready_before_the_router_that_knows_it_restarts():
    planned = changes((Kind.START, D1), (Kind.RESTART, R))
    steps = schedule(planned, TWO_PAIRS, state(p0=UP, p1=UP, d0=UP, d1=DOWN, r=UP))
    assert flat(steps) == [(Do.START, (D1,), True), (Do.RESTART, (R,), False)]


@pytest.mark.parametrize("router", [DOWN, LOADING])
def test_without_a_router_at_work_nothing_serves_and_nothing_is_waited_for(router: ActiveState):
    planned = changes((Kind.RESTART, D0), (Kind.RESTART, D1), (Kind.START, R))
    at_work = state(p0=UP, p1=UP, d0=UP, d1=UP, r=router)
    assert not rolling(planned, TWO_PAIRS, at_work)
    steps = schedule(planned, TWO_PAIRS, at_work)
    # The router last: it would pass its gate with a backend that is then replaced.
    assert flat(steps) == [(Do.RESTART, (D0, D1), False), (Do.START, (R,), False)]


def test_nothing_to_do_is_no_step():
    assert schedule(changes((Kind.KEEP, P0)), PAIR, state(p0=UP, d0=UP, r=UP)) == ()


UNIT = "[Service]\nExecStart=/usr/bin/python3 -m engine --host {host} --port {port}\n"
PORTS = {P0: 30000, P1: 30010, D0: 30002, D1: 30012, R: 30001}


def two_pairs(host: str = "127.0.0.1", **ports: int) -> list[RenderedUnit]:
    def text(name: str) -> str:
        return UNIT.format(host=host if name == R else "127.0.0.1", port=ports.get(name, PORTS[name]))

    return [RenderedUnit(name, text(name), ROLES[name]) for name in PORTS]


def at_work(received: bool = False, **ports: int) -> InstalledState:
    units = {}
    for unit in two_pairs(**ports):
        installed = replace(ALL_UP.units[unit.name], text=unit.text)
        if received:
            got = Received(
                unit=unit.name, invocation_id="1", fragment="", directives=main_directives(unit.text)
            )
            installed = replace(installed, text=two_pairs()[list(PORTS).index(unit.name)].text, received=got)
        units[unit.name] = installed
    return replace(ALL_UP, units=units)


@pytest.mark.parametrize(
    "old",
    [{D0: 40002, D1: 40012}, {P0: 30010, P1: 30000}, {D0: 40002}, {R: 40001}],
    ids=["both decodes", "swapped", "one decode", "the router"],
)
@pytest.mark.parametrize(
    "received", [False, True], ids=["new files", "old processes of an interrupted install"]
)
def test_what_moves_to_another_port_is_restarted_behind_a_drained_router(old: dict[str, int], received: bool):
    """The running router knows the old addresses, and is itself at the old one."""
    planned = changes((Kind.RESTART, D0), (Kind.RESTART, D1), (Kind.RESTART, R))
    before = at_work(received, **old)
    assert set(moved(two_pairs(), before)) == set(old)
    assert not rolling(planned, two_pairs(), before)
    assert flat(schedule(planned, two_pairs(), before)) == [
        (Do.STOP, (R,), False),
        (Do.RESTART, (D0, D1), False),
        (Do.START, (R,), False),
    ]


def test_the_same_address_in_other_words_does_not_move():
    planned = changes((Kind.RESTART, D0), (Kind.RESTART, R))
    assert rolling(planned, two_pairs(host="0.0.0.0"), at_work())
    assert moved(two_pairs(host="10.0.0.1"), at_work()) == (R,)


def test_a_new_instance_is_not_looked_for_in_a_router_that_moves():
    planned = changes((Kind.START, D1), (Kind.RESTART, R))
    before = at_work(**{R: 40001})
    before = replace(before, units={**before.units, D1: state(d1=DOWN).units[D1]})
    start, restart = schedule(planned, two_pairs(), before)
    assert (start.units, start.wait, start.routed) == ((D1,), True, False)
    assert restart.units == (R,)
    start, _ = schedule(planned, two_pairs(), replace(before, units={**before.units, R: at_work().units[R]}))
    assert (start.wait, start.routed) == (True, True)


# ------------------------------------------------------------------------------ what one has, another gets
def index(**units: tuple[tuple[int, ...], int]) -> Index:
    rows = [
        IndexUnit(unit=name, role=ROLES[name], url=f"http://127.0.0.1:{port}", gpus=gpus)
        for name, (gpus, port) in units.items()
    ]
    return Index(name="n", generation=1, units=tuple(rows), timeout_s=1.0)


BEFORE = index(p0=((0, 1), 30000), p1=((2, 3), 30001), d0=((4, 5), 30002), d1=((6, 7), 30003))


@pytest.mark.parametrize(
    ("after", "handed"),
    [
        (BEFORE, set()),
        (index(p0=((0,), 30000), p1=((2, 3), 30001)), set()),  # less of its own
        (index(p0=((2, 3), 30000), p1=((0, 1), 30001)), {P0, P1}),
        (index(p0=((0, 1), 30001), p1=((2, 3), 30000)), {P0, P1}),
        (index(p0=((0, 1), 30000), d0=((3,), 30002)), {P1}),  # of one that is no longer declared
        (index(p0=((8, 9), 30000), d1=((0, 1), 30003)), {P0}),
    ],
)
def test_what_another_is_to_have(after: Index, handed: set[str]):
    assert exchanged(BEFORE, after) == handed
    assert exchanged(None, after) == set()


def test_what_is_handed_over_stops_before_anybody_starts():
    at_work = replace(ALL_UP, exchanged=frozenset({P0, D1}))
    planned = changes((Kind.RESTART, P0), (Kind.RESTART, D1), (Kind.RESTART, D0), (Kind.KEEP, R))
    drained = drained_router(planned, TWO_PAIRS, at_work)
    assert not rolling(drained, TWO_PAIRS, at_work)
    assert flat(schedule(drained, TWO_PAIRS, at_work)) == [
        (Do.STOP, (R,), False),
        (Do.STOP, (P0, D1), False),
        (Do.RESTART, (D0,), False),
        (Do.START, (P0, D1), False),
        (Do.START, (R,), False),
    ]


def test_an_added_one_takes_over_what_another_leaves():
    units = rendered(P0, P1)
    at_work = replace(state(p0=UP), exchanged=frozenset({P0}))
    planned = changes((Kind.START, P1), (Kind.RESTART, P0))
    assert flat(schedule(planned, units, at_work)) == [
        (Do.STOP, (P0,), False),
        (Do.START, (P1,), False),
        (Do.START, (P0,), False),
    ]
