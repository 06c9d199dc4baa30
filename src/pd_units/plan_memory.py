"""An instance's memory fraction against what is known of its model (`engines/sglang_models.toml`).

Only warnings: a model is known by its name, and a directory of that name may hold another checkpoint.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pd_units.errors import Fault
from pd_units.model_types import ArgValue, Instance
from pd_units.plan_checks import size_of
from pd_units.resources import read_engine_data
from pd_units.topology import Gpu

OPTION = "mem-fraction-static"
_GB = 10**9
#: How far above what is known a fraction is still taken for the same.
_SLACK = 0.05


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What the presets know of a model. Sizes in 10^9 bytes, None = not known."""

    name: str
    weights_gb: float | None
    gpu_memory_gb: float
    fractions: Mapping[str, float]


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Models by their names in lower case."""
    data = tomllib.loads(read_engine_data("sglang_models.toml"))
    return {
        entry["name"].lower(): KnownModel(
            entry["name"], entry.get("weights_gb"), entry["gpu_memory_gb"], entry["mem_fraction_static"]
        )
        for entry in data["model"]
    }


def check_memory(
    model: str, instance: Instance, options: Mapping[str, ArgValue], gpus: Sequence[Gpu] | None
) -> tuple[Fault, ...]:
    """What is unwise about an instance's memory fraction. `gpus` None = not known."""
    known = known_models().get(model.rstrip("/").rpartition("/")[2].lower())
    fraction = fraction_of(options.get(OPTION))
    if known is None or fraction is None:
        return ()
    sizes = [gpu.memory_bytes / _GB for gpu in gpus or () if gpu.memory_bytes]
    memory_gb = min(sizes, default=known.gpu_memory_gb)
    where = f"{instance.where}.args.{OPTION}"
    found = [*_too_small(where, known, options, fraction, memory_gb)]
    return (*found, *_too_large(where, known, known.fractions.get(instance.role), fraction, memory_gb))


def fraction_of(value: ArgValue | None) -> float | None:
    """The number that an option's value is, None if it is none."""
    try:
        return None if value is None or isinstance(value, bool | tuple) else float(value)
    except ValueError:
        return None


def _too_small(
    where: str, known: KnownModel, options: Mapping[str, ArgValue], fraction: float, memory_gb: float
) -> list[Fault]:
    parts = size_of(options, "tensor-parallel-size") * size_of(options, "pipeline-parallel-size")
    if known.weights_gb is None or known.weights_gb / parts < fraction * memory_gb:
        return []
    share = f", {known.weights_gb / parts:.0f} on each of {parts} GPUs" if parts > 1 else ""
    what = (
        f"{fraction:g} of {memory_gb:.0f} GB is {fraction * memory_gb:.0f} GB, but {known.name} has "
        f"{known.weights_gb:.0f} GB of weights{share}"
    )
    return [Fault(where, what, "nothing is left for the KV cache: raise it, or use more GPUs")]


def _too_large(
    where: str, known: KnownModel, usual: float | None, fraction: float, memory_gb: float
) -> list[Fault]:
    if usual is None or fraction <= usual + _SLACK or memory_gb > known.gpu_memory_gb * 1.15:
        return []
    what = f"is {fraction:g}; {known.name} ran with {usual:g} on GPUs of {known.gpu_memory_gb:.0f} GB"
    return [Fault(where, what, "CUDA graphs and KV transfer need the rest: too little of it fails late")]
