"""The way back on a fake host: when there is one, where it leads, and what becomes of one that breaks off."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from deployments import NAME, SHARED, FakeHost
from pytest_mock import MockerFixture

from pd_units.adapters import files
from pd_units.adapters.files import write_json
from pd_units.cli.install import How, _Run
from pd_units.cli.rollback import _roll_back
from pd_units.errors import DeploymentError, ExitCode, HostError
from pd_units.generations import read_generations, write_outcome
from pd_units.goal import Goal, Installed
from pd_units.index import Index, IndexUnit, current_generation, index_path, index_to_json
from pd_units.install import conclude
from pd_units.manifest import Operation, begin_operation, read_operation
from pd_units.naming import Names, Role
from pd_units.prepare import Prepared
from pd_units.rollback import known_to_fail, roll_back_failed, stored_goal, target_of, way_back
from pd_units.uninstall import plan_uninstall, uninstall
from pd_units.waiting import Outcome


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.setattr(files, "_TRUSTED_UID", os.getuid())
    monkeypatch.setattr("pd_units.rollback.shared_units", lambda: SHARED)
    monkeypatch.setattr("pd_units.uninstall.shared_units", lambda: SHARED)
    tmp_path.chmod(0o755)
    return FakeHost(tmp_path)


class Power(Exception):
    """The process is gone at this point."""


def failed(host: FakeHost, fraction: str) -> Goal:
    units = host.units(fraction)
    host.manager.failing = {units[0].name}
    goal = host.goal(units)
    host.installer.apply(goal)
    host.manager.failing = set()
    return goal


def test_a_failed_install_goes_back_to_what_it_replaced(host: FakeHost):
    host.install(host.units("0.7"))
    goal = failed(host, "0.6")
    good = way_back(goal, ExitCode.UNIT_FAILED)
    assert good is not None
    assert good.number == 1
    assert way_back(goal, ExitCode.OK) is None


def test_a_first_install_has_nothing_to_go_back_to(host: FakeHost):
    assert way_back(failed(host, "0.6"), ExitCode.UNIT_FAILED) is None


def test_the_same_units_are_known_to_fail_only_once_rolled_back(host: FakeHost):
    host.install(host.units("0.7"))
    goal = failed(host, "0.6")
    assert known_to_fail(goal) is None
    write_outcome(host.names, 2, result="failed", rolled_back=True)
    known = known_to_fail(host.goal(host.units("0.6")))
    assert known is not None
    assert known.number == 2
    assert known_to_fail(host.goal(host.units("0.5"))) is None


@pytest.fixture
def back(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Callable[[Goal], Installed]:
    """What install does with a goal once it has failed: the way back, as the command line goes it."""

    def go(goal: Goal) -> Installed:
        good = way_back(goal, ExitCode.UNIT_FAILED)
        assert good is not None
        outcome = Outcome(exit_code=ExitCode.UNIT_FAILED, message="it has failed", reports=())
        done = conclude(goal, outcome, host.manager.clock, ends=False)
        return roll_back_failed(done, good, host.names, host.manager, host.installer, host.manager.clock)

    return go


def again(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """The next install of the units that failed, as the command line runs it."""
    monkeypatch.setattr("pd_units.cli.install.warnings_of", lambda *_: ())
    goal = host.goal(host.units("0.6"))
    prepared = Prepared(source=cast(Any, None), plan=cast(Any, None), goal=goal, checks=())
    return _Run(prepared, host.manager, How(wait=True, rollback=True, timeout_s=None, diff=False)).install()


def refuse_reload(host: FakeHost) -> Callable[[tuple[str, ...]], None]:
    def refuse(call: tuple[str, ...]) -> None:
        if call[0] == "reload":
            raise HostError("systemd does not answer", exit_code=ExitCode.NO_MANAGER)

    return refuse


def test_a_rollback_that_cannot_begin_is_taken_up_by_the_next_install(
    host: FakeHost, back: Callable[[Goal], Installed], monkeypatch: pytest.MonkeyPatch
):
    host.install(host.units("0.7"))
    goal = failed(host, "0.6")
    foreign = host.names.unit_dir / goal.rendered[0].name
    foreign.write_text("changed by hand\n")  # between the failure and the way back
    told = back(goal)
    assert (told.exit_code, told.result) == (ExitCode.ROLLBACK_FAILED, "rollback-failed")
    foreign.write_text(goal.rendered[0].text)
    done = again(host, monkeypatch)
    assert (done.exit_code, done.result, done.generation) == (ExitCode.UNIT_FAILED, "failed-before", 1)
    assert done.changed
    assert host.files() == {unit.name: unit.text for unit in host.units("0.7")}
    assert read_operation(host.names) is None
    assert current_generation(NAME, host.root) == 1
    assert not again(host, monkeypatch).changed


def test_a_rollback_that_breaks_off_once_more_is_44_and_goes_on(
    host: FakeHost, back: Callable[[Goal], Installed], monkeypatch: pytest.MonkeyPatch
):
    host.install(host.units("0.7"))
    goal = failed(host, "0.6")
    host.manager.before = refuse_reload(host)
    assert back(goal).exit_code is ExitCode.ROLLBACK_FAILED
    operation = read_operation(host.names)
    assert operation is not None
    assert (operation.kind, operation.generation) == ("rollback", 1)
    stuck = again(host, monkeypatch)
    assert (stuck.exit_code, stuck.result) == (ExitCode.ROLLBACK_FAILED, "rollback-failed")
    assert "systemd does not answer" in stuck.message
    host.manager.before = lambda _call: None
    assert again(host, monkeypatch).result == "failed-before"
    assert current_generation(NAME, host.root) == 1


@pytest.mark.parametrize("where", ["begin_operation", "write_outcome", "stored_goal"])
def test_a_kill_as_the_rollback_begins_leaves_no_dead_end(
    host: FakeHost, back: Callable[[Goal], Installed], monkeypatch: pytest.MonkeyPatch, where: str
):
    host.install(host.units("0.7"))
    goal = failed(host, "0.6")
    with monkeypatch.context() as cut:
        cut.setattr(f"pd_units.rollback.{where}", Mock(side_effect=Power))
        with pytest.raises(Power):
            back(goal)
    host.manager.failing = {goal.rendered[0].name} if where != "stored_goal" else set()
    # What was not marked yet is tried once more, and may be: its rollback had not begun.
    done = again(host, monkeypatch)
    assert (done.result, done.generation) in (("failed-before", 1), ("rollback-failed", 1))
    assert current_generation(NAME, host.root) == 1
    assert read_operation(host.names) is None


def test_a_generation_that_an_older_version_marked_too_early_is_gone_back_from(
    host: FakeHost, back: Callable[[Goal], Installed], monkeypatch: pytest.MonkeyPatch
):
    host.install(host.units("0.7"))
    goal = failed(host, "0.6")
    write_outcome(host.names, goal.index.generation, result="failed", rolled_back=True)
    assert again(host, monkeypatch).result == "failed-before"
    assert current_generation(NAME, host.root) == 1


def test_what_became_ready_after_all_is_not_known_to_fail(host: FakeHost):
    host.install(host.units("0.7"))
    failed(host, "0.6")
    write_outcome(host.names, 2, result="failed", rolled_back=True)
    host.install(host.units("0.6"))
    assert known_to_fail(host.goal(host.units("0.6"))) is None


def test_an_interrupted_rollback_is_the_one_to_finish(host: FakeHost, monkeypatch: pytest.MonkeyPatch):
    host.install(host.units("0.7"))
    host.install(host.units("0.6"))
    host.install(host.units("0.5"))
    monkeypatch.setattr("pd_units.rollback.current_generation", lambda *_: 3)
    assert target_of(host.names, None).number == 2
    begin_operation(host.names, Operation(kind="rollback", generation=1, began=0.0))
    assert target_of(host.names, None).number == 1


def left(host: FakeHost) -> list[int]:
    return [each.number for each in read_generations(host.names) if each.left is not None]


def test_a_rollback_that_changed_nothing_has_left_nothing(host: FakeHost, mocker: MockerFixture):
    host.install(host.units("0.7"))
    host.install(host.units("0.6"))
    goal = stored_goal(host.names, 1, host.manager)
    real = os.replace

    def full(*args: Any, **kwargs: Any) -> None:
        if str(args[1]).endswith("operation.json"):
            raise OSError(28, "No space left on device")
        real(*args, **kwargs)

    mocker.patch("os.replace", side_effect=full)
    told = _roll_back(goal, host.manager, None)
    mocker.stopall()
    assert "nothing was changed" in told.message
    assert (told.exit_code, told.result, told.changed) == (ExitCode.WRITE_FAILED, "failed", False)
    assert left(host) == []
    assert _roll_back(stored_goal(host.names, 1, host.manager), host.manager, None).result == "ready"
    assert left(host) == [2]
    assert _roll_back(stored_goal(host.names, 2, host.manager), host.manager, None).result == "ready"
    assert left(host) == []  # forward again: 1 is still what one can go back to


FILE = """
[deployment]
name = "unit-test-only"
retires = [{retires}]
[engine]
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"
[[standalone]]
gpus = [0]
port = {port}
"""


def claim(host: FakeHost, *, gpu: int, port: int) -> None:
    """Another deployment that is installed beside."""
    names = Names("other", host.root)
    unit = IndexUnit(
        unit="other-decode.service", role=Role.DECODE, url=f"http://127.0.0.1:{port}", gpus=(gpu,)
    )
    index = Index(name="other", generation=1, units=(unit,), timeout_s=1.0)
    write_json(index_path(names), index_to_json(index))


def kept(host: FakeHost, number: int, *, port: int = 31000, retires: str = "") -> None:
    """A generation's own claim: GPU 0, and a port."""
    place = host.names.state_dir / "generations" / str(number)
    index = json.loads((place / "index.json").read_text())
    index["units"][0] |= {"gpus": [0], "url": f"http://127.0.0.1:{port}"}
    write_json(place / "index.json", index)
    (place / "deployment.toml").write_text(FILE.format(port=port, retires=retires))


