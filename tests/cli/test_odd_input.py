"""Input that nobody writes on purpose ends in a line and a code, not in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from pd_units.cli import run

GOOD = """
deployment.name = "a"
engine = { python = "/usr/bin/python3", model = "/m", user = "sglang" }
standalone = [{ gpus = [0], port = 30000 }]
"""


@pytest.mark.parametrize(
    ("topology", "code"),
    [
        ("[" * 100_000, 10),
        ("{", 10),
        ('{"gpus": [{"index": 0, "memory_bytes": 1' + "0" * 400 + "}]}", 2),
    ],
)
def test_a_topology_file(tmp_path: Path, capsys, topology: str, code: int) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "t.json").write_text(topology)
    assert run(["render", str(tmp_path / "a.toml"), "--topology", str(tmp_path / "t.json")]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_time_that_never_ends(capsys) -> None:
    assert run(["wait-ready", "--timeout", "9" * 400]) == 2
    assert "is no time span that ends" in capsys.readouterr().err
