"""A host's GPUs, NUMA nodes and NICs as data, and the lists and addresses in which they are written.

Pure: adapters/sysfs.py reads a host, topology_json reads and writes the JSON of `pd-units topology --json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_CPU_MAX = 65535
_PCI = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node. `cpus`: those of its CPUs that are online, in list form ("0-31,64-95", "" for a node
    of memory only, None if not known); `distances` in the order of the host's nodes, 10 = local."""

    id: int
    cpus: str | None = None
    memory_bytes: int | None = None
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `index` counts in PCI order, as with CUDA_DEVICE_ORDER=PCI_BUS_ID; `numa` is None
    where the kernel knows no node (numa_node -1); `compute_capability` such as "12.0"; `mig`: whether it
    is cut into slices; `minor`: the N of /dev/nvidiaN, which is not the index."""

    index: int
    uuid: str | None = None
    pci_address: str | None = None
    numa: int | None = None
    name: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    mig: bool | None = None
    minor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One network or RDMA device with a PCI function behind it. An adapter is there as both: `eth2` and,
    with `rdma` true, `mlx5_0`."""

    name: str
    pci_address: str | None = None
    numa: int | None = None
    rdma: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTopology:
    """What is known of a host. None = not known, () = known to have none. `driver`: version of NVIDIA's.
    `notes`: what is missing or odd, a sentence each; they are no part of what two hosts are compared by."""

    numa_nodes: tuple[NumaNode, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None
    nics: tuple[Nic, ...] | None = None
    driver: str | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

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


def parse_cpu_mask(text: str) -> tuple[int, ...]:
    """CPU numbers of a kernel mask such as "00000000,0000ffff", sorted.

    Raises: ValueError if it is not such a mask.
    """
    bits = int(text.replace(",", "") or "0", 16)
    return tuple(number for number in range(bits.bit_length()) if bits >> number & 1)


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
