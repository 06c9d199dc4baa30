"""The picture on the terminal and the drawing for a report."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from sysfs_tree import build, read_tree, tree_names

from pd_units.adapters.sysfs import read_topology
from pd_units.naming import Role
from pd_units.topology import Gpu, HostTopology, Nic, NumaNode
from pd_units.topology_svg import draw_svg
from pd_units.topology_text import Tenant, draw_text, to_ascii

HOST = HostTopology(
    numa_nodes=(
        NumaNode(id=0, cpus="0-3", memory_bytes=64 << 30, distances=(10, 21)),
        NumaNode(id=1, cpus="4-7", memory_bytes=64 << 30, distances=(21, 10)),
    ),
    gpus=(
        Gpu(index=0, numa=0, name="NVIDIA H200", memory_bytes=141 << 30, compute_capability="9.0"),
        Gpu(index=1, numa=1, pci_address="0000:81:00.0", uuid="GPU-1", mig=True),
        Gpu(index=2),
    ),
    nics=(Nic(name="mlx5_0", pci_address="0000:02:00.0", numa=0, rdma=True),),
    driver="580.1",
    notes=("something is odd & <strange>",),
)
TENANTS = (
    Tenant(unit="x-prefill.service", role=Role.PREFILL, gpus=(0,), numa=(0,)),
    Tenant(unit="x-decode.service", role=Role.DECODE, gpus=(1,), numa=(1,)),
)


def test_the_picture() -> None:
    assert draw_text(HOST, TENANTS).splitlines() == [
        "3 GPUs, 2 NUMA nodes, driver 580.1",
        "",
        "NUMA node 0: CPUs 0-3; 64 GiB; distance 0:10 1:21; bound here: x-prefill",
        "├── GPU 0  address ?     H200     cc 9.0  141 GiB        x-prefill  UUID ?",
        "└── NIC mlx5_0  0000:02:00.0  RDMA",
        "NUMA node 1: CPUs 4-7; 64 GiB; distance 0:21 1:10; bound here: x-decode",
        "└── GPU 1  0000:81:00.0  model ?  cc ?    memory ?  MIG  x-decode   GPU-1",
        "No NUMA node known (nothing is bound for these)",
        "└── GPU 2  address ?     model ?  cc ?    memory ?       -          UUID ?",
        "",
        "note: something is odd & <strange>",
    ]


def test_a_terminal_without_box_drawing_characters() -> None:
    to_ascii(draw_text(HOST, TENANTS)).encode("ascii")


def test_a_host_of_one_node() -> None:
    text = draw_text(HostTopology(numa_nodes=(NumaNode(id=0, cpus="0"),), gpus=(Gpu(index=0),)))
    assert "One NUMA node: units are not bound." in text
    assert "No NUMA node known" not in text


def test_nothing_known() -> None:
    assert draw_text(HostTopology()) == "GPUs not known, NUMA nodes not known"


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_drawing() -> None:
    found = texts(draw_svg(HOST, TENANTS))
    for wanted in ("NUMA node 0", "NUMA node 1", "No NUMA node known", "GPU 0", "GPU 1 (MIG)", "x-prefill"):
        assert wanted in found
    assert "something is odd & <strange>" in found
    assert found.count("free") == 1
    assert "free" not in texts(draw_svg(HOST))


@pytest.mark.parametrize("name", tree_names())
def test_every_tree_can_be_drawn(name: str, tmp_path: Path) -> None:
    topology = read_topology(build(read_tree(name), tmp_path))
    assert draw_text(topology)
    svg = draw_svg(topology, TENANTS)
    assert texts(svg)
    assert svg == draw_svg(topology, TENANTS)
