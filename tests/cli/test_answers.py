"""Answers that cannot be given: an output that is full, a selection that is empty, names that are unknown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def pd_units(*words: str, stdout=subprocess.PIPE) -> subprocess.CompletedProcess:
    argv = [sys.executable, "-m", "pd_units", *words]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_a_full_output_is_one_line_and_a_code() -> None:
    with Path("/dev/full").open("w") as full:
        done = pd_units("init", "--list", stdout=full)
    assert done.returncode == 32
    assert done.stderr.splitlines() == ["pd-units: cannot write the answer: No space left on device"]


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
