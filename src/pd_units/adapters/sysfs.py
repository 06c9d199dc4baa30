"""Reads a host's topology from /sys and /proc, or from a recorded tree of them.

Source: Documentation/ABI/stable/sysfs-devices-node, .../testing/sysfs-bus-pci of the kernel;
/proc/driver/nvidia/gpus/ADDRESS/information of NVIDIA's driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pd_units.adapters import nvml
from pd_units.gpu_models import compute_capability
from pd_units.topology import (
    Gpu,
    HostTopology,
    Nic,
    NumaNode,
    format_cpu_list,
    normalise_pci_address,
    parse_cpu_list,
    parse_pci_address,
)

_NVIDIA = 0x10DE
_GPU_CLASSES = (0x0300, 0x0302)  # VGA controller (GeForce, RTX PRO), 3D controller (data centre)
#: Drivers that hold a GPU for somebody else, so that CUDA does not count it.
_HELD_BY = ("vfio-pci", "pci-stub", "xen-pciback")


def read_topology(sysroot: Path = Path("/")) -> HostTopology:
    """Topology of this host, or of the tree under `sysroot` (its sys/ and proc/)."""
    gpus = _gpus(sysroot)
    if sysroot == Path("/"):
        gpus = _with_nvml(gpus)
    return HostTopology(numa_nodes=_numa_nodes(sysroot), gpus=gpus, nics=_nics(sysroot))


def _read(path: Path) -> str | None:
    """Stripped text of an attribute; None if it is not there or not readable (some answer EINVAL)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path, base: int = 10) -> int | None:
    try:
        return int(_read(path) or "", base)
    except ValueError:
        return None


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


# NUMA nodes


def _numa_nodes(sysroot: Path) -> tuple[NumaNode, ...] | None:
    """Nodes that are online, by number; () for a kernel without NUMA, None where sysfs is not there."""
    system = sysroot / "sys/devices/system"
    if not system.is_dir():
        return None
    directories = {
        int(match[1]): entry
        for entry in _entries(system / "node")
        if (match := re.fullmatch(r"node(\d+)", entry.name))
    }
    online = _online(system / "node/online")
    numbers = sorted(number for number in directories if online is None or number in online)
    return tuple(_numa_node(number, directories[number]) for number in numbers)


def _online(path: Path) -> set[int] | None:
    text = _read(path)
    try:
        return set(parse_cpu_list(text)) if text else None
    except ValueError:
        return None


def _numa_node(number: int, directory: Path) -> NumaNode:
    distances = (_read(directory / "distance") or "").split()
    return NumaNode(
        id=number,
        cpus=_cpus_of(directory),
        memory_bytes=_memory_bytes(directory / "meminfo"),
        distances=tuple(int(each) for each in distances if each.isdecimal()),
    )


def _cpus_of(directory: Path) -> str:
    """The node's CPUs in list form, from cpulist or, in older recordings, from the hexadecimal cpumap."""
    text = _read(directory / "cpulist")
    if text is not None:
        try:
            return format_cpu_list(parse_cpu_list(text))
        except ValueError:
            pass
    mask = (_read(directory / "cpumap") or "").replace(",", "")
    try:
        bits = int(mask or "0", 16)
    except ValueError:
        return ""
    return format_cpu_list(number for number in range(bits.bit_length()) if bits >> number & 1)


def _memory_bytes(path: Path) -> int | None:
    match = re.search(r"MemTotal:\s*(\d+) kB", _read(path) or "")
    return int(match[1]) * 1024 if match else None


# GPUs


@dataclass(frozen=True, slots=True)
class _DriverFacts:
    """One file of /proc/driver/nvidia/gpus."""

    uuid: str | None
    name: str | None
    excluded: bool


