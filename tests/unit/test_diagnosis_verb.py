"""`pd-units diagnose`: files, stdin, exit statuses, JSON."""

from __future__ import annotations

import io
import json
import sys

import pytest
from log_cases import load_cases

from pd_units.cli import diagnose, run
from pd_units.diagnosis import ExitStatus
from pd_units.errors import ExitCode

CASES = {case.name: case for case in load_cases()}
OOM = CASES["044-capture-oom-tp8-deepgemm-split"]
KILLED = CASES["r-kill-child"]


@pytest.fixture
def log(tmp_path):
    def write(case) -> str:
        path = tmp_path / "start.log"
        path.write_text("\n".join(case.lines) + "\n", encoding="utf-8", newline="")
        return str(path)

    return write


def answer(capsys, *args: str) -> dict:
    code = run(["diagnose", *args, "--json"])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["exit_code"] == code and not err
    return found


def test_json_of_a_failure(capsys, log):
    found = answer(capsys, log(OOM))
    assert found["exit_code"] == 0
    assert {
        "verdict",
        "cause",
        "phase",
        "evidence",
        "advice",
        "warnings",
        "schema",
        "pd_units",
        "message",
    } <= set(found)
    assert (found["verdict"], found["cause"]) == ("failed", "cuda-graph-oom")
    assert found["evidence"][0]["line"] > 1 and "out of memory" in found["evidence"][0]["text"]
    assert "mem-fraction-static" in found["advice"]


def test_text_of_a_failure(capsys, log):
    assert run(["diagnose", log(OOM)]) == ExitCode.OK
    out = capsys.readouterr().out
    first, *rest = out.splitlines()
    assert first == "failed: out of GPU memory while capturing CUDA graphs (cuda-graph-oom)"
    assert any(line.strip().startswith("-> ") for line in rest)
    assert all(len(line) < 600 for line in rest)


def test_ready_then_dead(capsys, log):
    found = answer(capsys, log(KILLED), "--exit-status", "SIGKILL")
    assert (found["verdict"], found["cause"], found["was_ready"]) == ("ready", "child-died", True)
    assert found["died"]["cause"] == "child-died"
    assert found["message"].startswith("ready, then dead")


def test_exit_status_as_a_hint(capsys, log):
    case = CASES["032-exit-minus-9-nothing-else"]
    lines = [
        line
        for line in case.lines
        if "exit code" not in line and "Traceback" not in line and "File" not in line
    ]
    short = log(
        type(case)(**{**{s: getattr(case, s) for s in case.__dataclass_fields__}, "lines": tuple(lines)})
    )
    assert answer(capsys, short)["verdict"] == "starting"
    assert answer(capsys, short, "--exit-status", "137")["cause"] == "killed-by-kernel"


def test_bad_exit_status_is_a_usage_error(capsys, log):
    assert run(["diagnose", log(OOM), "--exit-status", "sometimes"]) == ExitCode.USAGE
    assert "sometimes" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["-"], []], ids=["dash", "no argument"])
def test_stdin(capsys, monkeypatch, args):
    text = "\n".join(OOM.lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert answer(capsys, *args)["cause"] == "cuda-graph-oom"


def test_invalid_utf8_and_no_newline_at_the_end(capsys, tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"server_args=ServerArgs()\n\xff\xfe\x00broken\nFatal Python error: Segmentation fault")
    found = answer(capsys, str(path))
    assert (found["cause"], found["evidence"][0]["line"]) == ("segfault", 3)


def test_empty_file(capsys, tmp_path):
    path = tmp_path / "empty.log"
    path.write_text("")
    assert answer(capsys, str(path))["verdict"] == "unknown"


def test_no_such_file_or_deployment(capsys):
    found = answer(capsys, "/no/such/thing")
    assert found["exit_code"] == ExitCode.UNREADABLE
    assert "/no/such/thing" in found["message"]


def test_a_deployment_by_name(capsys, monkeypatch):
    """The journal's reader is another module's; here it is two units, one of them dead."""
    units = [
        diagnose.UnitText(
            "x-prefill.service", "prefill", [(line, False) for line in CASES["r-pd-prefill"].lines]
        ),
        diagnose.UnitText(
            "x-decode.service", "decode", [("server_args=ServerArgs()", False)], ExitStatus(signal=9)
        ),
    ]
    monkeypatch.setattr(diagnose, "read_lives", lambda name: units)
    found = answer(capsys, "x")
    assert [unit["verdict"] for unit in found["units"]] == ["ready", "failed"]
    assert (found["verdict"], found["cause"]) == ("failed", "killed-by-kernel")
    assert run(["diagnose", "x"]) == ExitCode.OK
    assert "x-decode.service: failed" in capsys.readouterr().out
