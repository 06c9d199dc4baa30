"""Answers that cannot be given: an output that is full, a selection that is empty, names that are unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TWO = """
[deployment]
name = "{name}"
[engine]
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"
[[standalone]]
gpus = [{gpu}]
port = {port}
"""


def pd_units(
    *words: str, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess:
    argv = [sys.executable, "-m", "pd_units", *words]
    env = {**os.environ, **environment}
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, env=env)


def test_a_full_output_is_one_line_and_a_code() -> None:
    with Path("/dev/full").open("w") as full:
        done = pd_units("init", "--list", stdout=full)
    assert done.returncode == 32
    assert done.stderr.splitlines() == ["pd-units: cannot write the answer: No space left on device"]


@pytest.fixture
def left() -> Iterator[int]:
    """A pipe whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


def test_a_reader_who_left_changes_no_exit_code(left: int, tmp_path: Path) -> None:
    assert pd_units("init", "--list", stdout=left).returncode == 0
    for words in (["validate", "no.toml"], ["validate", "no.toml", "--json"], ["preflight", "no.toml"]):
        assert pd_units(*words, stdout=left, stderr=left).returncode == 10
    assert pd_units("frobnicate", stderr=left).returncode == 2


def test_a_log_may_come_through_a_pipe_with_a_name(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    line = "[2026-01-02 03:04:05] The server is fired up and ready to roll!"
    with subprocess.Popen(["sh", "-c", 'echo "$1" >"$2"', "sh", line, str(pipe)]):
        done = pd_units("diagnose", str(pipe), "--json")
    assert json.loads(done.stdout)["verdict"] == "ready"


def test_what_is_no_log_is_named_as_it_is(tmp_path: Path) -> None:
    done = pd_units("diagnose", str(tmp_path))
    assert (done.returncode, done.stderr) == (10, f"pd-units: {tmp_path}: Is a directory\n")
    done = pd_units("diagnose", str(tmp_path / "no.log"))
    assert (done.returncode, done.stderr) == (10, f"pd-units: {tmp_path}/no.log: No such file or directory\n")


def test_a_full_disk_under_stderr_leaves_the_answer_whole(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TWO.format(name="a", gpu=0, port=30000))
    with Path("/dev/full").open("w") as full:
        done = pd_units("render", str(tmp_path / "a.toml"), stderr=full)
    assert done.returncode == 0
    assert "a-standalone.service" in done.stdout


def test_what_a_terminals_encoding_lacks_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TWO.format(name="a", gpu=0, port=30000).replace("tiny", "groesse-模型"))
    done = pd_units("render", str(tmp_path / "a.toml"), PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "/models/groesse-\\u6a21\\u578b" in done.stdout


def test_ports_of_two_files_that_collide_are_a_matter_of_placement(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text(TWO.format(name="a", gpu=0, port=30000))
    second.write_text(TWO.format(name="b", gpu=1, port=30000))
    done = pd_units("validate", str(first), str(second))
    assert done.returncode == 12
    assert "port 30000" in done.stdout + done.stderr
    second.write_text(TWO.format(name="a", gpu=1, port=30001))
    assert pd_units("validate", str(first), str(second)).returncode == 11


def test_a_word_that_is_neither_a_file_nor_a_deployment_is_named_so() -> None:
    done = pd_units("diff", "nope")
    assert done.returncode == 10
    assert "no such deployment" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["diff", "nope"], ["install", "--check", "nope"], ["rollback", "nope"], ["uninstall", "no/name"]],
    ids=lambda words: words[0],
)
def test_an_error_of_a_verb_that_changes_a_host_has_the_keys_of_its_answers(words: list[str]) -> None:
    done = pd_units(*words, "--json")
    answer = json.loads(done.stdout)
    assert (answer["exit_code"], answer["changed"], answer["deployments"]) == (done.returncode, False, [])
    assert done.returncode
    assert {"schema", "pd_units", "message", "faults", "detail", "hint"} <= set(answer)
    assert done.stderr == ""
    assert "pd-units: " in pd_units(*words).stderr
