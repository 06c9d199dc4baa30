"""NUMA binding and kernel flags: what the plan wants against what the host has."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from pd_units.engines.options import Program
from pd_units.plan import UnitPlan
from pd_units.preflight.base import Check, Result, Subject, gib, good, text_of, variable_of, warning
from pd_units.preflight.drop_ins import overrides_of
from pd_units.preflight.system import check_overrides
from pd_units.sm120 import applies, check_version, lint_flags
from pd_units.topology import format_cpu_list

_NODES = Path("/sys/devices/system/node")
#: Host memory of a rank before any cache: interpreter, CUDA, staging buffers.
_RANK_BYTES = 2 << 30
_AVAILABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_numa(subject: Subject) -> Result:
    """What is bound where, with memory left there; numactl if the engine binds itself; no drop-in rebinds."""
    nodes = subject.topology.numa_nodes or ()
    bound = [f"{u.unit} to node {u.numa_mask} (CPUs {u.cpus})" for u in subject.backends if u.numa_nodes]
    listed = ", ".join(f"node {node.id}: CPUs {node.cpus or 'none'}" for node in nodes)
    if bound:
        yield good("numa", "; ".join(bound))
    elif len(nodes) > 1:
        yield good("numa", f"nothing is bound; the host has {listed}")
    else:
        yield good("numa", listed or "no NUMA nodes, nothing to bind")
    yield from _numactl(subject, several=len(nodes) > 1)
    yield from _memory(subject)
    yield from check_overrides(overrides_of(subject), "numa")


def _numactl(subject: Subject, *, several: bool) -> Iterable[Check]:
    """The engine starts its ranks through numactl where it binds them itself."""
    for unit in subject.backends:
        asked = "--numa-node" in unit.argv
        by_itself = several and not unit.numa_nodes and variable_of(unit, "SGLANG_AUTO_NUMA_BIND") != "0"
        path = variable_of(unit, "PATH") or _PATH
        if (asked or by_itself) and shutil.which("numactl", path=path) is None:
            why = "it has --numa-node" if asked else "pd-units does not bind it"
            yield warning(
                "numa",
                f"{unit.unit}: the engine binds its ranks by numactl ({why}), which is not installed",
                'apt install numactl, or give the instance numa = "auto": the unit then binds them',
            )
            return


def _memory(subject: Subject) -> Iterable[Check]:
    """A strict binding to a full node ends by the kernel's OOM killer, with plenty free elsewhere."""
    for node in sorted({node for unit in subject.backends for node in unit.numa_nodes}):
        units = [unit for unit in subject.backends if node in unit.numa_nodes]
        ranks = sum(len(unit.gpus) for unit in units)
        free = available_bytes(node)
        wanted = ranks * _RANK_BYTES
        if free is not None and free < wanted and not _running(subject, units):
            yield warning(
                "numa",
                f"NUMA node {node} has {gib(free)} available for {ranks} ranks bound to it",
                f"about {gib(wanted)} is wanted there: stop what fills it, or bind to more nodes",
            )


def _running(subject: Subject, units: Sequence[UnitPlan]) -> bool:
    """Whether one of the units holds its memory already."""
    return subject.manager is not None and any(subject.manager.unit(unit.unit).main_pid for unit in units)


def available_bytes(node: int) -> int | None:
    """Memory of a NUMA node that a program could have; None where the kernel does not say."""
    found = dict(re.findall(r"Node \d+ (\S+):\s*(\d+) kB", text_of(_NODES / f"node{node}" / "meminfo")))
    if "MemFree" not in found:
        return None
    return sum(int(found.get(key, 0)) for key in _AVAILABLE) * 1024


def check_kernel_flags(subject: Subject) -> Result:
    """The SM120 flags are known, the engine's version reads them, and the GPUs are of 12.x."""
    declared = subject.plan.deployment.engine.sm120
    if not declared:
        yield good("kernel-flags", "none declared")
        return
    faults = []
    for fault in (*lint_flags(declared), *check_version(declared, _program(subject))):
        faults.append(fault)
        yield warning(
            "kernel-flags", f"{fault.where} {fault.what}", fault.hint or "take it out if it does nothing"
        )
    if "gpu" not in subject.skip:
        for unit in subject.backends:
            gpus = [gpu for index in unit.gpus if (gpu := subject.topology.gpu(index)) is not None]
            _, fault_or_none = applies(unit.unit, gpus)
            if fault_or_none is not None:
                faults.append(fault_or_none)
                yield warning(
                    "kernel-flags", fault_or_none.what, fault_or_none.hint or "look at: pd-units topology"
                )
    if not faults:
        indexes = format_cpu_list(index for unit in subject.backends for index in unit.gpus)
        where = (
            "taken as declared, the GPUs were not looked at"
            if "gpu" in subject.skip
            else f"GPU {indexes} is 12.x"
        )
        yield good("kernel-flags", f"{', '.join(f'{k}={v}' for k, v in sorted(declared.items()))}: {where}")


def _program(subject: Subject) -> Program:
    from pd_units.adapters.host import installed_version

    python = subject.plan.deployment.engine.python
    return Program.engine(installed_version(Path("/"), python, "sglang"))
