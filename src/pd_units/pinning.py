"""Where an instance runs: its GPUs, how the process is kept on them, and whether sm_120 flags apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pd_units.binding import Binder, Findings
from pd_units.errors import Fault
from pd_units.model_types import Deployment, Engine, Instance, Pin
from pd_units.sm120 import applies as sm120_applies
from pd_units.topology import Gpu, HostTopology, format_cpu_list

#: The variable by which an operator may name MIG slices himself.
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Result for one instance. `numa_nodes` () = no binding. `visible`: value of CUDA_VISIBLE_DEVICES,
    None = every GPU stays visible; `base_gpu_id` and `gpu_id_step` then pick them.

    `gpus`: the GPUs in the order of the file, None = not known. `known_nodes`: the host's NUMA nodes.
    """

    numa_nodes: tuple[int, ...] = ()
    cpus: str | None = None
    visible: str | None = None
    base_gpu_id: int | None = None
    gpu_id_step: int | None = None
    sm120: bool = False
    gpus: tuple[Gpu, ...] | None = None
    known_nodes: tuple[int, ...] | None = None

    @property
    def numa_mask(self) -> str | None:
        """Value of NUMAMask=."""
        return format_cpu_list(self.numa_nodes) if self.numa_nodes else None

    @property
    def away_from_gpus(self) -> bool:
        """Whether the unit is bound to other nodes than those of its GPUs, so that an engine which binds
        itself to its GPU's node would undo it."""
        return bool(self.numa_nodes) and any(gpu.numa not in self.numa_nodes for gpu in self.gpus or ())


