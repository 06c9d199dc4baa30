"""NUMA nodes of a sysroot: the nodes that are online, with the CPUs of theirs that are online.

Source: Documentation/ABI/stable/sysfs-devices-node and .../sysfs-devices-system-cpu of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pd_units.adapters.sysroot import Sysroot
from pd_units.topology import NumaNode, format_cpu_list, parse_cpu_list, parse_cpu_mask

_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"


@dataclass(frozen=True, slots=True)
class _Cpus:
    """Which CPUs can run: `online` where the kernel lists them, else all but `offline`. `node_of`: the
    node that each CPU's own directory links to."""

    online: frozenset[int] | None
    offline: frozenset[int]
    node_of: Mapping[int, int]

    def running(self, cpus: Iterable[int]) -> list[int]:
        return [
            cpu for cpu in cpus if cpu not in self.offline and (self.online is None or cpu in self.online)
        ]


def read_nodes(sysroot: Sysroot, notes: list[str]) -> tuple[NumaNode, ...] | None:
    """Nodes by number; () for a kernel without NUMA, None where the tree does not show it."""
    there = _numbered(sysroot.names(_NODES), "node")
    cpus = _read_cpus(sysroot, linked=not there)
    numbers = there or frozenset(cpus.node_of.values())
    if not numbers:
        return _no_nodes(sysroot, notes)
    online = _list(sysroot, f"{_NODES}/online")
    if online is not None:
        for number in sorted(numbers - online):
            notes.append(f"NUMA node {number} is offline")
        for number in sorted(online - numbers):
            notes.append(f"NUMA node {number} is online, but not in this tree")
        numbers &= online
    orders = _distance_order(sysroot, numbers, there)
    nodes = tuple(_read_node(sysroot, number, cpus, orders, notes) for number in sorted(numbers))
    if len(nodes) == 1 and nodes[0].cpus is None and cpus.online:
        nodes = (replace(nodes[0], cpus=format_cpu_list(cpus.online)),)  # one node has all CPUs
    _note_oddities(nodes, notes)
    return nodes


def _no_nodes(sysroot: Sysroot, notes: list[str]) -> tuple[NumaNode, ...] | None:
    if not sysroot.is_directory("sys/devices/system"):
        notes.append("NUMA nodes: there is no /sys/devices/system to read them from")
        return None
    notes.append("NUMA nodes: none, this kernel has no NUMA support (no /sys/devices/system/node)")
    return ()


def _numbered(names: Iterable[str], word: str) -> frozenset[int]:
    """Numbers of the names WORD0, WORD1, ..."""
    return frozenset(
        int(name[len(word) :]) for name in names if name.startswith(word) and name[len(word) :].isdecimal()
    )


def _list(sysroot: Sysroot, path: str) -> frozenset[int] | None:
    """A list of numbers; None if the file is not there, empty or nonsense."""
    text = sysroot.text(path)
    try:
        return frozenset(parse_cpu_list(text)) if text else None
    except ValueError:
        return None


def _read_cpus(sysroot: Sysroot, *, linked: bool) -> _Cpus:
    """`linked`: also look for the node that each CPU links to."""
    online = _list(sysroot, f"{_CPUS}/online")
    offline, node_of = set(), {}
    for cpu in _numbered(sysroot.names(_CPUS), "cpu") if online is None or linked else ():
        if online is None and sysroot.text(f"{_CPUS}/cpu{cpu}/online") == "0":
            offline.add(cpu)
        for node in _numbered(sysroot.names(f"{_CPUS}/cpu{cpu}"), "node") if linked else ():
            node_of[cpu] = node
    return _Cpus(online, frozenset(offline), node_of)


def _distance_order(
    sysroot: Sysroot, numbers: frozenset[int], there: frozenset[int]
) -> list[tuple[int, ...]]:
    """The node numbers that a row of distances may stand for: those online, or all that may ever be."""
    possible = _list(sysroot, f"{_NODES}/possible") or frozenset()
    return [tuple(sorted(each)) for each in (numbers, there, possible) if numbers <= each]


def _read_node(
    sysroot: Sysroot, number: int, cpus: _Cpus, orders: list[tuple[int, ...]], notes: list[str]
) -> NumaNode:
    directory = f"{_NODES}/node{number}"
    found = _cpus_of(sysroot, number, cpus)
    running = cpus.running(found or ())
    if found and len(running) < len(found):
        stopped = format_cpu_list(set(found) - set(running))
        notes.append(f"CPU {stopped} of NUMA node {number} is offline: left out")
    return NumaNode(
        id=number,
        cpus=format_cpu_list(running) if found is not None else None,
        memory_bytes=_memory_bytes(sysroot.text(f"{directory}/meminfo")),
        distances=_distances(sysroot.text(f"{directory}/distance"), orders),
    )


def _cpus_of(sysroot: Sysroot, number: int, cpus: _Cpus) -> tuple[int, ...] | None:
    """The node's CPUs: from its list, its mask, or the links between node and CPUs; None if none of it is
    there."""
    directory = f"{_NODES}/node{number}"
    for name, parse in (("cpulist", parse_cpu_list), ("cpumap", parse_cpu_mask)):
        text = sysroot.text(f"{directory}/{name}")
        try:
            if text is not None:
                return parse(text)
        except ValueError:
            continue
    linked = _numbered(sysroot.names(directory), "cpu")
    linked = linked or frozenset(cpu for cpu, node in cpus.node_of.items() if node == number)
    return tuple(sorted(linked)) or None


def _distances(text: str | None, orders: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Distances to the nodes that are online, in their order; () where the row fits no set of nodes."""
    row = [int(each) for each in (text or "").split() if each.isdecimal()]
    for order in orders:
        if len(order) == len(row):
            return tuple(row[order.index(number)] for number in orders[0])
    return ()


def _memory_bytes(meminfo: str | None) -> int | None:
    match = re.search(r"MemTotal:\s*(\d+) kB", meminfo or "")
    return int(match[1]) * 1024 if match else None


def _note_oddities(nodes: tuple[NumaNode, ...], notes: list[str]) -> None:
    kinds: dict[str, list[int]] = {}
    owner: dict[int, int] = {}
    shared = set()
    for node in nodes:
        if node.memory_bytes == 0:
            kinds.setdefault("NUMA node {} has no memory: nothing can be bound to it", []).append(node.id)
        elif node.cpus is None:
            kinds.setdefault("the CPUs of NUMA node {} are not known", []).append(node.id)
        elif not node.cpus:
            kinds.setdefault("NUMA node {} has memory only, no CPUs", []).append(node.id)
        for cpu in parse_cpu_list(node.cpus or ""):
            if owner.setdefault(cpu, node.id) != node.id:
                shared.add(cpu)
    notes += [text.format(format_cpu_list(numbers)) for text, numbers in kinds.items()]
    if shared:
        what = f"CPU {format_cpu_list(shared)} is in several NUMA nodes"
        notes.append(f"{what}: the firmware's table is wrong, and binding means little here")
