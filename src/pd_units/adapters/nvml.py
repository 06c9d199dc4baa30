"""What only NVML knows of the GPUs. Optional: without nvidia-ml-py or a driver there is nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pd_units.topology import normalise_pci_address


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU as NVML describes it."""

    uuid: str
    name: str
    compute_capability: str
    memory_bytes: int


def read_gpus() -> dict[str, NvmlGpu] | None:
    """GPUs by PCI address; None where NVML cannot be asked."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    found: dict[str, NvmlGpu] = {}
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            address = normalise_pci_address(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            found[address] = NvmlGpu(
                uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                name=_text(pynvml.nvmlDeviceGetName(handle)),
                compute_capability=f"{major}.{minor}",
                memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
    except (pynvml.NVMLError, ValueError):
        return found or None
    finally:
        pynvml.nvmlShutdown()
    return found


def _text(value: str | bytes) -> str:
    """Older releases of nvidia-ml-py answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
