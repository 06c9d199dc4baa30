"""The fake manager keeps the contract of the real one, so that tests that use it mean something."""

from __future__ import annotations

from pathlib import Path

import pytest
from manager_contract import CASES, SLEEPER, World

from fakes import AwayManager, FakeManager
from pd_units.adapters.patient import PatientManager
from pd_units.errors import ExitCode, HostError


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_fake_manager(case, tmp_path: Path) -> None:
    case(World(FakeManager(tmp_path), tmp_path))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_patient_manager_before_it(case, tmp_path: Path) -> None:
    case(World(PatientManager(FakeManager(tmp_path)), tmp_path))


def test_a_patient_manager_waits_for_one_that_is_away(tmp_path: Path) -> None:
    inner = AwayManager(tmp_path)
    (tmp_path / "a.service").write_text(SLEEPER)
    patient = PatientManager(inner, patience_s=5)
    for verb in (patient.start, patient.restart, patient.stop):
        inner.away = 3
        verb("a.service")
    inner.away = 3
    patient.reload()
    assert [call[0] for call in inner.calls] == ["start", "restart", "stop", "reload"]


def test_a_restart_that_took_effect_is_not_asked_for_twice(tmp_path: Path) -> None:
    class Deaf(FakeManager):
        def restart(self, name: str) -> str:
            super().restart(name)
            raise HostError("systemd does not answer", exit_code=ExitCode.NO_MANAGER)

    (tmp_path / "a.service").write_text(SLEEPER)
    inner = Deaf(tmp_path)
    inner.start("a.service")
    PatientManager(inner, patience_s=5).restart("a.service")
    assert inner.asked("restart") == ["a.service"]


def test_patience_ends(tmp_path: Path) -> None:
    inner = AwayManager(tmp_path)
    inner.away = 10**6
    with pytest.raises(HostError) as caught:
        PatientManager(inner, patience_s=0).reload()
    assert caught.value.exit_code is ExitCode.NO_MANAGER
