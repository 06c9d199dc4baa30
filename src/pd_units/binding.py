"""Which NUMA nodes an instance is bound to, and whether that agrees with where its GPUs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pd_units.errors import Fault
from pd_units.model_types import Instance
from pd_units.topology import Gpu, HostTopology, NumaNode, format_cpu_list, parse_cpu_list


@dataclass(slots=True)
class Findings:
    """What is impossible (`faults`) or unwise (`warnings`) on a host, in the order it was found."""

    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)


class Binder:
    """Binds instances to the NUMA nodes of one host. `skip` leaves out nodes that the host lacks."""

    def __init__(self, topology: HostTopology, findings: Findings, *, skip: bool) -> None:
        self.topology = topology
        self.findings = findings
        self.skip = skip

    def nodes_of(self, instance: Instance, gpus: Sequence[Gpu] | None) -> tuple[int, ...]:
        """Nodes to bind to, () = no binding. `gpus` None = not known."""
        where = f"{instance.where}.numa"
        if instance.numa == "none":
            return ()
        if instance.numa == "auto":
            return self._auto(where, gpus)
        if self.topology.numa_nodes is None:
            return tuple(sorted(instance.numa))
        return self._declared(where, instance.numa, gpus or ())

    def cpus_of(self, nodes: Sequence[int]) -> str | None:
        """CPUs of those nodes in list form, None if they are not known."""
        found = [self.topology.numa_node(number) for number in nodes]
        if any(node is None or node.cpus is None for node in found):
            return None
        cpus = {cpu for node in found if node is not None for cpu in parse_cpu_list(node.cpus or "")}
        return format_cpu_list(cpus) if cpus else None

    def _warn(self, where: str, what: str, hint: str = "") -> None:
        self.findings.warnings.append(Fault(where, what, hint))

    def _fault(self, where: str, what: str, hint: str = "") -> None:
        self.findings.faults.append(Fault(where, what, hint))

    def _declared(self, where: str, numa: Sequence[int], gpus: Sequence[Gpu]) -> tuple[int, ...]:
        known = self.topology.numa_nodes or ()
        lacking = [node for node in numa if self.topology.numa_node(node) is None]
        if not known:
            lacking = [node for node in lacking if node != 0]
        if lacking and not self.skip:
            has = f"it has {format_cpu_list(node.id for node in known) or 'no NUMA'}"
            for node in lacking:
                self._fault(where, f"there is no NUMA node {node} on this host", has)
            return ()
        for node in lacking:
            self._warn(where, f"there is no NUMA node {node} on this host: not bound to it")
        nodes = tuple(sorted(set(numa) - set(lacking)))
        if not nodes or not self._worth_binding(where):
            return ()
        if problem := self._unusable(nodes):
            self._fault(where, f"NUMA node {format_cpu_list(nodes)} {problem}", self._usable())
        self._compare(where, nodes, gpus)
        return nodes

    def _auto(self, where: str, gpus: Sequence[Gpu] | None) -> tuple[int, ...]:
        if gpus is None:
            self._warn(where, "the GPUs' NUMA nodes are not known: no binding")
            return ()
        if not gpus or not self._worth_binding(where):
            return ()
        nodes = sorted({gpu.numa for gpu in gpus if gpu.numa is not None})
        unknown = [gpu.index for gpu in gpus if gpu.numa is None]
        if unknown:
            self._warn(where, f"the kernel knows no NUMA node of GPU {format_cpu_list(unknown)}: no binding")
            return ()
        for node in nodes:
            if problem := self._unusable((node,)):
                self._warn(where, f"NUMA node {node} of the GPUs {problem}: no binding", self._usable())
                return ()
        if len(nodes) > 1:
            what = f"the GPUs span NUMA nodes {format_cpu_list(nodes)}: bound to all of them"
            self._warn(where, what, "GPUs of one node would keep host memory and PCIe traffic local")
        return tuple(nodes)

    def _worth_binding(self, where: str) -> bool:
        """False on a host of one NUMA node or none, where a binding would change nothing."""
        nodes = self.topology.numa_nodes
        if nodes is None or len(nodes) > 1:
            return True
        self._warn(where, f"this host has {'one NUMA node' if nodes else 'no NUMA nodes'}: no binding")
        return False

    def _unusable(self, numbers: Sequence[int]) -> str | None:
        """Why nothing can be bound to those nodes together (systemd fails such a start with
        242/NUMA_POLICY, or finds no CPU for CPUAffinity=numa)."""
        nodes = [self.topology.numa_node(number) for number in numbers]
        if self.topology.numa_nodes is not None and None in nodes:
            return "is not online"
        if all(node is not None and node.memory_bytes == 0 for node in nodes):
            return "has no memory"
        return "has no CPUs" if all(node is not None and node.cpus == "" for node in nodes) else None

    def _usable(self) -> str:
        good = [node.id for node in self.topology.numa_nodes or () if can_bind(node)]
        return f"nodes with CPUs and memory: {format_cpu_list(good) or 'none'}"

    def _compare(self, where: str, nodes: Sequence[int], gpus: Sequence[Gpu]) -> None:
        away = [gpu for gpu in gpus if gpu.numa is not None and gpu.numa not in nodes]
        if not away:
            return
        homes = sorted({gpu.numa for gpu in away if gpu.numa is not None})
        cost = "every copy between host memory and these GPUs crosses the socket link"
        if distance := self._distance(nodes[0], homes[0]):
            cost += f" (distance {distance}, local is 10)"
        indexes = format_cpu_list(gpu.index for gpu in away)
        what = f"GPU {indexes} is on NUMA node {format_cpu_list(homes)}, not on {format_cpu_list(nodes)}"
        self._warn(where, what, cost)

    def _distance(self, first: int, second: int) -> int | None:
        numbers = [node.id for node in self.topology.numa_nodes or ()]
        node = self.topology.numa_node(first)
        if node is None or second not in numbers or len(node.distances) != len(numbers):
            return None
        return node.distances[numbers.index(second)]


def can_bind(node: NumaNode) -> bool:
    """Whether a unit can be bound to the node alone: it has CPUs and memory, as far as is known."""
    return node.memory_bytes != 0 and node.cpus != ""
