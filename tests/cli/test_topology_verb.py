"""`pd-units topology`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pd_units.cli.topology import command


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    node = tmp_path / "sys/devices/system/node/node3"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("0-3\n")
    return tmp_path


def test_json(tree: Path) -> None:
    done = CliRunner().invoke(command, ["--sysroot", str(tree), "--json"])
    answer = json.loads(done.stdout)
    assert {"schema", "pd_units", "exit_code", "message"} <= answer.keys()
    assert answer["numa_nodes"] == [{"id": 3, "cpus": "0-3", "memory_bytes": None, "distances": []}]
    assert answer["gpus"] is None and answer["nics"] is None and answer["driver"] is None
    assert answer["notes"] and answer["units"] == []


def test_svg(tree: Path) -> None:
    done = CliRunner().invoke(command, ["--sysroot", str(tree), "--svg", str(tree / "host.svg")])
    assert done.exit_code == 0
    assert "NUMA node 3: CPUs 0-3" in done.stdout
    assert "NUMA node 3" in (tree / "host.svg").read_text(encoding="utf-8")


def test_svg_where_nothing_can_be_written(tree: Path) -> None:
    done = CliRunner().invoke(command, ["--sysroot", str(tree), "--svg", str(tree / "none/host.svg")])
    assert done.exception is not None and done.exception.exit_code == 32  # type: ignore[union-attr]


def test_a_sysroot_that_is_not_there() -> None:
    assert CliRunner().invoke(command, ["--sysroot", "/nowhere/at/all"]).exit_code == 2
