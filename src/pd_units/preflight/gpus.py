"""The GPUs, their driver and NVSwitch, and who holds their memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pd_units.adapters import procfs
from pd_units.adapters.gpu_memory import GpuMemory, read_gpu_memory
from pd_units.plan import UnitPlan
from pd_units.ports import ActiveState
from pd_units.preflight.base import (
    Check,
    Result,
    Subject,
    bad,
    can_become,
    gib,
    good,
    text_of,
    unreadable_for,
    warning,
)
from pd_units.preflight.drop_ins import overrides_of
from pd_units.preflight.system import check_overrides
from pd_units.topology import Gpu, format_cpu_list

_DRIVER = Path("/proc/driver/nvidia")
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _NVSWITCH_CLASS = "0x10de", "0x0680"
_FABRIC_MANAGER = "nvidia-fabricmanager.service"
#: What a display, a monitoring agent and a few contexts hold together is less than this.
_NOTEWORTHY_BYTES = 1 << 30
#: The engine's own choice where the file has none is about this, less on small GPUs.
_USUAL_FRACTION = 0.85


def check_gpu(subject: Subject) -> Result:
    """The GPUs are known, their driver and device nodes are there, NVSwitch is up, no drop-in hides them."""
    gpus = subject.topology.gpus
    if gpus is None:
        yield bad("gpu", "no NVIDIA GPU is visible on this host", "install the driver, or --skip gpu")
        return
    names = sorted({gpu.name or "model not known" for gpu in gpus})
    driver = driver_version()
    said = f"{len(gpus)} GPUs: {', '.join(names)}; driver {driver}" if driver else ""
    if not driver and any(_PCI.joinpath(gpu.pci_address or "-").exists() for gpu in gpus):
        advice = "modprobe nvidia, and look at dmesg; after a kernel upgrade its module must be built again"
        yield bad("gpu", "the GPUs are on the PCI bus, and NVIDIA's driver is not loaded", advice)
    else:
        yield good("gpu", said or f"{len(gpus)} GPUs: {', '.join(names)}")
    if driver:
        yield from _device_nodes(subject)
    yield from _nvswitch(subject)
    yield from check_overrides(overrides_of(subject), "gpu")


def driver_version() -> str:
    """Version of the loaded driver, "" if none is."""
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text_of(_DRIVER / "version"))
    return match[1] if match else ""


def _device_nodes(subject: Subject) -> Iterable[Check]:
    """A driver without device nodes gives "no CUDA-capable device" after the imports."""
    wanted = [Path("/dev/nvidiactl"), Path("/dev/nvidia-uvm")]
    for index in sorted({gpu for unit in subject.backends for gpu in unit.gpus}):
        gpu = subject.topology.gpu(index)
        if gpu is not None and (minor := _minor(gpu)) is not None:
            wanted.append(Path(f"/dev/nvidia{minor}"))
    missing = [str(path) for path in wanted if not path.exists()]
    if missing:
        advice = "nvidia-modprobe -u -c=0 makes them; nvidia-persistenced keeps them: enable it"
        yield bad("gpu", f"the driver is loaded, but {', '.join(missing)} is not there", advice)
        return
    for user in sorted({unit.user for unit in subject.backends}):
        closed = unreadable_for(user, wanted, test="-w") if can_become(user) else []
        if closed:
            advice = f"usermod -aG GROUP {user}, with the group that owns the nodes"
            yield bad("gpu", f"{user} may not use {', '.join(closed)}", advice)


def _minor(gpu: Gpu) -> int | None:
    """Number of a GPU's device node; a topology file may be without it."""
    if gpu.minor is not None or gpu.pci_address is None:
        return gpu.minor
    text = text_of(_DRIVER / "gpus" / gpu.pci_address / "information")
    match = re.search(r"^Device Minor:\s*(\d+)", text, re.M)
    return int(match[1]) if match else None


