"""Install and rollback on a fake host: what is written when, and what stays of what breaks off."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from deployments import NAME, FakeHost

from pd_units.adapters import files
from pd_units.adapters.files import read_json
from pd_units.adapters.signals import Stopped
from pd_units.changes import Kind
from pd_units.errors import ExitCode, HostError, TemplateError
from pd_units.generations import read_generation
from pd_units.index import current_generation, index_path
from pd_units.manifest import (
    Phase,
    manifest_path,
    operation_path,
    read_manifest,
    read_operation,
)
from pd_units.naming import Role
from pd_units.placing import retired_path


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.setattr(files, "_TRUSTED_UID", os.getuid())
    tmp_path.chmod(0o755)
    return FakeHost(tmp_path)


def test_a_bare_host_gets_it_all_and_a_second_install_nothing(host: FakeHost):
    units = host.units("0.7")
    done = host.install(units)
    assert (done.exit_code, done.generation, done.result, done.changed) == (0, 1, "ready", True)
    assert host.files() == {unit.name: unit.text for unit in units}
    assert read_operation(host.names) is None
    assert current_generation(NAME, host.root) == 1
    assert set(read_manifest(manifest_path(host.names))) == set(host.files())
    assert host.manager.asked("start") == [units[0].name, host.names.target]
    calls = len(host.manager.calls)
    again = host.install(units)
    assert (again.exit_code, again.result, again.changed, again.generation) == (0, "unchanged", False, 1)
    assert len(host.manager.calls) == calls


@pytest.mark.parametrize("text", [None, "{"])
def test_an_index_that_is_lost_is_written_anew_by_an_install_of_the_same(host: FakeHost, text: str | None):
    host.install(host.units("0.7"))
    host.install(host.units("0.6"))
    path = index_path(host.names)
    before = path.read_text()
    path.unlink()
    if text is not None:
        path.write_text(text)
    done = host.install(host.units("0.6"))
    assert (done.result, done.generation) == ("unchanged", 2)
    assert path.read_text() == before
    assert read_operation(host.names) is None


def test_the_recovery_is_enabled_before_the_operation_begins(host: FakeHost):
    begun: list[tuple[tuple[str, ...], bool]] = []
    host.manager.before = lambda call: begun.append((call, operation_path(host.names).exists()))
    host.install(host.units("0.7"))
    assert begun[0] == (("enable", "pd-units-recover.service"), False)
    assert all(open_ for call, open_ in begun[1:])
    assert [call[0] for call, _ in begun] == ["enable", "enable", "reload", "start", "start"]


def test_a_changed_unit_is_written_read_and_restarted(host: FakeHost):
    host.install(host.units("0.7"))
    host.manager.calls.clear()
    done = host.install(host.units("0.6"))
    assert (done.generation, done.result) == (2, "ready")
    assert host.manager.calls == [("reload",), ("restart", host.units("0.6")[0].name)]


def test_what_waits_for_an_automatic_restart_is_stopped_before_its_file_changes(host: FakeHost):
    units = host.units("0.7")
    host.install(units)
    host.manager.crash(units[0].name, again=True)
    host.manager.calls.clear()
    texts: list[str] = []
    host.manager.before = lambda call: texts.append(f"{call[0]} {next(iter(host.files().values()))[-60:]}")
    host.install(host.units("0.6"))
    assert [call[0] for call in host.manager.calls] == ["stop", "reload", "restart"]
    assert "0.7" in texts[0]
    assert "0.6" in texts[1]


def test_what_is_no_longer_declared_is_stopped_disabled_and_removed(host: FakeHost):
    host.install(host.units("0.7", count=2))
    gone = host.units("0.7", count=2)[1].name
    host.install(host.units("0.7", count=2)[:1])
    assert list(host.files()) == [host.units("0.7", count=2)[0].name]
    assert gone in host.manager.asked("stop")
    assert gone in host.manager.asked("disable")


def test_no_start_leaves_what_runs_and_the_next_install_takes_it_away(host: FakeHost):
    old = host.names.unit_dir / "old.service"
    old.write_text("[Service]\nExecStart=/bin/old\n[Install]\nWantedBy=multi-user.target\n")
    host.manager.enable(["old.service"])
    host.manager.start("old.service")
    host.install(host.units("0.7", count=2))
    kept, gone = (unit.name for unit in host.units("0.7", count=2))
    host.manager.crash(kept, again=True)
    host.manager.calls.clear()
    units = host.units("0.6", count=2)[:1]
    for _ in range(2):
        host.installer.apply(host.goal(units, start=False, retires=["old.service"]), wait=False)
        assert host.manager.asked("stop") == host.manager.asked("start") == []
        assert {host.manager.unit(name).active_state for name in (gone, "old.service")} == {"active"}
        assert {host.manager.unit(name).unit_file_state for name in (gone, "old.service")} == {"disabled"}
        assert gone in host.files()
    host.installer.apply(host.goal(units, retires=["old.service"]))
    assert set(host.manager.asked("stop")) == {gone, "old.service"}
    assert list(host.files()) == [kept]
    kept_of_it = {"active": True, "enabled": True, "path": str(host.names.unit_dir / "old.service")}
    assert read_json(retired_path(host.names)) == {"old.service": kept_of_it}


class Power(Exception):
    """The process is gone at this point."""


@pytest.mark.parametrize("verb", ["enable", "reload", "start"])
def test_what_broke_off_is_finished_by_the_next_install(host: FakeHost, verb: str):
    units = host.units("0.7")

    def cut(call: tuple[str, ...]) -> None:
        if call[0] == verb and call[1:2] != ("pd-units-recover.service",):
            raise Power

    host.manager.before = cut
    with pytest.raises(Power):
        host.apply(host.goal(units))
    operation = read_operation(host.names)
    assert operation is not None
    assert (operation.kind, operation.generation) == ("install", 1)
    assert operation.phase is (Phase.UNITS if verb == "start" else Phase.FILES)
    host.manager.before = lambda _call: None
    goal = host.goal(units)
    assert goal.index.generation == 1
    assert bool(goal.changes.of(Kind.RELOAD)) is (verb != "start")
    assert host.install(units).result == "ready"
    assert read_operation(host.names) is None


@pytest.mark.parametrize("where", ["remove", "StagedFiles.commit"])
@pytest.mark.parametrize("done", [0, 1])
def test_what_is_no_longer_declared_goes_wherever_it_breaks_off(
    host: FakeHost, mocker, where: str, done: int
):
    """A unit file that no record names could be started for ever, on GPUs of others."""
    host.install(host.units("0.7", count=3))
    units = host.units("0.7", count=3)[:1]
    left = [*([None] * done), Power]
    real = {"remove": files.remove, "StagedFiles.commit": files.StagedFiles.commit}[where]
    goal = host.goal(units)
    mocker.patch(f"pd_units.placing.{where}", autospec=True, side_effect=cutting(real, left))
    with pytest.raises(Power):
        host.apply(goal)
    mocker.stopall()
    host.install(units)
    assert list(host.files()) == [units[0].name]


def cutting(real: Any, left: list[Any]) -> Any:
    """`real`, until a Power is met in what is left."""

    def call(*args: Any) -> Any:
        if left.pop(0) is Power:
            raise Power
        return real(*args)

    return call


def test_a_process_of_the_old_file_is_restarted_after_an_operation_that_broke_off(host: FakeHost):
    host.install(host.units("0.7"))

    def cut(call: tuple[str, ...]) -> None:
        if call[0] == "restart":
            raise Power

    host.manager.before = cut
    with pytest.raises(Power):
        host.apply(host.goal(host.units("0.6")))
    host.manager.before = lambda _call: None
    (change,) = host.goal(host.units("0.6")).changes.of(Kind.RESTART)
    assert "old process" in change.reason


@pytest.mark.parametrize("failing", ["open", "fsync", "replace"])
def test_a_full_disk_before_the_record_changes_nothing(host: FakeHost, mocker, failing: str):
    host.install(host.units("0.7"))
    before = sorted(str(path) for path in host.root.rglob("*"))
    texts = host.files()
    goal = host.goal(host.units("0.6"))
    real = getattr(os, failing)

    hits = {
        "open": lambda args: bool(args[1] & os.O_CREAT),
        "fsync": lambda _args: True,
        "replace": lambda args: str(args[1]).endswith("operation.json"),
    }

    def full(*args: Any, **kwargs: Any) -> Any:
        if hits[failing](args):
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    mocker.patch(f"os.{failing}", side_effect=full)
    with pytest.raises(HostError) as caught:
        host.apply(goal)
    mocker.stopall()
    assert "nothing was changed" in caught.value.brief
    assert caught.value.exit_code is ExitCode.WRITE_FAILED
    assert host.files() == texts
    assert read_operation(host.names) is None
    assert sorted(str(path) for path in host.root.rglob("*")) == before


def test_a_file_that_changed_since_the_plan_is_not_overwritten(host: FakeHost):
    host.install(host.units("0.7"))
    goal = host.goal(host.units("0.6"))
    path = host.names.unit_dir / goal.rendered[0].name
    path.write_text("somebody else's\n")
    with pytest.raises(HostError, match="changed meanwhile"):
        host.apply(goal)
    assert path.read_text() == "somebody else's\n"
    path.unlink()
    path.symlink_to("/dev/null")
    with pytest.raises(HostError, match="was masked"):
        host.apply(goal)
    assert path.is_symlink()


def test_a_signal_is_recorded_as_such(host: FakeHost):
    def stop(call: tuple[str, ...]) -> None:
        if call[0] == "start":
            raise Stopped("SIGTERM")

    host.manager.before = stop
    with pytest.raises(Stopped):
        host.apply(host.goal(host.units("0.7")))
    operation = read_operation(host.names)
    assert operation is not None
    assert operation.stopped_by == "SIGTERM"
    assert not operation.at_work
    kept = read_generation(host.names, 1)
    assert kept is not None
    assert kept.result == "interrupted"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "outside stoppable() no signal is touched"


def test_an_error_says_how_to_finish_and_how_to_go_back(host: FakeHost):
    host.install(host.units("0.7"))

    def refuse(call: tuple[str, ...]) -> None:
        if call[0] == "reload":
            raise HostError("systemd does not answer", exit_code=ExitCode.NO_MANAGER)

    host.manager.before = refuse
    with pytest.raises(HostError) as caught:
        host.apply(host.goal(host.units("0.6")))
    assert caught.value.exit_code is ExitCode.NO_MANAGER
    assert f"pd-units install {NAME}" in caught.value.hint
    assert f"pd-units rollback {NAME}" in caught.value.hint


@pytest.mark.parametrize("text", ["mine\n", ""])
def test_a_hand_edited_unit_is_refused_and_adopted(host: FakeHost, text: str):
    units = host.units("0.7")
    host.install(units)
    path = host.names.unit_dir / units[0].name
    path.write_text(units[0].text + text + "# mine\n")
    with pytest.raises(HostError, match="in the way"):
        host.goal(units)
    goal = host.goal(units, adopt=True)
    assert "changed by hand" in goal.changes.of(Kind.WRITE)[0].reason
    host.install(units, adopt=True)
    assert path.read_text() == units[0].text


def test_a_directory_that_others_can_write_is_refused(host: FakeHost):
    host.install(host.units("0.7"))
    host.names.state_dir.chmod(0o777)
    goal = host.goal(host.units("0.6"))
    with pytest.raises(HostError) as caught:
        host.apply(goal)
    assert any("written by others" in fault.what for fault in caught.value.faults)
    host.names.state_dir.chmod(0o700)  # too narrow is repaired
    host.install(host.units("0.6"))
    assert host.names.state_dir.stat().st_mode & 0o777 == 0o755


def test_a_unit_that_systemd_cannot_read_is_21(host: FakeHost, mocker):
    goal = host.goal(host.units("0.7"))
    real = host.manager.unit

    def bad(name: str):
        from dataclasses import replace

        return replace(real(name), load_state="bad-setting")

    mocker.patch.object(host.manager, "unit", side_effect=bad)
    with pytest.raises(TemplateError) as caught:
        host.apply(goal)
    assert caught.value.exit_code is ExitCode.UNIT_REJECTED


def test_a_pair_is_restarted_with_its_router_drained(host: FakeHost):
    roles = (Role.PREFILL, Role.DECODE, Role.ROUTER)
    host.install(host.units("0.7", roles))
    host.manager.calls.clear()
    new = host.units("0.6", roles)[:2] + host.units("0.7", roles)[2:]
    goal = host.goal(new)
    assert goal.changes.units(Kind.RESTART) == tuple(unit.name for unit in new)
