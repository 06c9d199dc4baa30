"""A wait, while somebody else is at work on the deployment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deployments import FakeHost

from pd_units import waiting
from pd_units.adapters.identity import process_identity
from pd_units.errors import ExitCode
from pd_units.manifest import Operation
from pd_units.waiting import Outcome, wait_until_ready


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def wait(host: FakeHost) -> Outcome:
    """A wait for a unit whose file is there and which nobody has started."""
    goal = host.goal(host.units("0.7"))
    (host.names.unit_dir / goal.rendered[0].name).write_text(goal.rendered[0].text)
    return wait_until_ready(
        host.manager, [goal.index], timeout_s=5.0, clock=host.manager.clock, seen=lambda _reports: None
    )


def at_work(pid: int) -> Operation:
    return Operation(kind="install", generation=1, began=0.0, doer=process_identity(pid))


def test_a_unit_that_nobody_will_start_is_a_failure_at_once(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "read_operation", lambda _names: None)
    assert wait(host).exit_code is ExitCode.UNIT_FAILED


def test_an_install_under_way_is_about_to_start_it(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "read_operation", lambda _names: at_work(os.getppid()))
    assert wait(host).exit_code is ExitCode.NOT_READY


def test_the_install_itself_waits_for_nobody(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "read_operation", lambda _names: at_work(os.getpid()))
    assert wait(host).exit_code is ExitCode.UNIT_FAILED
