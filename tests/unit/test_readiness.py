"""The state machine: no order of events gives "ready" for a life that is dead, failing or superseded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pd_units.readiness import (
    HTTP_ALONE_S,
    SETTLE_DECISIVE_S,
    SETTLE_SYMPTOM_S,
    ChildDefunct,
    HealthAnswered,
    InvocationChanged,
    LogSeen,
    ProcessEnded,
    Source,
    State,
    Tick,
    UnitWatch,
    step,
)

ME, OTHER = "a" * 32, "b" * 32


def a_watch(**changes):
    values = {"invocation_id": ME, "started_at": 0.0, "timeout_s": 1800.0, "no_progress_s": 600.0}
    return UnitWatch(**{**values, **changes})


def log(**changes):
    return LogSeen(invocation_id=ME, **changes)


def health(status=200, own=True, of=ME, **more):
    return HealthAnswered(invocation_id=of, status=status, own=own, **more)


def play(watch, *events):
    """Each event is (time, event)."""
    for now, event in events:
        watch = step(watch, event, now)
    return watch


def test_ready_needs_the_line_and_the_health_of_this_life():
    watch = play(a_watch(), (5.0, log(ready_line=True, ticks=1)), (5.1, health()))
    assert (watch.state, watch.source) == (State.READY, Source.JOURNAL_AND_HTTP)


@pytest.mark.parametrize(
    "events",
    [
        [(5.0, log(ready_line=True))],
        [(5.0, health())],
        [(5.0, log(ready_line=True)), (5.1, health(status=503))],
        [(5.0, log(ready_line=True)), (5.1, health(status=None))],
        [(5.0, log(ready_line=True)), (5.1, health(own=False))],
        [(5.0, log(ready_line=True)), (5.1, health(of=OTHER))],
        [(5.0, LogSeen(invocation_id=OTHER, ready_line=True)), (5.1, health())],
        [(5.0, log(ready_line=True, warmup_failed=True)), (5.1, health())],
        [(5.0, log(ready_line=True, cause="nccl")), (5.1, health())],
        [(5.0, log(ready_line=True, symptom=True)), (5.1, health())],
        [(5.0, log(ready_line=True)), (5.05, ProcessEnded(invocation_id=ME)), (5.1, health())],
    ],
)
def test_not_ready(events):
    assert play(a_watch(), *events).state is State.WAITING


def test_http_alone_confirms_after_an_unbroken_span():
    watch = play(a_watch(), (0.5, health(status=503)), (1.0, health()), (1.0 + HTTP_ALONE_S / 2, health()))
    assert watch.state is State.WAITING
    watch = play(watch, (1.0 + HTTP_ALONE_S, health()))
    assert (watch.state, watch.source) == (State.READY, Source.HTTP_ALONE)


@pytest.mark.parametrize("bad", [health(status=503), health(status=None), health(own=False)])
def test_one_bad_answer_breaks_the_span(bad):
    watch = play(a_watch(), (0.5, health(status=503)), (1.0, health()), (6.0, bad), (7.0, health()))
    watch = play(watch, (12.0, health()))
    assert watch.state is State.WAITING
    assert play(watch, (7.0 + HTTP_ALONE_S, health())).state is State.READY


def test_a_server_that_never_said_not_yet_must_generate():
    """Engines before 0.4.10 answer 200 as soon as HTTP listens, minutes before they are ready."""
    watch = play(a_watch(), *((float(t), health()) for t in range(30)))
    assert watch.state is State.WAITING
    assert watch.needs_generation
    watch = play(watch, (30.0, health(generated=True)))
    assert (watch.state, watch.source) == (State.READY, Source.HTTP_ALONE)


def test_not_yet_of_another_server_proves_nothing():
    watch = play(a_watch(), (0.5, health(status=503, own=False)), *((float(t), health()) for t in range(30)))
    assert watch.state is State.WAITING


def test_an_answer_that_does_not_count_is_no_health():
    watch = play(a_watch(), (5.0, log(ready_line=True)), (5.1, health(counts=False)))
    assert watch.state is State.WAITING
    watch = play(a_watch(), *((float(t), health(counts=False)) for t in range(30)))
    assert not watch.needs_generation


def test_a_defunct_child_settles_then_fails_and_is_never_ready():
    watch = play(a_watch(), (5.0, ChildDefunct(invocation_id=ME)), (5.1, log(ready_line=True)))
    watch = play(watch, (5.2, health()))
    assert watch.state is State.WAITING
    watch = play(watch, (5.0 + SETTLE_SYMPTOM_S, Tick()))
    assert (watch.state, watch.source) == (State.FAILED, Source.CHILDREN)


def test_the_log_may_take_a_symptom_back():
    watch = play(a_watch(), (5.0, log(symptom=True)), (6.0, log()), (5.0 + SETTLE_SYMPTOM_S, Tick()))
    assert watch.state is State.WAITING


def test_a_clock_that_runs_out_beside_a_failure_text_is_a_failure():
    watch = play(a_watch(timeout_s=10.0), (9.9, log(cause="nccl")), (10.0, Tick()))
    assert (watch.state, watch.source) == (State.FAILED, Source.JOURNAL)


def test_real_progress_outlives_the_deadline_only_if_allowed_and_not_for_ever():
    moving = [(float(t), log(ticks=t)) for t in range(0, 200, 10)]
    assert play(a_watch(timeout_s=100.0, no_progress_s=60.0), *moving).state is State.TIMED_OUT
    allowed = a_watch(timeout_s=100.0, no_progress_s=60.0, extend_s=80.0)
    assert play(allowed, *moving[:15]).state is State.WAITING
    watch = play(allowed, *moving)
    assert (watch.state, watch.cause) == (State.TIMED_OUT, "timeout")
    stuck = play(allowed, *moving[:4], (100.0, Tick()))
    assert (stuck.state, stuck.cause) == (State.TIMED_OUT, "timeout")


def test_a_silenced_log_has_no_default_for_no_progress():
    assert play(a_watch(silent_log=True), (700.0, Tick())).state is State.WAITING
    declared = a_watch(silent_log=True, no_progress_declared=True)
    assert play(declared, (700.0, Tick())).cause == "no-progress"


def test_a_failed_warm_up_is_a_failure_though_the_ready_line_came():
    watch = play(a_watch(), (5.0, log(ready_line=True, warmup_failed=True)))
    watch = play(watch, (5.0 + SETTLE_DECISIVE_S, Tick()))
    assert watch.state is State.FAILED


def test_a_symptom_settles_before_it_is_a_failure():
    watch = play(a_watch(), (5.0, log(symptom=True)), (5.0 + SETTLE_SYMPTOM_S - 0.1, Tick()))
    assert watch.state is State.WAITING
    assert play(watch, (5.0 + SETTLE_SYMPTOM_S, Tick())).state is State.FAILED


def test_the_end_of_the_process_is_a_failure_within_half_a_second():
    watch = play(a_watch(), (5.0, ProcessEnded(invocation_id=ME)), (5.5, Tick()))
    assert (watch.state, watch.source) == (State.FAILED, Source.PROCESS)


def test_another_invocation_supersedes():
    watch = play(a_watch(), (5.0, InvocationChanged(invocation_id=OTHER)), (5.1, log(ready_line=True)))
    assert play(watch, (5.2, health())).state is State.SUPERSEDED


def test_the_whole_start_has_a_deadline():
    watch = a_watch(timeout_s=100.0, no_progress_s=60.0)
    ticking = [(float(t), log(ticks=t)) for t in range(0, 100, 10)]
    watch = play(watch, *ticking)
    assert watch.state is State.WAITING
    watch = play(watch, (100.0, Tick()))
    assert (watch.state, watch.cause) == (State.TIMED_OUT, "timeout")


def test_no_progress_counts_from_the_last_progress():
    watch = play(a_watch(), (100.0, log(ticks=1)), (699.0, log(ticks=1)))
    assert watch.state is State.WAITING
    watch = play(watch, (700.0, Tick()))
    assert (watch.state, watch.cause) == (State.TIMED_OUT, "no-progress")


def test_a_phase_may_be_silent_for_longer_unless_the_file_says_otherwise():
    capture = log(ticks=1, allowed_silence_s=1500.0)
    assert play(a_watch(), (100.0, capture), (1000.0, Tick())).state is State.WAITING
    declared = a_watch(no_progress_declared=True)
    assert play(declared, (100.0, capture), (1000.0, Tick())).state is State.TIMED_OUT


EVENTS = st.one_of(
    st.builds(
        LogSeen,
        invocation_id=st.sampled_from([ME, OTHER]),
        ready_line=st.booleans(),
        warmup_failed=st.booleans(),
        cause=st.sampled_from([None, None, None, "nccl"]),
        symptom=st.booleans(),
        ticks=st.integers(0, 5),
    ),
    st.builds(
        HealthAnswered,
        invocation_id=st.sampled_from([ME, OTHER]),
        status=st.sampled_from([None, 200, 503]),
        own=st.booleans(),
        counts=st.sampled_from([True, True, True, False]),
        generated=st.booleans(),
    ),
    st.builds(ProcessEnded, invocation_id=st.sampled_from([ME, OTHER])),
    st.builds(ChildDefunct, invocation_id=st.sampled_from([ME, OTHER])),
    st.builds(InvocationChanged, invocation_id=st.sampled_from([ME, OTHER])),
    st.just(Tick()),
)
RUNS = st.lists(st.tuples(st.floats(0.0, 30.0), EVENTS), max_size=40)


@settings(max_examples=400, deadline=None)
@given(RUNS)
def test_ready_never_without_its_evidence(run):
    watch, now = a_watch(), 0.0
    dead = superseded = False
    line = failing = False
    for delay, event in run:
        now += delay
        before = watch
        if isinstance(event, ProcessEnded | ChildDefunct) and event.invocation_id == ME:
            dead = True
        if isinstance(event, InvocationChanged) and event.invocation_id != ME:
            superseded = True
        if isinstance(event, LogSeen) and event.invocation_id == ME and not before.ended:
            line = line or event.ready_line
            failing = bool(event.warmup_failed or event.cause or event.symptom)
        watch = step(watch, event, now)
        if watch.state is State.READY and before.state is not State.READY:
            assert not dead and not superseded and not failing
            assert isinstance(event, HealthAnswered)
            assert (event.invocation_id, event.status, event.own, event.counts) == (ME, 200, True, True)
            assert line or watch.source is Source.HTTP_ALONE
        if before.ended:
            assert watch == before


@settings(max_examples=200, deadline=None)
@given(RUNS)
def test_events_of_another_life_change_nothing(run):
    mine = [(now, event) for now, event in run if getattr(event, "invocation_id", ME) == ME]
    others = [
        (now, replace(event, invocation_id=OTHER))
        for now, event in run
        if isinstance(event, LogSeen | HealthAnswered | ProcessEnded | ChildDefunct)
    ]
    base = play(a_watch(), *((float(i), e) for i, (_, e) in enumerate(mine)))
    watch = a_watch()
    for i, (_, event) in enumerate(mine):
        for _, noise in others[:3]:
            watch = step(watch, noise, float(i))
        watch = step(watch, event, float(i))
    assert watch == base