class Placer:
    """Places instances on one host, and collects what it finds on the way."""

    def __init__(
        self,
        topology: HostTopology,
        instances: Sequence[Instance],
        *,
        skip_gpu: bool = False,
        skip_numa: bool = False,
    ) -> None:
        self.skip_gpu = skip_gpu
        self.findings = Findings()
        self.topology = topology
        if topology.gpus is None and not skip_gpu and not skip_numa:
            self.topology = self._of_the_target(topology, instances)
        self.binder = Binder(self.topology, self.findings, skip=skip_numa)

    def _of_the_target(self, topology: HostTopology, instances: Sequence[Instance]) -> HostTopology:
        """Where the GPUs are not known and a declared NUMA node is not there, this is a laptop, not the
        host that the units are for: then its NUMA nodes say nothing, and all is rendered as declared."""
        declared = {node for each in instances if isinstance(each.numa, tuple) for node in each.numa}
        there = {node.id for node in topology.numa_nodes} if topology.numa_nodes is not None else declared
        if lacking := declared - (there or {0}):
            what = f"this host has no NUMA node {format_cpu_list(lacking)}: all nodes are taken as declared"
            self._warn("numa", what)
            return replace(topology, numa_nodes=None)
        return topology

    def _warn(self, where: str, what: str, hint: str = "") -> None:
        self.findings.warnings.append(Fault(where, what, hint))

    def _fault(self, where: str, what: str, hint: str = "") -> None:
        self.findings.faults.append(Fault(where, what, hint))

    def place(self, engine: Engine, instance: Instance) -> Placement:
        """Where `instance` runs on this host."""
        gpus = self._gpus(instance)
        nodes = self.binder.nodes_of(instance, gpus)
        visible, base, step = self._pin(engine, instance, gpus)
        known = self.topology.numa_nodes
        return Placement(
            numa_nodes=nodes,
            cpus=self.binder.cpus_of(nodes),
            visible=visible,
            base_gpu_id=base,
            gpu_id_step=step,
            sm120=self._sm120(engine, instance, gpus),
            gpus=gpus,
            known_nodes=tuple(node.id for node in known) if known else None,
        )

    def _gpus(self, instance: Instance) -> tuple[Gpu, ...] | None:
        """The instance's GPUs, or None where they are not known."""
        known, where = self.topology.gpus, f"{instance.where}.gpus"
        if known is None:
            if not self.skip_gpu:
                what = "the GPUs of this host are not known: pins and kernel flags are as declared"
                self._warn("gpus", what)
            return None
        found = [self.topology.gpu(index) for index in instance.gpus]
        lacking = [index for index, gpu in zip(instance.gpus, found, strict=True) if gpu is None]
        if lacking and self.skip_gpu:
            return None
        for index in lacking:
            there = f"{len(known)}: {format_cpu_list(gpu.index for gpu in known)}" if known else "none"
            self._fault(where, f"there is no GPU {index} on this host", f"it has {there}")
        return tuple(gpu for gpu in found if gpu is not None)

    def _pin(
        self, engine: Engine, instance: Instance, gpus: Sequence[Gpu] | None
    ) -> tuple[str | None, int | None, int | None]:
        """(CUDA_VISIBLE_DEVICES, --base-gpu-id, --gpu-id-step)."""
        if not self.skip_gpu:
            self._check_slices(engine, instance, gpus or ())
        if engine.pin is Pin.BASE_GPU_ID:
            return self._pin_by_base(engine, instance)
        indexes = ",".join(map(str, instance.gpus))
        if engine.pin is Pin.INDEX:
            return indexes, None, None
        return self._uuids(instance, gpus) or indexes, None, None

    def _pin_by_base(self, engine: Engine, instance: Instance) -> tuple[None, int, int | None]:
        where = f"{instance.where}.gpus"
        for name in ("base-gpu-id", "gpu-id-step"):
            if name in instance.args or name in engine.args:
                what = f"the option {name} would override gpus"
                self._fault(where, what, 'pd-units sets it under pin = "base-gpu-id"')
        first, rest = instance.gpus[0], instance.gpus[1:]
        step = rest[0] - first if rest else 1
        if step < 1 or list(instance.gpus) != list(range(first, first + step * len(instance.gpus), step)):
            self._fault(where, 'pin = "base-gpu-id" needs GPUs at even steps upwards, such as [4, 5, 6, 7]')
        return None, first, step if step != 1 else None

    def _uuids(self, instance: Instance, gpus: Sequence[Gpu] | None) -> str | None:
        """The GPUs' UUIDs as CUDA_VISIBLE_DEVICES takes them; None where they are not known."""
        where = f"{instance.where}.gpus"
        if gpus is not None and len(gpus) < len(instance.gpus):
            return None  # a GPU that is not there: a fault already
        if gpus is None or (self.skip_gpu and any(gpu.uuid is None for gpu in gpus)):
            what = "the GPUs' UUIDs are not known: pinned by index"
            self._warn(where, what, 'give a topology that has them, or say pin = "index"')
            return None
        for gpu in gpus:
            if gpu.uuid is None:
                what = f"the UUID of GPU {gpu.index} is not known"
                self._fault(where, what, "is the NVIDIA driver loaded?")
        return ",".join(gpu.uuid or "" for gpu in gpus)

    def _check_slices(self, engine: Engine, instance: Instance, gpus: Sequence[Gpu]) -> None:
        """GPUs that are cut into MIG slices: a process gets one slice, and only if it names it."""
        sliced = [gpu for gpu in gpus if gpu.mig or is_slice(gpu)]
        if not sliced:
            return
        where, indexes = f"{instance.where}.gpus", format_cpu_list(gpu.index for gpu in sliced)
        if _VISIBLE in instance.environment or _VISIBLE in engine.environment:
            self._warn(where, f"GPU {indexes} is in MIG mode: {_VISIBLE} of the environment names the slice")
        elif engine.pin is Pin.UUID and all(map(is_slice, sliced)) and len(gpus) == 1:
            self._warn(where, f"GPU {indexes} is a MIG slice: passed by its UUID", "a slice has less memory")
        elif all(map(is_slice, sliced)) and len(gpus) > 1:
            self._fault(where, f"GPU {indexes} is a MIG slice, and CUDA gives a process one slice only")
        else:
            hint = f"nvidia-smi -i {sliced[0].index} -mig 0 makes it whole; slices: docs/how-to/pin-gpus.md"
            self._fault(where, f"GPU {indexes} is in MIG mode: an index would give its first slice", hint)

    def _sm120(self, engine: Engine, instance: Instance, gpus: Sequence[Gpu] | None) -> bool:
        if not engine.sm120:
            return False
        if gpus is None or self.skip_gpu:
            return True
        rendered, remark = sm120_applies(instance.where, gpus)
        self.findings.warnings += [remark] if remark is not None else []
        return rendered


def is_slice(gpu: Gpu) -> bool:
    """Whether a topology's "GPU" is a MIG slice."""
    return (gpu.uuid or "").startswith("MIG-")


def moved_gpus(where: str, addresses: Mapping[str, str], topology: HostTopology) -> tuple[Fault, ...]:
    """GPUs that are not where they were when a unit was placed, or are gone. `addresses`: GPU index -> PCI
    address of that time. A pin by index then names other GPUs than it did."""
    found = []
    for index, address in addresses.items() if topology.gpus is not None else ():
        now = topology.gpu(int(index))
        if now is None:
            found.append(Fault(where, f"GPU {index} ({address}) is gone"))
        elif now.pci_address is not None and now.pci_address != address:
            what = f"GPU {index} was {address} when this was placed, and is {now.pci_address} now"
            found.append(Fault(where, what, "a GPU was added or is gone: a pin by index names another one"))
    return tuple(found)


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
