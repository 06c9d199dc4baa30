"""Topology read from recorded trees of /sys and /proc: see sysfs_tree for their text, trees/ for them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from sysfs_tree import build, expected, read_tree, tree_names

from pd_units.adapters.sysfs import read_topology
from pd_units.adapters.sysroot import Sysroot
from pd_units.adapters.systemd_files import systemd_version
from pd_units.errors import PdUnitsError
from pd_units.topology import HostTopology
from pd_units.topology_json import to_json, topology_from_json


def test_there_are_trees() -> None:
    assert len(tree_names()) >= 25


@pytest.mark.parametrize("name", tree_names())
def test_trees(name: str, tmp_path: Path) -> None:
    text = read_tree(name)
    found = read_topology(build(text, tmp_path))
    wanted, notes = expected(text)
    assert found.numa_nodes == wanted.numa_nodes
    assert found.gpus == wanted.gpus
    assert found.nics == wanted.nics
    assert found.driver == wanted.driver
    assert len(found.notes) == len(notes), found.notes
    for note, beginning in zip(found.notes, notes, strict=True):
        assert note.startswith(beginning)


@pytest.mark.parametrize("name", [name for name in tree_names() if name != "overlapping-nodes"])
def test_what_is_read_can_be_read_back(name: str, tmp_path: Path) -> None:
    found = read_topology(build(read_tree(name), tmp_path))
    assert topology_from_json(json.loads(json.dumps(to_json(found)))) == found


def test_nodes_that_share_cpus_are_refused_as_a_file(tmp_path: Path) -> None:
    found = read_topology(build(read_tree("overlapping-nodes"), tmp_path))
    with pytest.raises(PdUnitsError):
        topology_from_json(to_json(found))


def test_this_host() -> None:
    found = read_topology()
    assert isinstance(found, HostTopology)
    assert topology_from_json(to_json(found)) == found


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    directory = tmp_path / "sys/devices/system/node/node0"
    directory.mkdir(parents=True)
    os.mkfifo(directory / "cpulist")
    (directory / "cpumap").write_text("3\n")
    (node,) = read_topology(tmp_path).numa_nodes or ()
    assert node.cpus == ""  # an empty list, as the pipe answers


def test_links_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/file").write_text("in\n")
    (tmp_path / "absolute").symlink_to("/inside/file")
    (tmp_path / "upwards").symlink_to("../../../../../../inside/file")
    (tmp_path / "outside").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to("loop")
    tree = Sysroot(tmp_path)
    assert tree.text("absolute") == tree.text("upwards") == "in"
    assert tree.text("outside") is tree.text("loop") is None
    assert tree.resolve("absolute") == "inside/file"
    assert tree.exists("loop") and not tree.exists("nothing")
    assert tree.names("absolute") == ()


@pytest.mark.parametrize(
    ("library", "version"),
    [
        ("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so", 252),
        ("usr/lib/systemd/libsystemd-shared-257.9-1.fc42.so", 257),
        ("usr/lib64/systemd/libsystemd-shared-249.so", 249),
        ("usr/lib/systemd/other", None),
    ],
)
def test_systemd_version_from_files(tmp_path: Path, library: str, version: int | None) -> None:
    build(f"file {library} x", tmp_path)
    assert systemd_version(tmp_path) == version
