"""Kernel flags for compute capability 12.x: which there are, in which engine version, and where they apply.

The flags are data (`engines/sglang_sm120.toml`). One that is not there passes through with a warning: forks
have flags of their own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pd_units.engines.options import Option, Program, format_version, span_of
from pd_units.errors import Fault
from pd_units.model_fields import join_key, nearest
from pd_units.resources import read_engine_data
from pd_units.topology import Gpu, format_cpu_list

WHERE = "engine.sm120"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `origin`: "sglang", or "fork" for one that no release of it reads. `values`: those it
    takes, () = any. `seed`: what to set where nothing better is known."""

    option: Option
    origin: str
    values: tuple[str, ...]
    seed: str | None
    does: str


@cache
def load_flags() -> Mapping[str, Flag]:
    """Every flag that is known, by name."""
    data = tomllib.loads(read_engine_data("sglang_sm120.toml"))
    return {
        name: Flag(
            option=span_of(name, entry.get("versions", "")),
            origin=entry["origin"],
            values=tuple(entry.get("values", ())),
            seed=entry.get("seed"),
            does=entry["does"],
        )
        for name, entry in data["flags"].items()
    }


def lint_flags(declared: Mapping[str, str]) -> tuple[Fault, ...]:
    """What a file alone shows: flags that are not known, and values that they do not take."""
    flags = load_flags()
    found = []
    for name, value in declared.items():
        flag = flags.get(name)
        if flag is None:
            what = "is not a flag for compute capability 12.x that pd-units knows; passed on as it is"
            found.append(Fault(join_key(WHERE, name), what, nearest(name, flags)))
        elif flag.values and value not in flag.values:
            what = f"is {value!r}; known values are {', '.join(flag.values)}; passed on as it is"
            found.append(Fault(join_key(WHERE, name), what))
    return tuple(found)


def check_version(declared: Mapping[str, str], program: Program) -> tuple[Fault, ...]:
    """Flags that the engine in use does not read. Nothing is said of forks' flags, or of an engine whose
    version is not known."""
    found = []
    for name in declared if program.version_known else ():
        flag = load_flags().get(name)
        if flag is None or flag.origin == "fork" or flag.option.known_to(program.version):
            continue
        if program.version <= flag.option.after:
            what = f"is read by {program.table.program} after {format_version(flag.option.after)} only"
        else:
            what = f"is not read any more since {program.table.program} {format_version(flag.option.until)}"
        found.append(Fault(join_key(WHERE, name), f"{what}; in use is {format_version(program.version)}"))
    return tuple(found)


def applies(where: str, gpus: Sequence[Gpu]) -> tuple[bool, Fault | None]:
    """(whether the flags are rendered for an instance with these GPUs, what to say about it)."""
    other = [gpu for gpu in gpus if gpu.compute_capability and not is_sm120(gpu)]
    if other:
        first = other[0]
        name = f" ({first.name})" if first.name else ""
        what = f"GPU {first.index}{name} has compute capability {first.compute_capability}"
        hint = "these kernels are for 12.x only; what is set in engine.environment is rendered everywhere"
        return False, Fault(WHERE, f"left out of {where}: {what}", hint)
    unknown = [gpu.index for gpu in gpus if not gpu.compute_capability]
    if unknown:
        indexes = format_cpu_list(unknown)
        what = f"the compute capability of GPU {indexes} is not known: rendered as declared"
        return True, Fault(WHERE, what)
    return True, None


def is_sm120(gpu: Gpu) -> bool:
    """Whether the GPU is of compute capability 12.x."""
    return (gpu.compute_capability or "").partition(".")[0] == "12"