def _nvswitch(subject: Subject) -> Iterable[Check]:
    """Where GPUs hang on NVSwitch, CUDA answers "system not yet initialized" until its fabric is set up."""
    switches = [path.name for path in _entries(_PCI) if _is_nvswitch(path)]
    if not switches or subject.manager is None:
        return
    state = subject.manager.unit(_FABRIC_MANAGER).active_state
    what = f"{len(switches)} NVSwitches, {_FABRIC_MANAGER} is {state}"
    if state is ActiveState.ACTIVE:
        yield good("gpu", what)
    else:
        advice = f"systemctl enable --now {_FABRIC_MANAGER}; its version must be the driver's"
        yield bad("gpu", what, advice)


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _is_nvswitch(path: Path) -> bool:
    return text_of(path / "vendor") == _NVIDIA and text_of(path / "class").startswith(_NVSWITCH_CLASS)


def check_gpu_memory(subject: Subject) -> Result:
    """Nobody else holds the memory of the GPUs; units that are replaced or retired do not count."""
    if not subject.topology.gpus:
        yield good("gpu-memory", "no GPU to look at")
        return
    memory = read_gpu_memory()
    if memory is None:
        yield good("gpu-memory", "not looked at: neither nvidia-ml-py nor nvidia-smi answers")
        return
    free = []
    for unit in subject.backends:
        for index in unit.gpus:
            gpu = subject.topology.gpu(index)
            found = memory.get(gpu.pci_address or "") if gpu is not None else None
            if found is None:
                continue
            result = _held(subject, unit, index, found)
            if result is not None:
                yield result
            else:
                free.append(index)
    if free:
        yield good("gpu-memory", f"GPU {format_cpu_list(free)} free, but for the units of this deployment")


def _held(subject: Subject, unit: UnitPlan, index: int, memory: GpuMemory) -> Check | None:
    """What is wrong with one GPU's memory. Memory that no process is named for is held outside of this
    host's view: by a container, or by a process that is dying."""
    foreign, ours = _by_owner(subject, memory.by_pid)
    own = next((name for name in map(procfs.unit_of, memory.by_pid) if subject.is_stray(name)), "")
    unseen = max(memory.used_bytes - sum(memory.by_pid.values()), 0) if not ours else 0
    held = sum(foreign.values()) + (unseen if unseen >= _NOTEWORTHY_BYTES else 0)
    if held < _NOTEWORTHY_BYTES:
        return None
    who = (
        ", ".join(f"{name} ({gib(size)})" for name, size in foreign.items()) or "no process that is seen here"
    )
    what = f"GPU {index} of {unit.unit}: {gib(held)} of {gib(memory.total_bytes)} is held by {who}"
    fraction = _memory_fraction(unit)
    if memory.total_bytes and held > (1 - fraction) * memory.total_bytes:
        advice = f"{subject.how_to_free(own)}: the engine runs out of memory otherwise"
        return bad("gpu-memory", what, advice)
    return warning("gpu-memory", what, "the engine takes what is left; tensor parallel ranks want the same")


def _by_owner(subject: Subject, by_pid: Mapping[int, int]) -> tuple[dict[str, int], bool]:
    """(bytes of each holder that is none of ours, whether a unit of ours holds any)."""
    foreign: dict[str, int] = {}
    ours = False
    for pid, size in by_pid.items():
        owner = procfs.unit_of(pid)
        if owner in subject.ours:
            ours = True
            continue
        argv = procfs.command_line(pid)
        name = os.path.basename(argv[0]) if argv else "?"  # noqa: PTH119  (a word, not a path of ours)
        foreign[f"process {pid} {name}" + (f" of {owner}" if owner else "")] = size
    return foreign, ours


def _memory_fraction(unit: UnitPlan) -> float:
    """The share of a GPU that the engine will take."""
    for line in unit.exec_start:
        if line[0] == "--mem-fraction-static" and len(line) == 2:
            try:
                return min(max(float(line[1]), 0.0), 1.0)
            except ValueError:
                break
    return _USUAL_FRACTION