def _gpus(sysroot: Path) -> tuple[Gpu, ...] | None:
    """NVIDIA GPUs that CUDA counts, in PCI order. None where there are none and no driver that could tell
    so: a laptop that renders for another machine is not a machine without GPUs."""
    driver = _driver_facts(sysroot)
    devices = dict(_pci_gpus(sysroot))
    if any(name == "nvidia" for _, name in devices.values()):
        devices = {address: each for address, each in devices.items() if each[1] == "nvidia"}
    excluded = {address for address, facts in (driver or {}).items() if facts.excluded}
    held = {address for address, (_, name) in devices.items() if name in _HELD_BY}
    usable = (set(devices) | set(driver or ())) - held - excluded
    if not usable and driver is None:
        return None
    found = []
    for index, address in enumerate(sorted(usable, key=parse_pci_address)):
        facts = (driver or {}).get(address)
        path = devices[address][0] if address in devices else None
        device = _number(path / "device", 16) if path else None
        name = facts.name if facts else None
        found.append(
            Gpu(
                index=index,
                uuid=facts.uuid if facts else None,
                pci_address=address,
                numa=_numa_of(path) if path else None,
                name=name,
                compute_capability=compute_capability(device, name),
            )
        )
    return tuple(found)


def _pci_gpus(sysroot: Path) -> Iterator[tuple[str, tuple[Path, str | None]]]:
    """(address, (directory, driver)) of each NVIDIA GPU on the PCI bus; virtual functions are left out."""
    for path in _entries(sysroot / "sys/bus/pci/devices"):
        kind = _number(path / "class", 16)
        if kind is None or kind >> 8 not in _GPU_CLASSES or _number(path / "vendor", 16) != _NVIDIA:
            continue
        if (path / "physfn").exists() or not _is_pci_address(path.name):
            continue
        link = path / "driver"
        driver = Path(link.readlink()).name if link.is_symlink() else None
        yield normalise_pci_address(path.name), (path, driver)


def _is_pci_address(text: str) -> bool:
    try:
        parse_pci_address(text)
    except ValueError:
        return False
    return True


def _driver_facts(sysroot: Path) -> dict[str, _DriverFacts] | None:
    """What NVIDIA's driver says of each GPU, by address; None where it is not loaded."""
    directory = sysroot / "proc/driver/nvidia"
    if not directory.is_dir():
        return None
    found = {}
    for path in _entries(directory / "gpus"):
        if not _is_pci_address(path.name):
            continue
        pairs = (line.partition(":") for line in (_read(path / "information") or "").splitlines())
        values = {key.strip(): value.strip() for key, _, value in pairs}
        uuid = values.get("GPU UUID", "")
        found[normalise_pci_address(path.name)] = _DriverFacts(
            uuid=uuid if uuid and "?" not in uuid else None,  # question marks until the GPU is first opened
            name=values.get("Model") or None,
            excluded=values.get("GPU Excluded") == "Yes",
        )
    return found


def _with_nvml(gpus: tuple[Gpu, ...] | None) -> tuple[Gpu, ...] | None:
    """Fills in what NVML knows. The GPUs stay those of sysfs: NVML may be cut down to a container's."""
    facts = nvml.read_gpus() if gpus else None
    if not gpus or not facts:
        return gpus
    filled = []
    for gpu in gpus:
        known = facts.get(gpu.pci_address or "")
        if known is not None:
            gpu = replace(
                gpu,
                uuid=known.uuid,
                name=known.name,
                compute_capability=known.compute_capability,
                memory_bytes=known.memory_bytes,
            )
        filled.append(gpu)
    return tuple(filled)


def _numa_of(device: Path) -> int | None:
    """The device's NUMA node; None where the kernel knows none (-1)."""
    node = _number(device / "numa_node")
    return node if node is not None and node >= 0 else None


# NICs


def _nics(sysroot: Path) -> tuple[Nic, ...] | None:
    """Network and RDMA devices with a PCI function behind them, by name."""
    directories = [sysroot / "sys/class/net", sysroot / "sys/class/infiniband"]
    if not any(directory.is_dir() for directory in directories):
        return None
    found = []
    for path in (entry for directory in directories for entry in _entries(directory)):
        device = path / "device"
        if not device.exists():
            continue
        parents = [device.resolve(), *device.resolve().parents]
        function = next((each for each in parents if _is_pci_address(each.name)), None)
        if function is not None:
            address = normalise_pci_address(function.name)
            found.append(Nic(name=path.name, pci_address=address, numa=_numa_of(function)))
    return tuple(sorted(found, key=lambda nic: nic.name))
