"""Where an instance runs: GPUs against the host, NUMA nodes to bind to, and whether sm_120 flags apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pd_units.errors import Fault
from pd_units.model_types import Deployment, Engine, Instance, Pin
from pd_units.topology import Gpu, HostTopology, format_cpu_list, parse_cpu_list


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Result for one instance. `numa_nodes` () = no binding. `visible`: value of CUDA_VISIBLE_DEVICES,
    None = every GPU stays visible; `base_gpu_id` and `gpu_id_step` then pick them."""

    numa_nodes: tuple[int, ...] = ()
    cpus: str | None = None
    visible: str | None = None
    base_gpu_id: int | None = None
    gpu_id_step: int | None = None
    sm120: bool = False

    @property
    def numa_mask(self) -> str | None:
        """Value of NUMAMask=."""
        return format_cpu_list(self.numa_nodes) if self.numa_nodes else None


class Placer:
    """Places instances on one host and collects what is impossible (`faults`) or unwise (`warnings`)."""

    def __init__(
        self,
        topology: HostTopology,
        instances: Sequence[Instance],
        *,
        skip_gpu: bool = False,
        skip_numa: bool = False,
    ) -> None:
        self.skip_gpu = skip_gpu
        self.skip_numa = skip_numa
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []
        self.topology = self._of_the_target(topology, instances)

    def _of_the_target(self, topology: HostTopology, instances: Sequence[Instance]) -> HostTopology:
        """Where the GPUs are not known and a declared NUMA node is not there, this is a laptop, not the
        host that the units are for: then its NUMA nodes say nothing, and all is rendered as declared."""
        if topology.gpus is not None or self.skip_gpu or self.skip_numa:
            return topology
        declared = {node for each in instances if isinstance(each.numa, tuple) for node in each.numa}
        there = {node.id for node in topology.numa_nodes} if topology.numa_nodes is not None else declared
        if lacking := declared - (there or {0}):
            what = f"this host has no NUMA node {format_cpu_list(lacking)}: all nodes are taken as declared"
            self.warnings.append(Fault("numa", what))
            return replace(topology, numa_nodes=None)
        return topology

    def place(self, engine: Engine, instance: Instance) -> Placement:
        gpus = self._gpus(instance)
        nodes = self._numa_nodes(instance, gpus)
        visible, base, step = self._pin(engine, instance, gpus)
        return Placement(
            numa_nodes=nodes,
            cpus=self._cpus(nodes),
            visible=visible,
            base_gpu_id=base,
            gpu_id_step=step,
            sm120=self._sm120(engine, instance, gpus),
        )

    def _gpus(self, instance: Instance) -> tuple[Gpu, ...] | None:
        """The instance's GPUs, or None where they are not known."""
        known, where = self.topology.gpus, f"{instance.where}.gpus"
        if known is None:
            if not self.skip_gpu:
                self.warnings.append(
                    Fault(
                        "gpus", "the GPUs of this host are not known: pins and kernel flags are as declared"
                    )
                )
            return None
        found = [self.topology.gpu(index) for index in instance.gpus]
        lacking = [index for index, gpu in zip(instance.gpus, found, strict=True) if gpu is None]
        if lacking and self.skip_gpu:
            return None
        for index in lacking:
            there = f"{len(known)}: {format_cpu_list(gpu.index for gpu in known)}" if known else "none"
            self.faults.append(Fault(where, f"there is no GPU {index} on this host", f"it has {there}"))
        return tuple(gpu for gpu in found if gpu is not None)

    def _numa_nodes(self, instance: Instance, gpus: Sequence[Gpu] | None) -> tuple[int, ...]:
        where, known = f"{instance.where}.numa", self.topology.numa_nodes
        if instance.numa == "none":
            return ()
        if instance.numa == "auto":
            return self._auto_nodes(where, gpus)
        if known is None:
            return tuple(sorted(instance.numa))
        lacking = [node for node in instance.numa if self.topology.numa_node(node) is None]
        if not known:
            lacking = [node for node in lacking if node != 0]
        if lacking and not self.skip_numa:
            has = f"it has {format_cpu_list(node.id for node in known) or 'no NUMA'}"
            self.faults += [
                Fault(where, f"there is no NUMA node {node} on this host", has) for node in lacking
            ]
            return ()
        for node in lacking:
            self.warnings.append(Fault(where, f"there is no NUMA node {node} on this host: not bound to it"))
        nodes = tuple(sorted(set(instance.numa) - set(lacking)))
        if not nodes or not self._worth_binding(where):
            return ()
        unusable = [each for each in nodes if self._unusable(each)]
        self.faults += [Fault(where, f"NUMA node {each} {self._unusable(each)}") for each in unusable]
        self._compare_with_gpus(where, nodes, gpus or ())
        return nodes

    def _auto_nodes(self, where: str, gpus: Sequence[Gpu] | None) -> tuple[int, ...]:
        if gpus is None:
            self.warnings.append(Fault(where, "the GPUs' NUMA nodes are not known: no binding"))
            return ()
        if not gpus or not self._worth_binding(where):
            return ()
        nodes = sorted({gpu.numa for gpu in gpus if gpu.numa is not None})
        unknown = [gpu.index for gpu in gpus if gpu.numa is None]
        if unknown:
            what = f"the kernel knows no NUMA node of GPU {format_cpu_list(unknown)}: no binding"
            self.warnings.append(Fault(where, what))
            return ()
        for node in nodes:
            if problem := self._unusable(node):
                self.warnings.append(Fault(where, f"NUMA node {node} of the GPUs {problem}: no binding"))
                return ()
        if len(nodes) > 1:
            self.warnings.append(
                Fault(
                    where,
                    f"the GPUs span NUMA nodes {format_cpu_list(nodes)}: bound to all of them",
                    "GPUs of one node would keep host memory and PCIe traffic local",
                )
            )
        return tuple(nodes)

    def _worth_binding(self, where: str) -> bool:
        """False on a host of one NUMA node or none, where a binding would change nothing."""
        nodes = self.topology.numa_nodes
        if nodes is None or len(nodes) > 1:
            return True
        have = "one NUMA node" if nodes else "no NUMA nodes"
        self.warnings.append(Fault(where, f"this host has {have}: no binding"))
        return False

    def _unusable(self, number: int) -> str | None:
        """Why nothing can be bound to that node (systemd then fails the start with 242/NUMA_POLICY)."""
        node = self.topology.numa_node(number)
        if node is None:
            return None
        if node.memory_bytes == 0:
            return "has no memory"
        return "has no CPUs" if node.cpus == "" else None

    def _compare_with_gpus(self, where: str, nodes: Sequence[int], gpus: Sequence[Gpu]) -> None:
        away = [gpu for gpu in gpus if gpu.numa is not None and gpu.numa not in nodes]
        if not away:
            return
        homes = sorted({gpu.numa for gpu in away if gpu.numa is not None})
        cost = "every copy between host memory and these GPUs crosses the socket link"
        if distance := self._distance(nodes[0], homes[0]):
            cost += f" (distance {distance}, local is 10)"
        self.warnings.append(
            Fault(
                where,
                f"GPU {format_cpu_list(gpu.index for gpu in away)} is on NUMA node {format_cpu_list(homes)}, "
                f"not on {format_cpu_list(nodes)}",
                cost,
            )
        )

    def _distance(self, first: int, second: int) -> int | None:
        numbers = [node.id for node in self.topology.numa_nodes or ()]
        node = self.topology.numa_node(first)
        if node is None or second not in numbers or len(node.distances) != len(numbers):
            return None
        return node.distances[numbers.index(second)]

    def _cpus(self, nodes: Sequence[int]) -> str | None:
        found = [self.topology.numa_node(number) for number in nodes]
        cpus = {cpu for node in found if node is not None for cpu in parse_cpu_list(node.cpus or "")}
        return format_cpu_list(cpus) if cpus and None not in found else None

    def _pin(
        self, engine: Engine, instance: Instance, gpus: Sequence[Gpu] | None
    ) -> tuple[str | None, int | None, int | None]:
        """(CUDA_VISIBLE_DEVICES, --base-gpu-id, --gpu-id-step)."""
        where = f"{instance.where}.gpus"
        if engine.pin is Pin.BASE_GPU_ID:
            for name in ("base-gpu-id", "gpu-id-step"):
                if name in instance.args or name in engine.args:
                    what = f"the option {name} would override gpus"
                    self.faults.append(Fault(where, what, 'pd-units sets it under pin = "base-gpu-id"'))
            first, rest = instance.gpus[0], instance.gpus[1:]
            step = rest[0] - first if rest else 1
            if step < 1 or list(instance.gpus) != list(range(first, first + step * len(instance.gpus), step)):
                self.faults.append(
                    Fault(where, 'pin = "base-gpu-id" needs GPUs at even steps upwards, such as [4, 5, 6, 7]')
                )
            return None, first, step if step != 1 else None
        indexes = ",".join(map(str, instance.gpus))
        if engine.pin is Pin.INDEX:
            return indexes, None, None
        uuids = [gpu.uuid for gpu in gpus or ()]
        if gpus is not None and len(uuids) < len(instance.gpus):
            return indexes, None, None  # a GPU that is not there: a fault already
        if gpus is None or (None in uuids and self.skip_gpu):
            what = "the GPUs' UUIDs are not known: pinned by index"
            self.warnings.append(Fault(where, what, 'give a topology that has them, or say pin = "index"'))
            return indexes, None, None
        for gpu in gpus:
            if gpu.uuid is None:
                self.faults.append(
                    Fault(where, f"the UUID of GPU {gpu.index} is not known", "is the NVIDIA driver loaded?")
                )
        return ",".join(uuid or "" for uuid in uuids), None, None

    def _sm120(self, engine: Engine, instance: Instance, gpus: Sequence[Gpu] | None) -> bool:
        if not engine.sm120:
            return False
        if gpus is None or self.skip_gpu:
            return True
        where = "engine.sm120"
        other = [gpu for gpu in gpus if gpu.compute_capability and not _is_sm120(gpu)]
        unknown = [gpu.index for gpu in gpus if not gpu.compute_capability]
        if other:
            what = f"GPU {other[0].index} has compute capability {other[0].compute_capability}"
            hint = "these kernels are for 12.x only"
            self.warnings.append(Fault(where, f"left out of {instance.where}: {what}", hint))
            return False
        if unknown:
            what = (
                f"the compute capability of GPU {format_cpu_list(unknown)} is not known: rendered as declared"
            )
            self.warnings.append(Fault(where, what))
        return True


def _is_sm120(gpu: Gpu) -> bool:
    return (gpu.compute_capability or "").partition(".")[0] == "12"


def check_gpus_together(deployments: Sequence[Deployment]) -> tuple[Fault, ...]:
    """GPUs that two deployments of one host both use: exit 12 for a call that installs them all."""
    faults: list[Fault] = []
    owner: dict[int, Deployment] = {}
    for deployment in deployments:
        for instance in deployment.instances:
            for gpu in instance.gpus:
                other = owner.setdefault(gpu, deployment)
                if other is not deployment:
                    where = f"{deployment.source or deployment.name}: {instance.where}.gpus"
                    faults.append(Fault(where, f"GPU {gpu} is used by the deployment {other.name} already"))
    return tuple(faults)
