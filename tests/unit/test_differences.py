"""Unit texts compared as systemd applies them; drop-ins; what a process was started with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pd_units.adapters.dropins import DropIn, find_drop_ins, unread_drop_ins
from pd_units.changes import InstalledUnit, Kind, Ownership, plan_changes
from pd_units.differences import differing, main_directives, shown
from pd_units.execstart import exec_start
from pd_units.naming import Names
from pd_units.ports import ActiveState, UnitStatus
from pd_units.received import Received, file_digests, fragment_digest
from pd_units.rendered import RenderedUnit
from pd_units.routing import declared_workers

UNIT = (
    "[Unit]\nDescription=x\n[Service]\nExecStart=/bin/engine --a 1\nEnvironment=A=1 B=2\n"
    "LimitNOFILE=10\nRestart=always\n"
)


@pytest.mark.parametrize(
    ("drop_in", "keys"),
    [
        ("[Service]\nLimitNOFILE=10\n", []),
        ("[Service]\nLimitNOFILE=20\n", ["LimitNOFILE"]),
        ("[Service]\nEnvironment=A=1\n", []),
        ("[Service]\nEnvironment=A=2\n", ["Environment"]),
        ("[Service]\nEnvironment=\nEnvironment=B=2\nEnvironment=A=1\n", []),
        ("[Service]\nExecStart=\nExecStart=/bin/engine --a 1\n", []),
        ("[Service]\nExecStart=/bin/other\n", ["ExecStart"]),
        ("[Service]\nRestart=no\nRestartSec=1\nTimeoutStopSec=9\nExecStartPost=/bin/x\n", []),
        ("[Unit]\nDescription=other\n", []),
        ("[Service]\nNice=1\n", ["Nice"]),
        ("not a unit file", ["text"]),
        ("", []),
    ],
)
def test_a_drop_in_counts_for_what_the_process_receives(drop_in: str, keys: list[str]):
    assert differing(main_directives(UNIT), main_directives(UNIT, drop_in)) == keys


def test_a_secret_is_compared_but_never_shown():
    first = main_directives("[Service]\nEnvironment=HF_TOKEN=hunter2\n")
    second = main_directives("[Service]\nEnvironment=HF_TOKEN=hunter3\n")
    assert differing(first, second) == ["Environment"]
    assert "hunter" not in str(first)
    assert shown(first["Environment"][0]) == "HF_TOKEN=***"


def place(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_drop_ins_come_in_the_order_of_their_names_the_strongest_place_first(tmp_path: Path):
    place(tmp_path, "etc/systemd/system/a-b.service.d/20.conf", "etc")
    place(tmp_path, "run/systemd/system/a-b.service.d/10.conf", "run")
    place(tmp_path, "usr/lib/systemd/system/a-b.service.d/20.conf", "hidden by etc")
    place(tmp_path, "etc/systemd/system/a-.service.d/15.conf", "prefix")
    place(tmp_path, "usr/lib/systemd/system/service.d/05.conf", "every service")
    place(tmp_path, "etc/systemd/system/a-b.service.d/30.txt", "no drop-in")
    place(tmp_path, "etc/systemd/system/b.service.d/1.conf", "another unit's")
    assert [each.text for each in find_drop_ins("a-b.service", tmp_path)] == [
        "every service",
        "run",
        "prefix",
        "etc",
    ]


def test_a_masked_drop_in_takes_its_namesakes_away(tmp_path: Path):
    place(tmp_path, "usr/lib/systemd/system/a.service.d/10.conf", "text")
    (tmp_path / "etc/systemd/system/a.service.d").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/a.service.d/10.conf").symlink_to("/dev/null")
    assert find_drop_ins("a.service", tmp_path) == ()


def test_drop_ins_that_came_or_went_are_unread(tmp_path: Path):
    place(tmp_path, "1.conf", "x")
    path = str(tmp_path / "1.conf")
    assert unread_drop_ins([], [DropIn(path, "x")]) == (path,)
    assert unread_drop_ins([path], [DropIn(path, "x")]) == ()
    assert unread_drop_ins([path, "/nowhere/2.conf"], [DropIn(path, "x")]) == ("/nowhere/2.conf",)
    # One of the same name is listed already: which of the two holds is the manager's business.
    assert unread_drop_ins(["/dev/1.conf"], [DropIn(path, "x")])[:1] != (path,)


def received(**changes: object) -> Received:
    values = {
        "unit": "a.service",
        "invocation_id": "1" * 32,
        "fragment": fragment_digest(UNIT),
        "directives": main_directives(UNIT),
    }
    return Received(**{**values, **changes})


def restart(*, text: str = UNIT, got: Received | None, **changes: object) -> str:
    """The reason of the restart that an install of `text` plans; "" without one."""
    status = UnitStatus(
        unit="a.service",
        load_state="loaded",
        active_state=ActiveState.ACTIVE,
        sub_state="running",
        unit_file_state="enabled",
        invocation_id="1" * 32,
    )
    unit = InstalledUnit(
        name="a.service", text=UNIT, ownership=Ownership.OURS, status=status, received=got, **changes
    )
    from pd_units.changes import InstalledState

    target = replace(unit, name="pd-units@a.target", received=None)
    state = InstalledState(units={unit.name: unit}, target=target, shared={}, obsolete={}, retired={})
    planned = plan_changes([RenderedUnit("a.service", text, None)], [], state, start=True)
    return "; ".join(change.reason for change in planned.of(Kind.RESTART))


OTHER = UNIT.replace("--a 1", "--a 2")


def test_a_process_of_the_old_file_is_known_whatever_lies_on_disk():
    old = received(directives=main_directives(OTHER))
    assert restart(got=old) == "ExecStart changed: --a 2 -> 1"
    assert restart(got=received()) == ""


def test_a_process_of_the_new_file_is_not_restarted_though_the_disk_is_old():
    assert restart(text=OTHER, got=received(directives=main_directives(OTHER))) == ""


def test_a_changed_drop_in_is_named():
    drop_in = DropIn("/etc/systemd/system/a.service.d/x.conf", "[Service]\nNice=1\n")
    assert restart(got=received(), drop_ins=(drop_in,)) == f"Nice added: 1 (by {drop_in.path})"
    gone = received(directives=main_directives(UNIT, drop_in.text or ""), drop_ins=(drop_in.path,))
    assert restart(got=gone) == f"Nice removed: 1 ({drop_in.path} is gone)"
    assert restart(got=received(), drop_ins=(DropIn("/x/secret.conf", None),)) == ""  # not readable for us


def test_a_process_of_which_nothing_is_sure_is_replaced():
    assert "had not read" in restart(got=received(stale=True))


def test_an_environment_file_counts_by_what_it_assigns(tmp_path: Path):
    path = tmp_path / "env"
    path.write_text("# comment\n\nA=1\n")
    first = file_digests({"EnvironmentFile": [f"-{path}", "-/nowhere"]})
    path.write_text("; another\nA=1\n")
    assert file_digests({"EnvironmentFile": [f"-{path}", "-/nowhere"]}) == first
    path.write_text("A=2\n")
    second = file_digests({"EnvironmentFile": [f"-{path}", "-/nowhere"]})
    assert second != first
    assert "changed since" in restart(got=received(files=first), env_files=second)
    assert restart(got=received(), env_files=second) == ""  # not known what it was


def test_a_gate_of_the_old_file_is_replaced_before_its_router_runs():
    status = {"active_state": ActiveState.ACTIVATING, "sub_state": "start-pre"}
    text = UNIT + "ExecStartPre=+/bin/gate --backend b\n"
    unit = InstalledUnit(
        name="a.service",
        text=UNIT + "ExecStartPre=+/bin/gate --backend a\n",
        ownership=Ownership.OURS,
        status=UnitStatus(unit="a.service", load_state="loaded", unit_file_state="enabled", **status),
    )
    from pd_units.changes import InstalledState

    state = InstalledState(units={"a.service": unit}, target=unit, shared={}, obsolete={}, retired={})
    (change,) = plan_changes([RenderedUnit("a.service", text, None)], [], state, start=True).of(Kind.RESTART)
    assert "--backend a -> b" in change.reason


ROUTER = (
    "[Service]\nExecStart=/opt/python -m sglang_router.launch_router --pd-disaggregation "
    "--prefill http://127.0.0.1:1/ 8998 --decode http://127.0.0.1:2 --api-key 'k 1'\n"
)


def test_what_a_router_was_started_with_is_read_from_its_unit(tmp_path: Path):
    place(tmp_path, "etc/systemd/system/r.service", ROUTER)
    argv = exec_start(Names("r", tmp_path), "r.service")
    assert argv[:3] == ("/opt/python", "-m", "sglang_router.launch_router")
    assert declared_workers(argv) == {
        "http://127.0.0.1:1": {
            "url": "http://127.0.0.1:1",
            "worker_type": "prefill",
            "bootstrap_port": 8998,
            "api_key": "k 1",
        },
        "http://127.0.0.1:2": {"url": "http://127.0.0.1:2", "worker_type": "decode", "api_key": "k 1"},
    }
    assert exec_start(Names("r", tmp_path), "nobody.service") == ()
    place(tmp_path, "etc/systemd/system/r.service.d/x.conf", "[Service]\nno assignment\n")
    assert exec_start(Names("r", tmp_path), "r.service") == argv


@pytest.mark.parametrize("argv", [(), ("--prefill",), ("--decode",)])
def test_a_broken_command_line_declares_nothing(argv: tuple[str, ...]):
    assert declared_workers(argv) == {}
