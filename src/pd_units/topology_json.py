"""The JSON of `pd-units topology --json`, written, and read back by `--topology FILE`.

A file that contradicts itself is refused: a wrong pin would follow from it in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from pd_units.errors import ExitCode, Fault, PdUnitsError
from pd_units.topology import (
    Gpu,
    HostTopology,
    Nic,
    NumaNode,
    normalise_pci_address,
    parse_cpu_list,
    parse_pci_address,
)

#: Larger numbers of nodes and GPUs than any host has.
_NUMBER_MAX = 4095
_INTEGER_MAX = (1 << 63) - 1
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
_CAPABILITY = re.compile(r"\d{1,2}\.\d")


def to_json(topology: HostTopology) -> dict[str, Any]:
    """The keys of the `topology` object: the lists, `driver` and `notes`."""
    return {
        "numa_nodes": _list_or_none(topology.numa_nodes),
        "gpus": _list_or_none(topology.gpus),
        "nics": _list_or_none(topology.nics),
        "driver": topology.driver,
        "notes": list(topology.notes),
    }


def _list_or_none(items: Iterable[Any] | None) -> list[dict[str, Any]] | None:
    if items is None:
        return None
    return [
        {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(item).items()}
        for item in items
    ]


class _Reader:
    """Typed access to a topology object, collecting faults with their paths."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def items(self, data: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]] | None:
        value = data.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            self.faults.append(Fault(key, "must be a list or null"))
            return None
        found = []
        for number, item in enumerate(value):
            if isinstance(item, Mapping):
                found.append((f"{key}[{number}]", item))
            else:
                self.faults.append(Fault(f"{key}[{number}]", "must be an object"))
        return found

    def number(self, where: str, data: Mapping[str, Any], key: str) -> int | None:
        value = data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.faults.append(Fault(f"{where}.{key}", "must be a whole number or null"))
            return None
        if not -_INTEGER_MAX <= value <= _INTEGER_MAX:
            self.faults.append(Fault(f"{where}.{key}", "has more than 64 bits"))
            return None
        return value

    def size(self, where: str, data: Mapping[str, Any]) -> int | None:
        value = self.number(where, data, "memory_bytes")
        if value is not None and value < 0:
            self.faults.append(Fault(f"{where}.memory_bytes", "must not be negative"))
        return value

    def truth(self, where: str, data: Mapping[str, Any], key: str) -> bool | None:
        value = data.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.faults.append(Fault(f"{where}.{key}", "must be true, false or null"))
        return None

    def text(self, where: str, data: Mapping[str, Any], key: str) -> str | None:
        value = data.get(key)
        if value is None or isinstance(value, str):
            return value
        self.faults.append(Fault(f"{where}.{key}", "must be a string or null"))
        return None

    def required_number(self, where: str, data: Mapping[str, Any], key: str) -> int:
        value = self.number(where, data, key)
        if value is None and data.get(key) is None:
            self.faults.append(Fault(f"{where}.{key}", "is missing"))
        elif value is not None and not 0 <= value <= _NUMBER_MAX:
            self.faults.append(Fault(f"{where}.{key}", f"must be from 0 to {_NUMBER_MAX}"))
        return value if value is not None else -1

    def matching(
        self, where: str, data: Mapping[str, Any], key: str, pattern: re.Pattern[str], like: str
    ) -> str | None:
        value = self.text(where, data, key)
        if value is not None and not pattern.fullmatch(value):
            self.faults.append(Fault(f"{where}.{key}", f"{value[:60]!r} is none", f"it looks like {like}"))
        return value

    def numa(self, where: str, data: Mapping[str, Any]) -> int | None:
        value = self.number(where, data, "numa")
        return value if value is not None and value >= 0 else None

    def pci(self, where: str, data: Mapping[str, Any]) -> str | None:
        value = self.text(where, data, "pci_address")
        if value is None:
            return None
        try:
            return normalise_pci_address(value)
        except ValueError as error:
            self.faults.append(Fault(f"{where}.pci_address", str(error)))
            return None


def topology_from_json(data: object, *, source: str = "topology") -> HostTopology:
    """Topology in a parsed JSON object; keys that it does not know are skipped.

    Raises: PdUnitsError 2, with every fault and its path.
    """
    if not isinstance(data, Mapping):
        raise PdUnitsError(
            f"{source} is not a topology: a JSON object is wanted",
            hint="write it with: pd-units topology --json",
            exit_code=ExitCode.USAGE,
        )
    reader = _Reader()
    topology = HostTopology(
        numa_nodes=_numa_nodes(reader, data),
        gpus=_gpus(reader, data),
        nics=_nics(reader, data),
        driver=reader.text("topology", data, "driver"),
    )
    if not reader.faults:
        reader.faults += _contradictions(topology)
    if reader.faults:
        raise PdUnitsError(
            f"{source} is not a usable topology",
            faults=reader.faults,
            hint="write it with: pd-units topology --json",
            exit_code=ExitCode.USAGE,
        )
    return topology


