"""Whether an instance's options fit its GPUs and NUMA nodes. A misfit shows only after minutes of loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pd_units.errors import Fault
from pd_units.model_types import ArgValue, Instance, Pin
from pd_units.pinning import Placement


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
    found += _check_numa_node(instance, options, placement, pin)
    return tuple(found)


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
    base = options.get("base-gpu-id", 0)
    if pin is Pin.BASE_GPU_ID or not isinstance(base, int):
        return []
    if base + size_of(options, "tensor-parallel-size") <= len(instance.gpus):
        return []
    what = f"base-gpu-id {base} is beyond this instance's GPUs, which count from 0 under this pin"
    hint = 'leave base-gpu-id out, or say engine.pin = "base-gpu-id"'
    return [Misfit(Fault(f"{instance.where}.args", what, hint), fatal=True)]


def _check_numa_node(
    instance: Instance, options: Mapping[str, ArgValue], placement: Placement, pin: Pin
) -> list[Misfit]:
    """The engine's own --numa-node is a list indexed by GPU number, base-gpu-id included."""
    value = options.get("numa-node")
    if value is None or value is False:
        return []
    nodes = value if isinstance(value, tuple) else (value,)
    where = f"{instance.where}.args.numa-node"
    needed = max(instance.gpus) + 1 if pin is Pin.BASE_GPU_ID else len(instance.gpus)
    if len(nodes) < needed:
        what = f"needs a value for each of {needed} GPUs, here are {len(nodes)}"
        return [Misfit(Fault(where, what, "or leave it out: the unit binds already"), fatal=True)]
    used = nodes[min(instance.gpus) :] if pin is Pin.BASE_GPU_ID else nodes
    away = sorted({str(node) for node in used} - {str(node) for node in placement.numa_nodes})
    if placement.numa_nodes and away:
        bound = ", ".join(map(str, placement.numa_nodes))
        what = f"names NUMA node {', '.join(away)}, but the unit is bound to {bound}"
        hint = "the engine then runs unbound, with a warning; let both name the same node"
        return [Misfit(Fault(where, what, hint), fatal=False)]
    return []
