"""An uninstall on a fake host that breaks off: it goes on as it was begun."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from deployments import NAME, SHARED, FakeHost

from pd_units.access import require_root
from pd_units.adapters import files
from pd_units.changes import Kind
from pd_units.errors import HostError
from pd_units.index import retired_path
from pd_units.manifest import operation_words, read_operation
from pd_units.uninstall import plan_uninstall, uninstall


class Power(Exception):
    """The process is gone at this point."""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.setattr(files, "_TRUSTED_UID", os.getuid())
    monkeypatch.setattr("pd_units.uninstall.shared_units", lambda: SHARED)
    tmp_path.chmod(0o755)
    host = FakeHost(tmp_path)
    old = host.names.unit_dir / "old.service"
    old.write_text("[Service]\nExecStart=/bin/old\n[Install]\nWantedBy=multi-user.target\n")
    host.manager.enable(["old.service"])
    host.manager.start("old.service")
    host.installer.apply(host.goal(host.units("0.7"), retires=["old.service"]))
    return host


def go(host: FakeHost, *, purge: bool = False, restore_retired: bool = False) -> None:
    _, changes = plan_uninstall(host.names, host.manager)
    uninstall(
        host.names,
        changes,
        host.manager,
        host.manager.clock,
        host.said.append,
        purge=purge,
        restore_retired=restore_retired,
    )


def test_a_start_that_is_queued_is_cancelled(host: FakeHost, monkeypatch: pytest.MonkeyPatch):
    """A router behind backends that load is inactive, with a job: it would start once they are gone."""
    name = host.units("0.7")[0].name
    host.manager.stop(name)
    _, changes = plan_uninstall(host.names, host.manager)
    assert name not in changes.units(Kind.STOP)
    seen = host.manager.unit
    queued = {"job_id": 7, "job_type": "start"}
    monkeypatch.setattr(
        host.manager, "unit", lambda unit: replace(seen(unit), **queued) if unit == name else seen(unit)
    )
    _, changes = plan_uninstall(host.names, host.manager)
    assert name in changes.units(Kind.STOP)


@pytest.mark.parametrize("verb", ["stop", "disable", "reload", "start"])
def test_one_that_broke_off_goes_on_with_what_it_was_told(host: FakeHost, verb: str):
    def cut(call: tuple[str, ...]) -> None:
        if call[0] == verb:
            raise Power

    host.manager.before = cut
    with pytest.raises(Power):
        go(host, purge=True, restore_retired=True)
    operation = read_operation(host.names)
    assert operation is not None
    told = operation_words(NAME, replace(operation, doer=""))
    assert f"`pd-units uninstall {NAME}` finishes it, with --purge and --restore-retired" in told
    host.manager.before = lambda _call: None
    go(host)
    assert host.manager.unit("old.service").active_state == "active"
    assert host.manager.unit("old.service").unit_file_state == "enabled"
    assert not host.names.state_dir.exists()


def test_more_can_be_asked_of_one_that_broke_off(host: FakeHost):
    def cut(call: tuple[str, ...]) -> None:
        if call[0] == "reload":
            raise Power

    host.manager.before = cut
    with pytest.raises(Power):
        go(host, restore_retired=True)
    host.manager.before = lambda _call: None
    go(host, purge=True)
    assert host.manager.unit("old.service").active_state == "active"
    assert not host.names.state_dir.exists()


@pytest.mark.parametrize(
    ("verb", "offers"), [("install", True), ("uninstall", True), ("rollback", False), ("restart", False)]
)
def test_check_is_offered_where_it_needs_no_root(monkeypatch: pytest.MonkeyPatch, verb: str, offers: bool):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(HostError) as caught:
        require_root(verb)
    assert ("--check" in caught.value.hint) is offers


@pytest.mark.parametrize("damage", ['{"old.service": "yes"}', '{"old.service": null}', "[]", "{"])
def test_a_damaged_record_of_what_was_retired_holds_up_nothing(host: FakeHost, damage: str):
    retired_path(host.names).write_text(damage)
    go(host, restore_retired=True)
    assert not (host.names.unit_dir / host.units("0.7")[0].name).exists()
    assert ("old.service" in damage) == any("old.service is not restored" in line for line in host.said)