def _numa_nodes(reader: _Reader, data: Mapping[str, Any]) -> tuple[NumaNode, ...] | None:
    items = reader.items(data, "numa_nodes")
    if items is None:
        return None
    return tuple(
        NumaNode(
            id=reader.required_number(where, item, "id"),
            cpus=_cpus(reader, where, item),
            memory_bytes=reader.size(where, item),
            distances=_distances(reader, where, item, len(items)),
        )
        for where, item in items
    )


def _cpus(reader: _Reader, where: str, item: Mapping[str, Any]) -> str | None:
    cpus = reader.text(where, item, "cpus")
    try:
        parse_cpu_list(cpus or "")
    except ValueError as error:
        reader.faults.append(Fault(f"{where}.cpus", str(error)))
        return None
    return cpus


def _distances(reader: _Reader, where: str, item: Mapping[str, Any], nodes: int) -> tuple[int, ...]:
    distances = item.get("distances") or []
    if not isinstance(distances, list) or not all(type(each) is int and each >= 0 for each in distances):
        reader.faults.append(Fault(f"{where}.distances", "must be a list of whole numbers or null"))
        return ()
    if len(distances) not in (0, nodes):
        what = f"has {len(distances)} values for {nodes} NUMA nodes"
        reader.faults.append(Fault(f"{where}.distances", what))
    return tuple(distances)


def _gpus(reader: _Reader, data: Mapping[str, Any]) -> tuple[Gpu, ...] | None:
    items = reader.items(data, "gpus")
    if items is None:
        return None
    return tuple(
        Gpu(
            index=reader.required_number(where, item, "index"),
            uuid=reader.matching(where, item, "uuid", _UUID, "GPU-12345678-..."),
            pci_address=reader.pci(where, item),
            numa=reader.numa(where, item),
            name=reader.text(where, item, "name"),
            compute_capability=reader.matching(where, item, "compute_capability", _CAPABILITY, "12.0"),
            memory_bytes=reader.size(where, item),
            mig=reader.truth(where, item, "mig"),
            minor=reader.number(where, item, "minor"),
        )
        for where, item in items
    )


def _nics(reader: _Reader, data: Mapping[str, Any]) -> tuple[Nic, ...] | None:
    items = reader.items(data, "nics")
    if items is None:
        return None
    return tuple(
        Nic(
            name=reader.text(where, item, "name") or "",
            pci_address=reader.pci(where, item),
            numa=reader.numa(where, item),
            rdma=reader.truth(where, item, "rdma"),
        )
        for where, item in items
    )


def _contradictions(topology: HostTopology) -> list[Fault]:
    """What cannot be true of any host: twice the same node, GPU or CPU, a GPU on a node that is not there,
    indexes that are not in PCI order."""
    gpus = topology.gpus or ()
    faults = [*_in_nodes(topology.numa_nodes or ()), *_in_gpus(gpus)]
    there = {node.id for node in topology.numa_nodes or ()}
    places = [(f"gpus[{number}]", gpu.numa) for number, gpu in enumerate(gpus)]
    places += [(f"nics[{number}]", nic.numa) for number, nic in enumerate(topology.nics or ())]
    for where, numa in places:
        if there and numa is not None and numa not in there:
            faults.append(Fault(f"{where}.numa", f"there is no NUMA node {numa}"))
    return faults


def _in_nodes(nodes: Sequence[NumaNode]) -> list[Fault]:
    faults: list[Fault] = []
    owner: dict[int, int] = {}
    seen: set[int] = set()
    for number, node in enumerate(nodes):
        if node.id in seen:
            faults.append(Fault(f"numa_nodes[{number}].id", f"NUMA node {node.id} is there twice"))
        seen.add(node.id)
        for cpu in parse_cpu_list(node.cpus or ""):
            if cpu in owner:
                what = f"CPU {cpu} is in NUMA node {owner[cpu]} already"
                faults.append(Fault(f"numa_nodes[{number}].cpus", what))
                break
            owner[cpu] = node.id
    return faults


def _in_gpus(gpus: Sequence[Gpu]) -> list[Fault]:
    faults: list[Fault] = []
    seen: set[tuple[str, object]] = set()
    for number, gpu in enumerate(gpus):
        words = {"index": f"GPU {gpu.index}", "uuid": gpu.uuid, "pci_address": gpu.pci_address}
        for key, words_of in words.items():
            if words_of is not None and (key, words_of) in seen:
                faults.append(Fault(f"gpus[{number}].{key}", f"{words_of} is there twice"))
            seen.add((key, words_of))
    known = [(gpu.index, gpu.pci_address) for gpu in gpus if gpu.pci_address is not None]
    ordered = sorted(known)
    for (index, address), (following, next_address) in pairwise(ordered):
        if parse_pci_address(next_address) < parse_pci_address(address):
            what = f"GPU {following} ({next_address}) comes before GPU {index} ({address}) on the PCI bus"
            faults.append(Fault("gpus", what, "indexes count in PCI order"))
    return faults
