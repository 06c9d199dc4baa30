"""Topology as data: lists, addresses, JSON, and what cannot be true of any host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_units.errors import PdUnitsError
from pd_units.topology import (
    UNKNOWN,
    Gpu,
    HostTopology,
    Nic,
    NumaNode,
    format_cpu_list,
    normalise_pci_address,
    parse_cpu_list,
)
from pd_units.topology_json import to_json, topology_from_json


@given(st.sets(st.integers(0, 500)))
def test_cpu_lists_come_back(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-1", "1,,a", "0-99999999", "1.5"])
def test_malformed_cpu_lists(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_cpu_list(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:01:00.0", "0000:01:00.0"),
        ("00000000:0A:1F.7", "0000:0a:1f.7"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("FFFFFFFF:00:00.0", "ffffffff:00:00.0"),
    ],
)
def test_pci_addresses(text: str, address: str) -> None:
    assert normalise_pci_address(text) == address


@pytest.mark.parametrize("text", ["", "0000:01:00", "0000:01:00.8", "100000000:01:00.0", "01:00.0 "[:-2]])
def test_malformed_pci_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="PCI address"):
        normalise_pci_address(text)


def test_json_comes_back() -> None:
    topology = HostTopology(
        numa_nodes=(NumaNode(id=2, cpus="0-3", memory_bytes=1, distances=(10, 20)), NumaNode(id=7, cpus="")),
        gpus=(Gpu(index=0, uuid="GPU-1", pci_address="0000:01:00.0", numa=7, compute_capability="12.0"),),
        nics=(Nic(name="eth0"),),
    )
    assert topology_from_json(to_json(topology)) == topology
    assert topology_from_json(to_json(UNKNOWN)) == UNKNOWN
    assert to_json(UNKNOWN) == {"numa_nodes": None, "gpus": None, "nics": None, "driver": None, "notes": []}


def test_unknown_keys_and_the_envelope_are_skipped() -> None:
    data = {"schema": 1, "pd_units": "9", "exit_code": 0, "message": "", "more": [], **to_json(UNKNOWN)}
    assert topology_from_json(data) == UNKNOWN
    assert topology_from_json({"gpus": [{"index": 0, "numa": -1, "new": 1}]}).gpus == (Gpu(index=0),)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"gpus": {}}, "gpus: must be a list or null"),
        ({"gpus": [3]}, "gpus[0]: must be an object"),
        ({"gpus": [{}]}, "gpus[0].index: is missing"),
        ({"gpus": [{"index": True}]}, "gpus[0].index: must be a whole number or null"),
        ({"gpus": [{"index": -2}]}, "gpus[0].index: must be from 0 to"),
        ({"gpus": [{"index": 0, "pci_address": "x"}]}, "gpus[0].pci_address: not a PCI address"),
        ({"gpus": [{"index": 0, "uuid": 3}]}, "gpus[0].uuid: must be a string or null"),
        ({"gpus": [{"index": 0}, {"index": 0}]}, "gpus[1].index: GPU 0 is there twice"),
        (
            {"gpus": [{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-a"}]},
            "gpus[1].uuid: GPU-a is there twice",
        ),
        ({"gpus": [{"index": 0, "uuid": "0,1"}]}, "gpus[0].uuid: '0,1' is none (it looks like GPU-"),
        ({"gpus": [{"index": 0, "compute_capability": "12"}]}, "gpus[0].compute_capability: '12' is none"),
        ({"gpus": [{"index": 0, "memory_bytes": -1}]}, "gpus[0].memory_bytes: must not be negative"),
        ({"gpus": [{"index": 0, "mig": 1}]}, "gpus[0].mig: must be true, false or null"),
        (
            {"gpus": [{"index": 0, "pci_address": "01:00.0"}, {"index": 1, "pci_address": "0000:01:00.0"}]},
            "gpus[1].pci_address: 0000:01:00.0 is there twice",
        ),
        (
            {"gpus": [{"index": 0, "pci_address": "81:00.0"}, {"index": 1, "pci_address": "01:00.0"}]},
            "gpus: GPU 1 (0000:01:00.0) comes before GPU 0 (0000:81:00.0) on the PCI bus",
        ),
        ({"gpus": [], "driver": 3}, "topology.driver: must be a string or null"),
        ({"numa_nodes": [{"id": 0, "memory_bytes": "1"}]}, "numa_nodes[0].memory_bytes: must be a whole"),
        ({"numa_nodes": [{"id": 0, "distances": [10, 20]}]}, "numa_nodes[0].distances: has 2 values for 1"),
        ({"numa_nodes": [{"id": 99999}]}, "numa_nodes[0].id: must be from 0 to"),
        (
            {"numa_nodes": [{"id": 0}], "nics": [{"name": "a", "numa": 1}]},
            "nics[0].numa: there is no NUMA node 1",
        ),
        ({"numa_nodes": [{"id": 0, "cpus": "x"}]}, "numa_nodes[0].cpus: not a CPU list"),
        ({"numa_nodes": [{"id": 0, "distances": ["x"]}]}, "numa_nodes[0].distances: must be a list"),
        (
            {"numa_nodes": [{"id": 0, "cpus": "0-3"}, {"id": 1, "cpus": "3-4"}]},
            "numa_nodes[1].cpus: CPU 3 is in",
        ),
        ({"numa_nodes": [{"id": 0}, {"id": 0}]}, "numa_nodes[1].id: NUMA node 0 is there twice"),
        (
            {"numa_nodes": [{"id": 0}], "gpus": [{"index": 0, "numa": 3}]},
            "gpus[0].numa: there is no NUMA node 3",
        ),
    ],
)
def test_topologies_that_lie(data: dict, fault: str) -> None:
    with pytest.raises(PdUnitsError) as caught:
        topology_from_json(data)
    assert caught.value.exit_code == 2
    assert str(caught.value.faults[0]).startswith(fault)


def test_not_an_object() -> None:
    with pytest.raises(PdUnitsError, match="a JSON object is wanted"):
        topology_from_json([1])
