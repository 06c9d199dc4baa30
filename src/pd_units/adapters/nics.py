"""Network and RDMA devices of a sysroot that have a PCI function behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pd_units.adapters.pci import PciFunction, online_node_of, pci_address_of
from pd_units.adapters.sysroot import Sysroot
from pd_units.topology import Nic, NumaNode

#: Directories of class devices, and whether those are RDMA devices (the names that UCX_NET_DEVICES takes).
_CLASSES = {"net": False, "infiniband": True}
_INFINIBAND = 0x0207


def is_network(kind: int) -> bool:
    """Whether a PCI function of that kind is a network controller."""
    return kind >> 8 == 0x02


def read_nics(
    sysroot: Sysroot,
    functions: Sequence[PciFunction] | None,
    nodes: Sequence[NumaNode] | None,
    notes: list[str],
) -> tuple[Nic, ...] | None:
    """Devices by name; None where neither device classes nor a PCI bus are shown.

    An InfiniBand controller without a driver has no device: it is there under its PCI address.
    """
    classes = [word for word in _CLASSES if sysroot.is_directory(f"sys/class/{word}")]
    if not classes and functions is None:
        return None
    found = {(word, name): directory for word, name, directory in _devices(sysroot, functions or ())}
    nics = []
    for (word, name), directory in found.items():
        address = pci_address_of(directory.rpartition("/")[2])
        numa = online_node_of(sysroot, directory, nodes, name, notes)
        nics.append(Nic(name=name, pci_address=address, numa=numa, rdma=_CLASSES[word]))
    named = {nic.pci_address for nic in nics}
    for each in functions or ():
        if each.kind == _INFINIBAND and each.address not in named:
            numa = online_node_of(sysroot, each.directory, nodes, f"the NIC at {each.address}", notes)
            nics.append(Nic(name=each.address, pci_address=each.address, numa=numa))
    return tuple(sorted(nics, key=lambda nic: (nic.name, nic.pci_address or "")))


def _devices(sysroot: Sysroot, functions: Sequence[PciFunction]) -> Iterator[tuple[str, str, str]]:
    """(class, name, directory of the PCI function) of each device."""
    for word in _CLASSES:
        for name in sysroot.names(f"sys/class/{word}"):
            link = sysroot.resolve(f"sys/class/{word}/{name}/device")
            if (function := _function_above(link)) is not None:
                yield word, name, function
        if sysroot.is_directory(f"sys/class/{word}"):
            continue  # else the devices are looked for below the functions
        for each in functions:
            for name in sysroot.names(f"{each.directory}/{word}"):
                yield word, name, each.directory


def _function_above(directory: str) -> str | None:
    """The nearest directory at or above `directory` that is a PCI function's."""
    while directory:
        if pci_address_of(directory.rpartition("/")[2]):
            return directory
        directory = directory.rpartition("/")[0]
    return None
