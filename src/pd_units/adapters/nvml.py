"""What only NVML knows of the GPUs. Optional: without nvidia-ml-py or a driver there is nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pd_units.topology import normalise_pci_address

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU as NVML describes it; None for what this GPU or this NVML does not answer."""

    uuid: str | None
    name: str | None
    compute_capability: str | None
    memory_bytes: int | None
    mig: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFacts:
    """The driver's version, and the GPUs by PCI address. A GPU that is lost is not among them."""

    driver: str | None
    gpus: dict[str, NvmlGpu]


def read_nvml() -> NvmlFacts | None:
    """What NVML says; None where it cannot be asked."""
    try:
        import pynvml
    except ImportError:
        return None
    ask = _Asker(pynvml.NVMLError)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        found = {}
        for index in range(ask(pynvml.nvmlDeviceGetCount) or 0):
            handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            bus = ask(pynvml.nvmlDeviceGetPciInfo, handle) if handle is not None else None
            if bus is not None:
                found[normalise_pci_address(_text(bus.busId))] = _describe(pynvml, ask, handle)
        version = ask(pynvml.nvmlSystemGetDriverVersion)
        return NvmlFacts(driver=_text(version) if version else None, gpus=found)
    finally:
        pynvml.nvmlShutdown()


class _Asker:
    """Calls into NVML; None where it answers with an error: not supported, GPU lost, no permission."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __call__(self, call: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return call(*arguments)
        except self._error:
            return None


def _describe(pynvml: Any, ask: _Asker, handle: Any) -> NvmlGpu:
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    mig = ask(pynvml.nvmlDeviceGetMigMode, handle)
    uuid, name = ask(pynvml.nvmlDeviceGetUUID, handle), ask(pynvml.nvmlDeviceGetName, handle)
    return NvmlGpu(
        uuid=_text(uuid) if uuid else None,
        name=_text(name) if name else None,
        compute_capability="{}.{}".format(*capability) if capability else None,
        memory_bytes=int(memory.total) if memory is not None else None,
        mig=bool(mig[0]) if mig is not None else None,
    )


def _text(value: str | bytes) -> str:
    """Older releases of nvidia-ml-py answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
