"""Several deployments in one call: what one of them met does not take the answers of the others away."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
from deployments import NAME, FakeHost

from pd_units.adapters import files
from pd_units.changes import ChangeSet
from pd_units.cli.install import How, _answer, _Run
from pd_units.errors import ExitCode, Fault, HostError
from pd_units.goal import Installed
from pd_units.prepare import Prepared


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.setattr(files, "_TRUSTED_UID", os.getuid())
    monkeypatch.setattr("pd_units.cli.install.warnings_of", lambda *_: ())
    tmp_path.chmod(0o755)
    return FakeHost(tmp_path)


def install(host: FakeHost) -> Installed:
    goal = host.goal(host.units("0.7"))
    prepared = Prepared(source=cast(Any, None), plan=cast(Any, None), goal=goal, checks=())
    return _Run(prepared, host.manager, How(wait=True, rollback=True, timeout_s=None, diff=False)).install()


def refuse(verb: str) -> Any:
    def before(call: tuple[str, ...]) -> None:
        if call[0] == verb:
            faults = [Fault("here", "is full")]
            raise HostError("systemd refused", detail="no space", hint="free some", faults=faults)

    return before


def ready(name: str = "first", code: ExitCode = ExitCode.OK) -> Installed:
    return Installed(
        name=name, generation=3, result="ready", changes=ChangeSet(()), exit_code=code, message="ready"
    )


@pytest.mark.parametrize(("verb", "changed"), [("reload", True), ("enable", False)])
def test_an_error_of_one_is_an_answer_beside_the_others(
    host: FakeHost, capsys: pytest.CaptureFixture[str], verb: str, changed: bool
):
    host.manager.before = refuse(verb)
    done = [ready(), install(host)]
    assert _answer(done, as_json=True) == ExitCode.WRITE_FAILED
    answer = json.loads(capsys.readouterr().out)
    assert (answer["exit_code"], answer["message"], answer["changed"]) == (32, "systemd refused", changed)
    assert answer["detail"] == "no space"
    first, second = answer["deployments"]
    assert (first["name"], first["result"], first["generation"]) == ("first", "ready", 3)
    assert (second["name"], second["result"]) == (NAME, "failed")
    assert bool(second["changes"]) is changed
    assert second["error"]["brief"] == "systemd refused"
    assert second["error"]["faults"] == [{"where": "here", "what": "is full", "hint": ""}]


def test_the_highest_code_of_all_is_answered_whoever_has_it(
    host: FakeHost, capsys: pytest.CaptureFixture[str]
):
    host.manager.before = refuse("reload")
    code = _answer([ready(code=ExitCode.UNIT_FAILED), install(host)], as_json=True)
    assert code == ExitCode.UNIT_FAILED
    answer = json.loads(capsys.readouterr().out)
    assert "detail" not in answer  # the error's own, told with its deployment
    assert answer["deployments"][1]["error"]["detail"] == "no space"


def test_in_prose_it_is_named_with_its_deployment(host: FakeHost, capsys: pytest.CaptureFixture[str]):
    host.manager.before = refuse("reload")
    error = install(host)
    capsys.readouterr()
    _answer([ready(), error], as_json=False)
    told = capsys.readouterr().err.splitlines()
    assert told[:4] == [
        f"pd-units: {NAME} broke off:",
        "pd-units: systemd refused",
        "  here: is full",
        "  no space",
    ]
    assert told[4].startswith("  -> free some")
