"""Reads a host's topology from /sys and /proc, or from a recorded tree of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pd_units.adapters import nvml
from pd_units.adapters.nics import is_network, read_nics
from pd_units.adapters.numa import read_nodes
from pd_units.adapters.nvidia import GPU_KINDS, read_gpus
from pd_units.adapters.pci import read_functions
from pd_units.adapters.sysroot import Sysroot
from pd_units.topology import Gpu, HostTopology, format_cpu_list, parse_pci_address


def read_topology(sysroot: Path = Path("/")) -> HostTopology:
    """Topology of this host, or of the tree under `sysroot` (its sys/ and proc/)."""
    tree, notes = Sysroot(sysroot), list[str]()
    nodes = read_nodes(tree, notes)
    functions = read_functions(tree, lambda kind: kind in GPU_KINDS or is_network(kind))
    gpus, driver = read_gpus(tree, functions, nodes, notes)
    version = driver.version if driver is not None else None
    if tree.is_host and (seen := nvml.read_nvml()) is not None:
        gpus, version = _with_nvml(gpus, seen.gpus), seen.driver or version
    nics = read_nics(tree, functions, nodes, notes)
    notes += _unknown(gpus or (), several_nodes=len(nodes or ()) > 1)
    return HostTopology(
        numa_nodes=nodes,
        gpus=gpus,
        nics=nics,
        driver=version,
        notes=tuple(notes),
    )


def _with_nvml(gpus: tuple[Gpu, ...] | None, seen: dict[str, nvml.NvmlGpu]) -> tuple[Gpu, ...] | None:
    """Fills in what NVML knows. The GPUs stay those of sysfs: NVML may be cut down to a container's. Where
    sysfs shows none, they are NVML's."""
    if gpus is None:
        addresses = sorted(seen, key=parse_pci_address)
        gpus = tuple(Gpu(index=index, pci_address=each) for index, each in enumerate(addresses)) or None
    filled = []
    for gpu in gpus or ():
        known = seen.get(gpu.pci_address or "")
        if known is not None:
            gpu = replace(
                gpu,
                uuid=known.uuid or gpu.uuid,
                name=known.name or gpu.name,
                compute_capability=known.compute_capability or gpu.compute_capability,
                memory_bytes=known.memory_bytes,
                mig=known.mig if known.mig is not None else gpu.mig,
            )
        filled.append(gpu)
    return tuple(filled) if gpus is not None else None


def _unknown(gpus: tuple[Gpu, ...], *, several_nodes: bool) -> list[str]:
    """What is not known of GPUs that are there."""
    wanted = {
        "numa": "the kernel knows no NUMA node of GPU {}: nothing is bound for it",
        "compute_capability": "the compute capability of GPU {} is not known",
        "memory_bytes": "the memory of GPU {} is not known (it takes NVML: the driver and nvidia-ml-py)",
    }
    notes = []
    for field, text in wanted.items():
        lacking = [gpu.index for gpu in gpus if getattr(gpu, field) is None]
        if lacking and (field != "numa" or several_nodes):
            notes.append(text.format(format_cpu_list(lacking)))
    sliced = [gpu.index for gpu in gpus if gpu.mig]
    if sliced:
        notes.append(f"GPU {format_cpu_list(sliced)} is in MIG mode: a unit cannot have it whole")
    return notes
