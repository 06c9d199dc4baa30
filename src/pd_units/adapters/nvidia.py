"""NVIDIA GPUs of a sysroot: from the PCI bus, and from the driver's files in /proc where it is loaded.

Source: /proc/driver/nvidia/gpus/ADDRESS/{information,numa_status}, /proc/driver/nvidia/version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pd_units.adapters.pci import BUS, PciFunction, online_node_of, pci_address_of
from pd_units.adapters.sysroot import Sysroot, to_number
from pd_units.gpu_models import compute_capability
from pd_units.topology import Gpu, NumaNode, parse_pci_address

VENDOR = 0x10DE
#: VGA controller (GeForce, RTX PRO), 3D controller (data centre). NVSwitch is 0x0680, audio 0x0403.
GPU_KINDS = (0x0300, 0x0302)
#: Drivers that hold a GPU for somebody else, so that CUDA does not count it.
_HELD_BY = ("vfio-pci", "pci-stub", "xen-pciback", "nvgrace_gpu_vfio_pci")
_DRIVER = "proc/driver/nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverGpu:
    """What the driver says of one GPU. `memory_node`: the NUMA node that its memory is (coherent links)."""

    uuid: str | None = None
    name: str | None = None
    excluded: bool = False
    memory_node: int | None = None
    mig: bool | None = None
    minor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The loaded driver: its version, and its GPUs by PCI address."""

    version: str | None = None
    gpus: Mapping[str, DriverGpu] = field(default_factory=dict)


def read_driver(sysroot: Sysroot) -> Driver | None:
    """The driver as /proc shows it, None where it is not loaded."""
    if not sysroot.is_directory(_DRIVER):
        return None
    found = {}
    for name in sysroot.names(f"{_DRIVER}/gpus"):
        if (address := pci_address_of(name)) is not None:
            found[address] = _driver_gpu(sysroot, f"{_DRIVER}/gpus/{name}")
    return Driver(version=_version(sysroot), gpus=found)


def _version(sysroot: Sysroot) -> str | None:
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", sysroot.text(f"{_DRIVER}/version") or "")
    return match[1] if match else sysroot.text("sys/module/nvidia/version")


def _fields(text: str | None) -> dict[str, str]:
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _driver_gpu(sysroot: Sysroot, directory: str) -> DriverGpu:
    values = _fields(sysroot.text(f"{directory}/information"))
    status = _fields(sysroot.text(f"{directory}/numa_status"))
    uuid, minor = values.get("GPU UUID", ""), values.get("Device Minor", "")
    slices = [
        name for name in sysroot.names(f"{_DRIVER}/capabilities/gpu{minor}/mig") if name.startswith("gi")
    ]
    return DriverGpu(
        uuid=uuid if uuid and "?" not in uuid else None,  # question marks until the GPU is first opened
        name=values.get("Model") or None,
        excluded=values.get("GPU Excluded") == "Yes",
        memory_node=to_number(status.get("Node")) if status.get("Status") == "online" else None,
        mig=True if minor and slices else None,
        minor=to_number(minor),
    )


def read_gpus(
    sysroot: Sysroot,
    functions: Sequence[PciFunction] | None,
    nodes: Sequence[NumaNode] | None,
    notes: list[str],
) -> tuple[tuple[Gpu, ...] | None, Driver | None]:
    """The GPUs that CUDA counts, in PCI order, and the driver.

    None where there are none and no driver that could tell so: a laptop that renders for another machine
    is not a machine without GPUs.
    """
    driver = read_driver(sysroot)
    says = driver.gpus if driver is not None else {}
    devices = {each.address: each for each in functions or () if _is_gpu(each)}
    virtual = {each.address for each in functions or () if each.virtual}
    counted = (set(devices) | set(says)) - virtual - _left_out(devices, says, notes)
    _note_missing(functions, devices, driver, notes)
    if not counted and driver is None:
        return None, None
    found = []
    for index, address in enumerate(sorted(counted, key=parse_pci_address)):
        device, facts = devices.get(address), says.get(address, DriverGpu())
        directory = device.directory if device else sysroot.resolve(f"{BUS}/{address}")
        if facts.memory_node is not None:
            notes.append(f"NUMA node {facts.memory_node} is the memory of GPU {index}")
        found.append(
            Gpu(
                index=index,
                uuid=facts.uuid,
                pci_address=address,
                numa=online_node_of(sysroot, directory, nodes, f"the GPU at {address}", notes),
                name=facts.name,
                compute_capability=compute_capability(device.device if device else None, facts.name),
                mig=facts.mig,
                minor=facts.minor,
            )
        )
    return tuple(found), driver


def _is_gpu(function: PciFunction) -> bool:
    return function.kind in GPU_KINDS and function.vendor == VENDOR and not function.virtual


def _left_out(
    devices: Mapping[str, PciFunction], says: Mapping[str, DriverGpu], notes: list[str]
) -> set[str]:
    """Addresses that CUDA does not count: held by another driver, excluded, or lost by the driver."""
    loaded = {address for address, each in devices.items() if each.driver == "nvidia"}
    reasons = {}
    for address, each in devices.items():
        if each.driver in _HELD_BY:
            reasons[address] = f"is held by {each.driver}"
        elif loaded and address not in loaded and address not in says:
            reasons[address] = f"has {each.driver or 'no driver'} in place of nvidia"
    for address, facts in says.items():
        if facts.excluded:
            reasons[address] = "is excluded by the driver"
    notes += [f"the GPU at {address} {why}: not counted" for address, why in sorted(reasons.items())]
    return set(reasons)


def _note_missing(
    functions: Sequence[PciFunction] | None,
    devices: Mapping[str, PciFunction],
    driver: Driver | None,
    notes: list[str],
) -> None:
    if devices and driver is None:
        what = (
            f"{len(devices)} NVIDIA GPU" + (" is" if len(devices) == 1 else "s are") + " on the PCI bus, but"
        )
        loaded = any(each.driver == "nvidia" for each in devices.values())
        why = "there is no /proc/driver/nvidia" if loaded else "no NVIDIA driver is loaded"
        notes.append(f"{what} {why}: UUIDs and models are not known")
    elif not devices and (driver is None or not driver.gpus):
        where = "there is no PCI bus to look at" if functions is None else "no NVIDIA GPU is on the PCI bus"
        also = ", and no NVIDIA driver is loaded" if driver is None else ""
        notes.append(f"GPUs: {where}{also}")
    elif functions is None:
        notes.append("GPUs: there is no PCI bus to look at: their NUMA nodes are not known")
