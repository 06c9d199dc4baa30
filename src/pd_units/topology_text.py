"""A host's topology as a picture for a terminal: nodes, and on each its GPUs, NICs and units. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pd_units.naming import Role, stem
from pd_units.topology import Gpu, HostTopology, Nic, NumaNode

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """An installed unit, and the GPUs and NUMA nodes that it was given."""

    unit: str
    role: Role
    gpus: tuple[int, ...]
    numa: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A NUMA node with what is on it; `node` None: what is on no node that is known."""

    node: NumaNode | None
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]


def places_of(topology: HostTopology) -> tuple[Place, ...]:
    """Every NUMA node, then what is left over, if anything is. A host's only node has everything."""
    gpus, nics = topology.gpus or (), topology.nics or ()
    nodes = topology.numa_nodes or ()
    if len(nodes) == 1:
        return (Place(nodes[0], gpus, nics),)
    places = [
        Place(
            node,
            tuple(gpu for gpu in gpus if gpu.numa == node.id),
            tuple(nic for nic in nics if nic.numa == node.id),
        )
        for node in nodes
    ]
    there = {node.id for node in nodes}
    rest = Place(
        None,
        tuple(gpu for gpu in gpus if gpu.numa not in there),
        tuple(nic for nic in nics if nic.numa not in there),
    )
    return (*places, rest) if rest.gpus or rest.nics else tuple(places)


def summary(topology: HostTopology) -> str:
    """One line: how many GPUs and NUMA nodes, and the driver."""
    parts = [_count(topology.gpus, "GPU"), _count(topology.numa_nodes, "NUMA node")]
    return ", ".join([*parts, f"driver {topology.driver}"] if topology.driver else parts)


def _count(items: Sequence[object] | None, one: str) -> str:
    return f"{one}s not known" if items is None else f"{len(items)} {one}{'' if len(items) == 1 else 's'}"


def draw_text(topology: HostTopology, tenants: Sequence[Tenant] = ()) -> str:
    """The picture, with box-drawing characters; `to_ascii` takes them out."""
    lines = [summary(topology), ""]
    places = places_of(topology)
    widths = _widths([_gpu_cells(gpu, tenants) for gpu in topology.gpus or ()])
    for place in places:
        lines.append(_heading(place, topology, tenants))
        rows = [_row(_gpu_cells(gpu, tenants), widths) for gpu in place.gpus]
        rows += [_nic_line(nic) for nic in place.nics]
        lines += [f"{'└──' if row is rows[-1] else '├──'} {row}" for row in rows]
    if places:
        lines.append("")
    if topology.numa_nodes and len(topology.numa_nodes) == 1:
        lines.append("One NUMA node: units are not bound.")
    lines += [f"note: {note}" for note in topology.notes]
    return "\n".join(lines).rstrip("\n")


def to_ascii(text: str) -> str:
    """The picture for a terminal that has no box-drawing characters."""
    return text.replace("└", "`").replace("├", "|").replace("─", "-")


def _heading(place: Place, topology: HostTopology, tenants: Iterable[Tenant]) -> str:
    node = place.node
    if node is None:
        return "No NUMA node known (nothing is bound for these)"
    parts = facts_of(node, topology.numa_nodes or ())
    bound = [stem(tenant.unit) for tenant in tenants if node.id in tenant.numa]
    if bound:
        parts.append(f"bound here: {', '.join(bound)}")
    return f"NUMA node {node.id}: {'; '.join(parts)}"


def facts_of(node: NumaNode, nodes: Sequence[NumaNode]) -> list[str]:
    """CPUs, memory and distances of one of `nodes`, in words."""
    cpus = "CPUs not known" if node.cpus is None else f"CPUs {node.cpus}" if node.cpus else "no CPUs"
    facts = [cpus, size_text(node.memory_bytes) or "memory not known"]
    if len(nodes) > 1 and len(node.distances) == len(nodes):
        pairs = zip(nodes, node.distances, strict=True)
        facts.append("distance " + " ".join(f"{other.id}:{distance}" for other, distance in pairs))
    return facts


def _gpu_cells(gpu: Gpu, tenants: Iterable[Tenant]) -> list[str]:
    units = [stem(tenant.unit) for tenant in tenants if gpu.index in tenant.gpus]
    return [
        f"GPU {gpu.index}",
        gpu.pci_address or "address ?",
        short_name(gpu) or "model ?",
        f"cc {gpu.compute_capability or '?'}",
        size_text(gpu.memory_bytes) or "memory ?",
        "MIG" if gpu.mig else "",
        ", ".join(units) or "-",
        gpu.uuid or "UUID ?",
    ]


def short_name(gpu: Gpu) -> str:
    """The product's name without the maker's."""
    return (gpu.name or "").removeprefix("NVIDIA ")


def _nic_line(nic: Nic) -> str:
    return f"NIC {nic.name}  {nic.pci_address or 'address ?'}{'  RDMA' if nic.rdma else ''}"


def size_text(size: int | None) -> str:
    """A size in GiB, "" if it is not known."""
    return f"{size / _GIB:.0f} GiB" if size is not None else ""


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True) if width)
    return "  ".join(padded).rstrip()
