"""A host's GPUs, NUMA nodes and NICs as data, and the JSON that `pd-units topology --json` prints.

Pure: adapters/sysfs.py reads a host, this module only gives the facts a shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pd_units.errors import ExitCode, Fault, PdUnitsError

_CPU_MAX = 65535
_PCI = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node. `cpus` in list form ("0-31,64-95", "" for a node of memory only);
    `distances` in the order of the host's nodes, 10 = local."""

    id: int
    cpus: str
    memory_bytes: int | None = None
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `index` counts in PCI order, as with CUDA_DEVICE_ORDER=PCI_BUS_ID; `numa` is None
    where the kernel knows no node (numa_node -1); `compute_capability` such as "12.0"."""

    index: int
    uuid: str | None = None
    pci_address: str | None = None
    numa: int | None = None
    name: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One network or RDMA device with a PCI function behind it."""

    name: str
    pci_address: str | None = None
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTopology:
    """What is known of a host. None = not known, () = known to have none."""

    numa_nodes: tuple[NumaNode, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None
    nics: tuple[Nic, ...] | None = None

    def gpu(self, index: int) -> Gpu | None:
        """The GPU of that index, or None if it is not there or the GPUs are not known."""
        return next((gpu for gpu in self.gpus or () if gpu.index == index), None)

    def numa_node(self, number: int) -> NumaNode | None:
        """The NUMA node of that number, or None if it is not there or the nodes are not known."""
        return next((node for node in self.numa_nodes or () if node.id == number), None)


#: Nothing is known: everything is rendered as declared.
UNKNOWN = HostTopology()


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers of a kernel list such as "0-3,8,10-11", sorted, once each.

    Raises: ValueError if it is not such a list.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"not a CPU list: {text!r}")
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise ValueError(f"a range that runs backwards: {part.strip()!r}")
        if high > _CPU_MAX:
            raise ValueError(f"no host has a CPU {high}")
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Kernel list of CPU (or node) numbers: (0, 1, 2, 8) -> "0-2,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def parse_pci_address(text: str) -> tuple[int, int, int, int]:
    """(domain, bus, device, function) of "0000:01:00.0", NVML's "00000000:01:00.0" or "01:00.0".

    Raises: ValueError.
    """
    match = _PCI.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a PCI address: {text!r}")
    domain, bus, device, function = (int(group or "0", 16) for group in match.groups())
    return domain, bus, device, function


def normalise_pci_address(text: str) -> str:
    """The address as sysfs writes it: lower case, domain of at least four digits."""
    domain, bus, device, function = parse_pci_address(text)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def to_json(topology: HostTopology) -> dict[str, Any]:
    """The `numa_nodes`, `gpus` and `nics` keys of the `topology` object (the contract's names)."""
    return {
        "numa_nodes": _list_or_none(topology.numa_nodes),
        "gpus": _list_or_none(topology.gpus),
        "nics": _list_or_none(topology.nics),
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
        return value

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
        elif value is not None and value < 0:
            self.faults.append(Fault(f"{where}.{key}", "must not be negative"))
        return value if value is not None else -1

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
        numa_nodes=_numa_nodes(reader, data), gpus=_gpus(reader, data), nics=_nics(reader, data)
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
    nodes = []
    for where, item in items:
        cpus = reader.text(where, item, "cpus") or ""
        try:
            parse_cpu_list(cpus)
        except ValueError as error:
            reader.faults.append(Fault(f"{where}.cpus", str(error)))
        distances = item.get("distances") or []
        if not isinstance(distances, list) or not all(type(each) is int for each in distances):
            reader.faults.append(Fault(f"{where}.distances", "must be a list of whole numbers or null"))
            distances = []
        nodes.append(
            NumaNode(
                id=reader.required_number(where, item, "id"),
                cpus=cpus,
                memory_bytes=reader.number(where, item, "memory_bytes"),
                distances=tuple(distances),
            )
        )
    return tuple(nodes)


def _gpus(reader: _Reader, data: Mapping[str, Any]) -> tuple[Gpu, ...] | None:
    items = reader.items(data, "gpus")
    if items is None:
        return None
    return tuple(
        Gpu(
            index=reader.required_number(where, item, "index"),
            uuid=reader.text(where, item, "uuid"),
            pci_address=reader.pci(where, item),
            numa=reader.numa(where, item),
            name=reader.text(where, item, "name"),
            compute_capability=reader.text(where, item, "compute_capability"),
            memory_bytes=reader.number(where, item, "memory_bytes"),
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
        )
        for where, item in items
    )


def _contradictions(topology: HostTopology) -> list[Fault]:
    """What cannot be true of any host: twice the same node, GPU or CPU, a GPU on a node that is not there."""
    faults: list[Fault] = []
    nodes = topology.numa_nodes or ()
    owner: dict[int, int] = {}
    seen: set[int] = set()
    for number, node in enumerate(nodes):
        if node.id in seen:
            faults.append(Fault(f"numa_nodes[{number}].id", f"NUMA node {node.id} is there twice"))
        seen.add(node.id)
        for cpu in parse_cpu_list(node.cpus):
            if cpu in owner:
                faults.append(
                    Fault(f"numa_nodes[{number}].cpus", f"CPU {cpu} is in NUMA node {owner[cpu]} already")
                )
                break
            owner[cpu] = node.id
    indexes: set[int] = set()
    uuids: set[str] = set()
    for number, gpu in enumerate(topology.gpus or ()):
        if gpu.uuid is not None and gpu.uuid in uuids:
            faults.append(Fault(f"gpus[{number}].uuid", f"{gpu.uuid} is there twice"))
        uuids |= {gpu.uuid} if gpu.uuid else set()
        if gpu.index in indexes:
            faults.append(Fault(f"gpus[{number}].index", f"GPU {gpu.index} is there twice"))
        indexes.add(gpu.index)
        if nodes and gpu.numa is not None and gpu.numa not in seen:
            faults.append(Fault(f"gpus[{number}].numa", f"there is no NUMA node {gpu.numa}"))
    return faults
