"""The history of starts: kept, bounded, and survivable when damaged."""

from __future__ import annotations

import stat

from pd_units import starts
from pd_units.naming import Names
from pd_units.starts import (
    KEPT,
    PhaseLog,
    PhaseTime,
    Start,
    note_start,
    read_starts,
    typical_length_s,
    typical_s,
)

UNIT = "a-decode.service"


def a_start(number: int = 1, **changes) -> Start:
    phases = (PhaseTime("loading", "loading weights", 1.0), PhaseTime("warming", "warming up", 8.0))
    values = {"unit": UNIT, "invocation_id": f"{number:032x}", "began": 1000.0 + number, "outcome": "ready"}
    return Start(**{**values, "seconds": 10.0, "phases": phases, **changes})


def test_what_is_kept_comes_back_in_order_and_everybody_may_read_it(tmp_path):
    names = Names("a", tmp_path)
    written = [a_start(number, seconds=float(number)) for number in range(1, 4)]
    for start in written:
        note_start(names, start)
    assert list(read_starts(names, UNIT)) == written
    assert stat.S_IMODE(starts.starts_path(names, UNIT).stat().st_mode) == 0o644
    assert read_starts(names, "a-prefill.service") == ()


def test_only_the_newest_are_kept(tmp_path, monkeypatch):
    names = Names("a", tmp_path)
    monkeypatch.setattr(starts, "_REWRITE_BYTES", 20_000)
    for number in range(400):
        note_start(names, a_start(number))
    kept = read_starts(names, UNIT)
    assert [start.invocation_id for start in kept] == [f"{n:032x}" for n in range(400 - KEPT, 400)]
    assert starts.starts_path(names, UNIT).stat().st_size < 25_000


def test_a_torn_line_takes_no_other_with_it(tmp_path):
    names = Names("a", tmp_path)
    note_start(names, a_start(1))
    with starts.starts_path(names, UNIT).open("a") as file:
        file.write('{"unit": "a-decode.serv')  # power was lost here
    note_start(names, a_start(2))
    assert [start.began for start in read_starts(names, UNIT)] == [1001.0, 1002.0]


def test_lengths_of_phases_and_of_starts():
    first = a_start(1)
    assert [length for _, length in first.spans()] == [7.0, 2.0]
    twice = (*first.phases, PhaseTime("loading", "loading weights", 9.0))
    assert a_start(2, phases=twice).length_of("loading") == 8.0
    history = (
        first,
        a_start(2, seconds=20.0),
        a_start(3, seconds=90.0, outcome="failed"),
        a_start(4, seconds=14.0),
    )
    assert typical_s(history) == 14.0
    assert typical_s(history, before=f"{4:032x}") == 15.0
    assert typical_s((a_start(1, outcome="failed"),)) is None
    assert typical_length_s(history, "loading") == 7.0
    assert typical_length_s(history, "capturing") is None


def test_a_phase_begins_once():
    log = PhaseLog()
    for name, at_s in (("loading", 1.0), ("loading", 2.0), ("warming", 3.00049), ("loading", -1.0)):
        log.enter(name, name, at_s)
    assert [(time.name, time.at_s) for time in log.times] == [
        ("loading", 1.0),
        ("warming", 3.0),
        ("loading", 0.0),
    ]
