"""Where the processes of a unit really are: CPU affinity, memory policy, pages, pins in their environment."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping

from pd_units.adapters.gpu_memory import read_gpu_memory
from pd_units.adapters.procfs import PROC, control_group_pids
from pd_units.verification import ProcessFacts, is_placement_variable, parse_numa_maps

_CPUS = re.compile(r"^Cpus_allowed_list:\s*(\S+)$", re.M)
_NAME = re.compile(r"^Name:\s*(.*)$", re.M)
_OURS = b"pd_units.supervise"


def read_processes(
    main_pid: int, addresses: Mapping[int, str] | None = None, *, flags: Collection[str] = ()
) -> tuple[tuple[ProcessFacts, ...], bool]:
    """Facts of every process in the control group of `main_pid`, the main one first, and whether all could be
    read. Processes that end meanwhile, and pd-units' own, are left out.

    `addresses`: GPU index -> PCI address, by which NVML's memory gets its GPU. `flags`: variables to look at
    beside those that pin.
    """
    held = _gpu_memory(addresses or {})
    facts, complete = [], True
    for pid in sorted(control_group_pids(main_pid) - {os.getpid()}, key=lambda pid: (pid != main_pid, pid)):
        try:
            found = _read(pid, held, flags)
        except PermissionError:
            complete = False
            continue
        except OSError:
            continue  # it ended: numa_maps then answers ESRCH
        if found is not None:
            facts.append(found)
    return tuple(facts), complete


def _read(
    pid: int, held: Mapping[int, Mapping[int, int]] | None, flags: Collection[str]
) -> ProcessFacts | None:
    folder = PROC / str(pid)
    command = (folder / "cmdline").read_bytes()
    if not command or _OURS in command:
        return None  # a zombie, a kernel thread, or a watcher of ours
    cpus: Counter[str] = Counter()
    for task in (folder / "task").iterdir():
        try:
            match = _CPUS.search((task / "status").read_text(errors="replace"))
        except OSError:
            continue
        if match:
            cpus[match[1]] += 1
    name = _NAME.search((folder / "status").read_text(errors="replace"))
    policies, pages = parse_numa_maps(_numa_maps(pid))
    return ProcessFacts(
        pid=pid,
        name=name[1] if name else "?",
        cpus=dict(cpus),
        policies=policies,
        pages=pages,
        environment=_environment((folder / "environ").read_bytes(), flags),
        gpu_memory=held.get(pid, {}) if held is not None else None,
    )


def _numa_maps(pid: int) -> str:
    """Its text; "" on a kernel without NUMA."""
    try:
        return (PROC / str(pid) / "numa_maps").read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _environment(data: bytes, flags: Collection[str]) -> dict[str, str]:
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in data.split(b"\0") if entry)
    return {name: value for name, _, value in pairs if name in flags or is_placement_variable(name)}


def _gpu_memory(addresses: Mapping[int, str]) -> dict[int, dict[int, int]] | None:
    """PID -> GPU index -> bytes held; None where NVML cannot be asked."""
    memory = read_gpu_memory(smi=False) if addresses else None
    if memory is None:
        return None
    indexes = {address: index for index, address in addresses.items()}
    found: dict[int, dict[int, int]] = {}
    for address, gpu in memory.items():
        if address in indexes:
            for pid, size in gpu.by_pid.items():
                found.setdefault(pid, {})[indexes[address]] = size
    return found
