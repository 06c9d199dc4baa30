"""PCI functions of a sysroot, and the NUMA node of each.

Source: Documentation/ABI/testing/sysfs-bus-pci of the kernel; PCI Local Bus Specification for `config`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pd_units.adapters.sysroot import Sysroot, to_number
from pd_units.topology import NumaNode, normalise_pci_address, parse_cpu_list, parse_cpu_mask

BUS = "sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_PLATFORM_DEPTH = 2
_ROOT = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One function. `directory`: its place in the sysroot, links followed. `kind`: base class and
    subclass (0x0302). `virtual`: of SR-IOV."""

    address: str
    directory: str
    kind: int
    vendor: int | None
    device: int | None
    driver: str | None
    virtual: bool


def pci_address_of(name: str) -> str | None:
    """The address that a directory's name is, None for other names."""
    return normalise_pci_address(name) if _ADDRESS.fullmatch(name) else None


def read_functions(sysroot: Sysroot, wanted: Callable[[int], bool]) -> tuple[PciFunction, ...] | None:
    """The functions whose kind is `wanted`, in the order of their names; None where no PCI bus is shown."""
    directories = [(name, sysroot.resolve(f"{BUS}/{name}")) for name in sysroot.names(BUS)]
    if not directories:
        directories = sorted(_walk(sysroot))
    if not directories and not sysroot.is_directory(BUS):
        return None
    found = (_read_function(sysroot, name, directory, wanted) for name, directory in directories)
    return tuple(function for function in found if function is not None)


def _walk(sysroot: Sysroot) -> Iterator[tuple[str, str]]:
    """(name, directory) of every function below the host bridges, for trees that have no /sys/bus."""
    pending = [f"sys/devices/{name}" for name in sysroot.names("sys/devices") if _ROOT.fullmatch(name)]
    pending += _platform_bridges(sysroot, "sys/devices/platform", _PLATFORM_DEPTH)
    while pending:
        directory = pending.pop()
        for name in sysroot.names(directory):
            if _ADDRESS.fullmatch(name) and sysroot.link(f"{directory}/{name}") is None:
                pending.append(f"{directory}/{name}")
                yield name, f"{directory}/{name}"


def _platform_bridges(sysroot: Sysroot, directory: str, depth: int) -> list[str]:
    """Host bridges that are platform devices, as on arm64: platform/soc/40000000.pcie/pci0000:00."""
    found = []
    for name in sysroot.names(directory):
        if _ROOT.fullmatch(name):
            found.append(f"{directory}/{name}")
        elif depth and sysroot.link(f"{directory}/{name}") is None:
            found += _platform_bridges(sysroot, f"{directory}/{name}", depth - 1)
    return found


def _read_function(
    sysroot: Sysroot, name: str, directory: str, wanted: Callable[[int], bool]
) -> PciFunction | None:
    address = pci_address_of(name)
    code = sysroot.number(f"{directory}/class", 16)
    if address is None or (code is not None and not wanted(code >> 8)):
        return None
    vendor = sysroot.number(f"{directory}/vendor", 16)
    device = sysroot.number(f"{directory}/device", 16)
    event = _event(sysroot, directory)
    if None in (code, vendor, device):
        seen = _identity_in_event(event) or _identity_in_config(sysroot.content(f"{directory}/config"))
        code, vendor, device = (
            known if known is not None else other
            for known, other in zip((code, vendor, device), seen or (None, None, None), strict=True)
        )
    if code is None or not wanted(code >> 8):
        return None
    driver = sysroot.link(f"{directory}/driver")
    return PciFunction(
        address=address,
        directory=directory,
        kind=code >> 8,
        vendor=vendor,
        device=device,
        driver=driver.rpartition("/")[2] if driver else event.get("DRIVER"),
        virtual=sysroot.exists(f"{directory}/physfn"),
    )


def _event(sysroot: Sysroot, directory: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in (sysroot.text(f"{directory}/uevent") or "").splitlines())
    return {key: value for key, _, value in pairs}


def _identity_in_event(event: dict[str, str]) -> tuple[int | None, int | None, int | None] | None:
    """(class code, vendor, device) of PCI_CLASS=30200 and PCI_ID=10DE:2335."""
    vendor, _, device = event.get("PCI_ID", "").partition(":")
    code = to_number(event.get("PCI_CLASS"), 16)
    return (code, to_number(vendor, 16), to_number(device, 16)) if code is not None else None


def _identity_in_config(config: bytes | None) -> tuple[int, int, int] | None:
    """(class code, vendor, device) of the header; None for a device that is gone (all ones)."""
    if config is None or len(config) < 12 or config[:2] == b"\xff\xff":
        return None
    little = [int.from_bytes(config[at:end], "little") for at, end in ((9, 12), (0, 2), (2, 4))]
    return little[0], little[1], little[2]


def node_of(sysroot: Sysroot, directory: str, nodes: Sequence[NumaNode] | None) -> int | None:
    """The NUMA node of a function; None where the kernel knows none (-1).

    A tree without `numa_node` may still have it at a bridge above, or name the CPUs beside the device.
    """
    place = directory
    while _ADDRESS.fullmatch(place.rpartition("/")[2]):
        text = sysroot.text(f"{place}/numa_node")
        if text is not None:
            node = to_number(text)
            return node if node is not None and node >= 0 else None
        place = place.rpartition("/")[0]
    return _node_of_cpus(_local_cpus(sysroot, directory), nodes or ())


def online_node_of(
    sysroot: Sysroot, directory: str, nodes: Sequence[NumaNode] | None, what: str, notes: list[str]
) -> int | None:
    """As node_of, but None for a node that is not online: nothing can be bound to it. `what` names the
    device in the note that says so."""
    node = node_of(sysroot, directory, nodes)
    if node is not None and nodes and node not in {each.id for each in nodes}:
        notes.append(f"{what} is on NUMA node {node}, which is not online: node not known")
        return None
    return node


def _local_cpus(sysroot: Sysroot, directory: str) -> frozenset[int]:
    for name, parse in (("local_cpulist", parse_cpu_list), ("local_cpus", parse_cpu_mask)):
        try:
            cpus = parse(sysroot.text(f"{directory}/{name}") or "")
        except ValueError:
            continue
        if cpus:
            return frozenset(cpus)
    return frozenset()


def _node_of_cpus(cpus: frozenset[int], nodes: Sequence[NumaNode]) -> int | None:
    """The one node whose CPUs these are; None if they are those of several."""
    owners = [node.id for node in nodes if cpus & set(parse_cpu_list(node.cpus or ""))]
    return owners[0] if len(owners) == 1 else None
