"""Deployments whose names hold a dot, as those of our own presets do, are named like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from pd_units import prepare
from pd_units.cli import run, wait_ready
from pd_units.errors import DeploymentError, HostError
from pd_units.index import Index, IndexUnit, deployment_path
from pd_units.naming import Names, Role
from pd_units.prepare import deployment_files

NAME = "qwen3.6-27b"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(prepare, "known_names", lambda: (NAME,))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_with_a_dot_is_a_name(known: Path) -> None:
    assert deployment_files([NAME]) == (deployment_path(Names(NAME)),)
    (known / NAME).mkdir()  # a checkout of the model beside it changes nothing
    assert deployment_files([NAME]) == (deployment_path(Names(NAME)),)


@pytest.mark.parametrize("word", ["qwen3.5", "other", "notes.txt"])
def test_what_is_neither_is_said_to_be_neither(known: Path, word: str) -> None:
    with pytest.raises(DeploymentError, match="no such file, and no such deployment"):
        deployment_files([word])
    (known / word).write_text("")
    assert deployment_files([word]) == (Path(word),)


@pytest.mark.parametrize("word", ["absent.toml", "etc/absent", "./absent"])
def test_a_path_is_a_path_though_nothing_is_there(known: Path, word: str) -> None:
    assert deployment_files([word]) == (Path(word),)


@pytest.mark.parametrize("asked", [f"{NAME}-standalone", f"{NAME}-standalone.service"])
def test_wait_ready_takes_a_unit_by_either_name(monkeypatch: pytest.MonkeyPatch, capsys, asked: str) -> None:
    unit = IndexUnit(unit=f"{NAME}-standalone.service", role=Role.STANDALONE, url="http://127.0.0.1:1")
    index = Index(name=NAME, generation=1, units=(unit,), timeout_s=1.0)
    monkeypatch.setattr(wait_ready, "read_indexes", lambda names: (index,))

    def connect(*, needed: bool) -> None:
        raise HostError("asked", exit_code=30)

    monkeypatch.setattr(wait_ready, "connect", connect)
    assert run(["wait-ready", "--unit", asked]) == 30
    assert run(["wait-ready", "--unit", f"{NAME}-router"]) == 10
    assert f"no such unit: {NAME}-router.service" in capsys.readouterr().err
