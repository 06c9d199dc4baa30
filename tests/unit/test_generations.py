"""Generations: which one is good, which one to go back to, which ones are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployments import NAME, FakeHost

from pd_units.adapters.files import write_json
from pd_units.errors import HostError
from pd_units.generations import (
    Result,
    content_digest,
    generations_dir,
    keep_judgements,
    last_good,
    note_crash,
    numbers,
    prune,
    read_generation,
    read_generations,
    stored_index,
    stored_units,
    write_generation,
    write_outcome,
    written_digests,
)
from pd_units.goal import index_at_work
from pd_units.index import index_path, index_to_json


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def generation(host: FakeHost, number: int, fraction: str, result: str = "ready", **more: object) -> None:
    units = host.units(fraction)
    goal = host.goal(units)
    index = goal.index.__class__(name=NAME, generation=number, units=goal.index.units, timeout_s=1.0)
    write_generation(host.names, index, "text", units, ["write x: y"], wall=1000.0 + number)
    write_outcome(host.names, number, result=result, **more)


def starts(host: FakeHost, unit: str, *rows: tuple[float, str]) -> None:
    path = host.names.state_dir / "starts" / f"{unit}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = [json.dumps({"began": began, "outcome": outcome, "seconds": 2.5}) for began, outcome in rows]
    path.write_text("\n".join(text) + "\n")


def test_a_generation_is_interrupted_until_it_has_ended(host: FakeHost):
    units = host.units("1")
    write_generation(host.names, host.goal(units).index, "text", units, [], wall=5.0)
    kept = read_generation(host.names, 1)
    assert kept is not None
    assert (kept.result, kept.good, kept.began) == (Result.INTERRUPTED, False, 5.0)
    assert kept.content == content_digest(units)
    assert stored_units(host.names, 1) == tuple(units)
    kept_files = {path.name: path.stat().st_mode & 0o777 for path in generations_dir(host.names).rglob("*")}
    assert kept_files == {
        "1": 0o755,
        "units": 0o755,
        "outcome.json": 0o644,
        "index.json": 0o644,
        "deployment.toml": 0o600,
        **{unit.name: 0o600 for unit in units},
    }


def test_the_last_good_one_is_what_was_replaced(host: FakeHost):
    generation(host, 1, "1")
    generation(host, 2, "2")
    generation(host, 3, "3", "failed", replaces=1)
    best = last_good(host.names, other_than=3)
    assert best is not None
    assert best.number == 1
    write_outcome(host.names, 1, result="failed")
    best = last_good(host.names, other_than=3)
    assert best is not None
    assert best.number == 2


def test_not_gone_back_to(host: FakeHost):
    generation(host, 1, "1", "failed")
    generation(host, 2, "2", left=7.0)  # an operator went away from it
    generation(host, 3, "3")
    note_crash(host.names, 3, "u.service", "segfault")  # died soon after it was ready
    generation(host, 4, "5")  # the very same as the one to go away from
    generation(host, 5, "5", "failed")
    assert last_good(host.names, other_than=5) is None
    kept = read_generation(host.names, 3)
    assert kept is not None
    assert kept.crashes[0]["cause"] == "segfault"


def test_nobody_waited_but_its_units_were_ready(host: FakeHost):
    generation(host, 1, "1", "installed")
    unit = host.units("1")[0].name
    starts(host, unit, (1002.0, "failed"), (1003.0, "ready"))
    (kept,) = read_generations(host.names)
    assert (kept.result, kept.seconds_to_ready) == (Result.READY, 2.5)
    starts(host, unit, (1003.0, "ready"), (1004.0, "failed"))
    (kept,) = read_generations(host.names)
    assert kept.result is Result.INSTALLED


def test_what_its_units_did_under_the_next_one_does_not_count(host: FakeHost):
    generation(host, 1, "1", "interrupted")
    generation(host, 50, "2", "installed")
    starts(host, host.units("1")[0].name, (1060.0, "ready"))
    first, second = read_generations(host.names)
    assert (first.result, second.result) == (Result.INTERRUPTED, Result.READY)
    write_outcome(host.names, 50, left=1055.0)
    assert read_generations(host.names)[1].result is Result.INSTALLED


def test_a_judgement_is_written_down_but_not_of_the_one_that_changes(host: FakeHost):
    generation(host, 1, "1", "installed")
    starts(host, host.units("1")[0].name, (1003.0, "ready"))
    keep_judgements(host.names, but=1)
    kept = read_generation(host.names, 1)
    assert kept is not None
    assert kept.result is Result.INSTALLED
    keep_judgements(host.names, but=2)
    kept = read_generation(host.names, 1)
    assert kept is not None
    assert kept.result is Result.READY


def test_ten_good_ones_are_kept_and_ten_others_and_the_current(host: FakeHost):
    for number in range(1, 31):
        generation(host, number, str(number), "ready" if number % 2 else "failed")
    prune(host.names, current=1)
    assert numbers(host.names) == (1, *range(11, 31))


def test_what_served_before_is_kept_however_often_another_was_gone_back_from(host: FakeHost):
    generation(host, 1, "1")
    for number in range(2, 20):
        generation(host, number, str(number))
        prune(host.names, current=number)
        good = last_good(host.names, other_than=number)
        assert good is not None
        assert good.number == 1
        write_outcome(host.names, number, left=1000.0 + number)
    assert numbers(host.names) == (1, *range(9, 20))


def test_what_the_current_one_replaced_is_kept(host: FakeHost):
    for number in range(1, 15):
        generation(host, number, str(number))
    generation(host, 15, "15", replaces=2)
    prune(host.names, current=15)
    assert numbers(host.names) == (2, *range(6, 16))


def test_half_a_generation_is_pruned_and_never_good(host: FakeHost):
    generation(host, 1, "1")
    (host.names.state_dir / "generations" / "2" / "units").mkdir(parents=True)
    assert read_generation(host.names, 2) is None
    assert numbers(host.names) == (1, 2)
    prune(host.names, current=1)
    assert numbers(host.names) == (1,)


def test_a_write_that_fails_leaves_nothing_of_it(host: FakeHost, mocker):
    units = host.units("1")
    index = host.goal(units).index
    mocker.patch("os.fsync", side_effect=OSError(28, "No space left on device"))
    with pytest.raises(HostError) as caught:
        write_generation(host.names, index, "text", units, [], wall=5.0)
    assert "space" in caught.value.hint
    assert not host.names.state_dir.exists()


@pytest.mark.parametrize(
    "damage", ["{", '{"result": "nonsense", "began": 1}', '{"began": "x", "result": "ready"}']
)
def test_a_damaged_outcome_is_no_generation(host: FakeHost, damage: str):
    generation(host, 1, "1")
    (host.names.state_dir / "generations" / "1" / "outcome.json").write_text(damage)
    assert read_generation(host.names, 1) is None


def test_one_of_a_newer_version_is_refused(host: FakeHost):
    generation(host, 1, "1")
    (host.names.state_dir / "generations" / "1" / "outcome.json").write_text('{"schema": 2}')
    with pytest.raises(HostError, match="newer pd-units"):
        read_generation(host.names, 1)


def test_what_is_missing_is_named_with_what_is_kept(host: FakeHost):
    generation(host, 1, "1")
    with pytest.raises(HostError) as caught:
        stored_units(host.names, 7)
    assert "generation 7" in caught.value.brief
    assert "kept: 1" in caught.value.detail


def test_every_text_that_was_ever_written_is_known(host: FakeHost):
    generation(host, 1, "1")
    generation(host, 2, "2")
    (unit,) = written_digests(host.names)
    assert len(written_digests(host.names)[unit]) == 2


@pytest.mark.parametrize(("result", "older"), [("installed", True), ("interrupted", True), ("ready", False)])
def test_processes_are_older_than_an_index_that_nobody_saw_ready(host: FakeHost, result: str, older: bool):
    generation(host, 1, "1")
    generation(host, 2, "2", result, replaces=1)
    now = stored_index(host.names, 2)
    write_json(index_path(host.names), index_to_json(now))
    at_work = index_at_work(host.names, now)
    assert at_work is not None
    assert at_work.generation == (1 if older else 2)