@pytest.mark.parametrize(
    ("gpu", "port", "what"),
    [(0, 40000, "GPU 0 belongs to other-decode"), (7, 31000, "port 31000 belongs to other-decode")],
)
def test_what_belongs_to_another_deployment_is_not_taken_back(
    host: FakeHost, back: Callable[[Goal], Installed], gpu: int, port: int, what: str
):
    host.install(host.units("0.7"))
    kept(host, 1)
    goal = failed(host, "0.6")
    claim(host, gpu=gpu, port=port)
    with pytest.raises(DeploymentError) as caught:
        stored_goal(host.names, 1, host.manager)
    assert caught.value.exit_code is ExitCode.PLACEMENT
    assert [what in str(fault) for fault in caught.value.faults] == [True]
    told = back(goal)
    assert told.exit_code is ExitCode.ROLLBACK_FAILED
    assert what in told.message
    assert host.files() == {unit.name: unit.text for unit in host.units("0.6")}


def test_what_is_free_or_retired_is_taken_back(host: FakeHost):
    host.install(host.units("0.7"))
    kept(host, 1, retires='"other-decode.service"')
    host.install(host.units("0.6"))
    claim(host, gpu=0, port=31000)
    assert stored_goal(host.names, 1, host.manager).index.generation == 1
    kept(host, 1)
    claim(host, gpu=1, port=31001)
    assert stored_goal(host.names, 1, host.manager).index.generation == 1


def test_what_was_uninstalled_is_not_gone_back_to_by_itself(host: FakeHost):
    host.install(host.units("0.7"))
    _, changes = plan_uninstall(host.names, host.manager)
    uninstall(
        host.names,
        changes,
        host.manager,
        host.manager.clock,
        host.said.append,
        purge=False,
        restore_retired=False,
    )
    assert way_back(failed(host, "0.6"), ExitCode.UNIT_FAILED) is None
    with pytest.raises(HostError, match="no good generation"):
        target_of(host.names, None)
    assert target_of(host.names, 1).number == 1
    host.install(host.units("0.5"))
    good = way_back(failed(host, "0.4"), ExitCode.UNIT_FAILED)
    assert good is not None
    assert good.number == 3
