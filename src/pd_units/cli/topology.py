"""`pd-units topology`: GPUs, NUMA nodes, CPUs and NICs of a host."""

from __future__ import annotations

from pathlib import Path

import click

from pd_units.adapters.sysfs import read_topology
from pd_units.cli.output import emit, envelope, json_option
from pd_units.errors import ExitCode
from pd_units.topology import Gpu, HostTopology, Nic, NumaNode
from pd_units.topology_json import to_json


@click.command()
@click.option(
    "--sysroot",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    help="Read DIR/sys and DIR/proc in place of this host's.",
)
@json_option
def command(sysroot: Path, as_json: bool) -> None:
    """Show the GPUs, NUMA nodes, CPUs and NICs of this host.

    `--json` writes what `--topology FILE` of render, diff and install takes.
    """
    topology = read_topology(sysroot)
    emit(as_json, envelope(ExitCode.OK, _summary(topology), **to_json(topology)), _text(topology))


def _summary(topology: HostTopology) -> str:
    def count(items: tuple[object, ...] | None, one: str) -> str:
        return f"{one}s not known" if items is None else f"{len(items)} {one}{'' if len(items) == 1 else 's'}"

    return f"{count(topology.gpus, 'GPU')}, {count(topology.numa_nodes, 'NUMA node')}"


def _text(topology: HostTopology) -> str:
    lines: list[str] = []
    nodes = topology.numa_nodes or ()
    for node in nodes:
        lines.append(_node_line(node))
        lines += [f"  {_gpu_line(gpu)}" for gpu in topology.gpus or () if gpu.numa == node.id]
        lines += [f"  {_nic_line(nic)}" for nic in topology.nics or () if nic.numa == node.id]
    numbers = {node.id for node in nodes}
    homeless = [_gpu_line(gpu) for gpu in topology.gpus or () if gpu.numa not in numbers]
    homeless += [_nic_line(nic) for nic in topology.nics or () if nic.numa not in numbers]
    if homeless:
        lines.append("no NUMA node known (nothing is bound for these)")
        lines += [f"  {line}" for line in homeless]
    if topology.numa_nodes is None:
        lines.append("NUMA nodes: not known")
    elif not nodes:
        lines.append("NUMA nodes: none, the kernel has no NUMA support")
    elif len(nodes) == 1:
        lines.append("One NUMA node: units are not bound")
    if topology.gpus is None:
        lines.append("GPUs: not known (no NVIDIA device on the PCI bus and no driver loaded)")
    elif not topology.gpus:
        lines.append("GPUs: none")
    return "\n".join(lines)


def _node_line(node: NumaNode) -> str:
    parts = [f"CPUs {node.cpus}" if node.cpus else "no CPUs"]
    if node.memory_bytes is not None:
        parts.append(f"{node.memory_bytes / 2**30:.0f} GiB")
    if len(node.distances) > 1:
        parts.append(f"distances {' '.join(map(str, node.distances))}")
    return f"NUMA node {node.id}: {', '.join(parts)}"


def _gpu_line(gpu: Gpu) -> str:
    parts = [gpu.pci_address or "PCI address not known", gpu.name or "model not known"]
    parts.append(f"compute capability {gpu.compute_capability or 'not known'}")
    if gpu.memory_bytes is not None:
        parts.append(f"{gpu.memory_bytes / 2**30:.0f} GiB")
    parts.append(gpu.uuid or "UUID not known (is the driver loaded?)")
    return f"GPU {gpu.index}: {', '.join(parts)}"


def _nic_line(nic: Nic) -> str:
    return f"NIC {nic.name}: {nic.pci_address}"
