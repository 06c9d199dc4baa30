"""Whether an instance's options fit its GPUs and NUMA nodes. A misfit shows only after minutes of loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pd_units.errors import Fault
from pd_units.model_types import ArgValue, Instance, Pin
from pd_units.pinning import Placement
from pd_units.topology import Gpu


@dataclass(frozen=True, slots=True)
class Misfit:
    """`fatal`: the engine cannot start so."""

    fault: Fault
    fatal: bool


def size_of(options: Mapping[str, ArgValue], name: str) -> int:
    """A parallel size, 1 where it is not given or is no number."""
    value = options.get(name, 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def default_tensor_parallel_size(declared: Mapping[str, ArgValue], gpus: int) -> int:
    """GPUs left to tensor parallelism by the other sizes that are declared."""
    others = _other_sizes(declared)
    return gpus // others if gpus % others == 0 else gpus


def _other_sizes(options: Mapping[str, ArgValue]) -> int:
    """Factor of GPUs beside tensor parallelism. Data parallel attention shares the tensor parallel GPUs."""
    shared = options.get("enable-dp-attention") is True or "attention-data-parallel-size" in options
    data = 1 if shared else size_of(options, "data-parallel-size")
    return size_of(options, "pipeline-parallel-size") * data


def check_options(
    instance: Instance, options: Mapping[str, ArgValue], placement: Placement, pin: Pin
) -> tuple[Misfit, ...]:
    """Every misfit of one instance's options."""
    found = [*_check_count(instance, options), *_check_base(instance, options, pin)]
    return (*found, *_check_numa_node(instance, options, placement, pin))


def gpu_ids(options: Mapping[str, ArgValue]) -> tuple[int, ...]:
    """The numbers by which the engine itself knows its GPUs: from base-gpu-id upwards, not from 0."""
    base, step = options.get("base-gpu-id", 0), size_of(options, "gpu-id-step")
    count = size_of(options, "tensor-parallel-size") * _other_sizes(options)
    first = base if isinstance(base, int) and base >= 0 else 0
    return tuple(range(first, first + step * count, step))


def _check_count(instance: Instance, options: Mapping[str, ArgValue]) -> list[Misfit]:
    tensor = size_of(options, "tensor-parallel-size")
    others = _other_sizes(options)
    needed, have = tensor * others, len(instance.gpus)
    if needed == have:
        return []
    product = f"tensor-parallel-size {tensor}" + (f" times {others} (pipeline, data)" if others > 1 else "")
    where = f"{instance.where}.gpus"
    if needed > have:
        return [Misfit(Fault(where, f"{product} needs {needed} GPUs, here are {have}"), fatal=True)]
    return [Misfit(Fault(where, f"{product} uses {needed} of {have} GPUs"), fatal=False)]


def _check_base(instance: Instance, options: Mapping[str, ArgValue], pin: Pin) -> list[Misfit]:
    if pin is Pin.BASE_GPU_ID or not {"base-gpu-id", "gpu-id-step"} & options.keys():
        return []
    last = gpu_ids(options)[-1]
    if last < len(instance.gpus):
        return []
    what = f"base-gpu-id {options.get('base-gpu-id', 0)} is beyond this instance's GPUs"
    if options.get("gpu-id-step"):
        what += f" at steps of {options['gpu-id-step']}"
    what += ", which count from 0 under this pin"
    hint = 'leave base-gpu-id out, or say engine.pin = "base-gpu-id"'
    return [Misfit(Fault(f"{instance.where}.args", what, hint), fatal=True)]


def _check_numa_node(
    instance: Instance, options: Mapping[str, ArgValue], placement: Placement, pin: Pin
) -> list[Misfit]:
    """The engine's own --numa-node: a list indexed by GPU number, base-gpu-id included. It rebinds each rank,
    so that it must name nodes that the unit is bound to."""
    value = options.get("numa-node")
    if value is None or value is False:
        return []
    nodes = value if isinstance(value, tuple) else (value,)
    where, ids = f"{instance.where}.args.numa-node", gpu_ids(options)
    if len(nodes) <= ids[-1]:
        what = f"needs a value for each GPU up to number {ids[-1]}, so {ids[-1] + 1}; here are {len(nodes)}"
        return [Misfit(Fault(where, what, "or leave it out: the unit binds already"), fatal=True)]
    used = [nodes[number] for number in ids]
    return [
        *_check_bound(where, used, placement),
        *_check_homes(where, used, placement.gpus if len(ids) == len(instance.gpus) else None),
    ]


def _check_bound(where: str, used: Sequence[object], placement: Placement) -> list[Misfit]:
    """The nodes that the engine binds to exist, and are the unit's."""
    known = placement.known_nodes
    lacking = sorted({str(node) for node in used} - {str(node) for node in known or used})
    if lacking:
        what = f"names NUMA node {', '.join(lacking)}, which this host has not"
        return [Misfit(Fault(where, what, f"it has {', '.join(map(str, known or ()))}"), fatal=True)]
    away = sorted({str(node) for node in used} - {str(node) for node in placement.numa_nodes})
    if not placement.numa_nodes or not away:
        return []
    bound = ", ".join(map(str, placement.numa_nodes))
    what = f"names NUMA node {', '.join(away)}, but the unit is bound to {bound}"
    hint = 'let both name the same node, or leave one to the other: numa = "none", or no numa-node'
    return [Misfit(Fault(where, what, hint), fatal=True)]


def _check_homes(where: str, used: Sequence[object], gpus: Sequence[Gpu] | None) -> list[Misfit]:
    """Each rank's node is that of its GPU."""
    away = [
        f"{node} for GPU {gpu.index}, which is on {gpu.numa}"
        for node, gpu in zip(used, gpus or (), strict=False)
        if gpu.numa is not None and str(node) != str(gpu.numa)
    ]
    if not away:
        return []
    return [Misfit(Fault(where, f"names NUMA node {'; '.join(away)}"), fatal=False)]
