"""Memory of the GPUs and who holds it, from NVML or, without nvidia-ml-py, from nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pd_units.topology import normalise_pci_address

_SMI_TIMEOUT_S = 20.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One GPU's memory in bytes, and how much of it each process holds (0 where the driver does not say)."""

    total_bytes: int
    used_bytes: int
    by_pid: Mapping[int, int]


def read_gpu_memory(*, smi: bool = True) -> dict[str, GpuMemory] | None:
    """Memory by PCI address; None where NVML, and with `smi` (it takes a second) nvidia-smi, cannot be asked.

    PIDs are those of the host: inside a container they mean other processes.
    """
    found = _from_nvml()
    return found if found is not None or not smi else _from_smi()


def _from_nvml() -> dict[str, GpuMemory] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    found = {}
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                address, memory = _ask_one(pynvml, index)
            except pynvml.NVMLError:
                continue  # lost, or not this user's: the others still count
            found[address] = memory
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return found


def _ask_one(pynvml: Any, index: int) -> tuple[str, GpuMemory]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return normalise_pci_address(bus.decode() if isinstance(bus, bytes) else bus), GpuMemory(
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        by_pid={int(each.pid): int(each.usedGpuMemory or 0) for each in processes},
    )


def _from_smi() -> dict[str, GpuMemory] | None:
    gpus = _query("--query-gpu=pci.bus_id,memory.total,memory.used")
    if gpus is None:
        return None
    held: dict[str, dict[int, int]] = {}
    for row in _query("--query-compute-apps=gpu_bus_id,pid,used_memory") or ():
        if len(row) == 3 and row[1].isdecimal():
            held.setdefault(row[0], {})[int(row[1])] = _mib(row[2])
    found = {}
    for row in gpus:
        if len(row) == 3:
            try:
                address = normalise_pci_address(row[0])
            except ValueError:
                continue
            found[address] = GpuMemory(
                total_bytes=_mib(row[1]), used_bytes=_mib(row[2]), by_pid=held.get(row[0], {})
            )
    return found


def _mib(text: str) -> int:
    """Bytes of a whole number of MiB; 0 for "[N/A]"."""
    return int(text) * _MIB if text.isdecimal() else 0


def _query(question: str) -> list[list[str]] | None:
    """Rows of an answer in CSV; None if nvidia-smi is not there, fails or hangs."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, question, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
