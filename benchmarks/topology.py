#!/usr/bin/env python3
"""How long pd-units takes to read a host's topology and to plan a deployment on it.

    python3 benchmarks/topology.py

Two composed trees of /sys and /proc: 8 GPUs on two NUMA nodes, and 64 GPUs on eight. The own time is
what reading and planning take of a processor, with caches warm; the command's is that of all of
`pd-units topology --json`, beside a bare `python -c pass`. Ends with 1 if an own time is over its budget.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "unit")]

from sysfs_tree import build  # noqa: E402

from pd_units.adapters.sysfs import read_topology  # noqa: E402
from pd_units.model import parse_deployment  # noqa: E402
from pd_units.plan import HostFacts, make_plan  # noqa: E402

RUNS = 20
BUDGETS_S = {"8 GPUs, 2 nodes": 0.150, "64 GPUs, 8 nodes": 0.300}


def tree(nodes: int, gpus_per_node: int) -> Iterator[str]:
    """A host as text: each GPU behind bridges of its own, an RDMA adapter beside it, 64 CPUs a node."""
    last = nodes * 64 - 1
    yield f"file sys/devices/system/node/online 0-{nodes - 1}"
    yield f"file sys/devices/system/node/possible 0-{nodes - 1}"
    yield f"file sys/devices/system/cpu/online 0-{last}"
    for cpu in range(last + 1):
        yield f"file sys/devices/system/cpu/cpu{cpu}/online 1"
    for node in range(nodes):
        distances = " ".join("10" if other == node else "21" for other in range(nodes))
        yield f'node {node} cpus={node * 64}-{node * 64 + 63} mem=528000000 dist="{distances}"'
        for slot in range(gpus_per_node):
            yield from slot_of(node, slot)
    yield 'file proc/driver/nvidia/version "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  x"'


def slot_of(node: int, slot: int) -> Iterator[str]:
    """One GPU and one adapter, below a root port and a switch."""
    domain, bus = f"{node // 4:04x}", (node % 4) * 64 + slot * 4
    port = f"{domain}:{bus:02x}:01.0"
    upstream, downstream = f"{domain}:{bus + 1:02x}:00.0", f"{domain}:{bus + 2:02x}:00.0"
    gpu, nic = f"{domain}:{bus + 3:02x}:00.0", f"{domain}:{bus + 3:02x}:01.0"
    at = f"pci{domain}:{bus:02x}"
    for bridge in (port, upstream, downstream):
        yield f"pci {bridge} at={at} class=060400 vendor=1000 device=c030 numa={node} driver=pcieport"
        at += f"/{bridge}"
    yield f"pci {gpu} at={at} class=030200 vendor=10de device=2bb5 numa={node} driver=nvidia"
    yield f"pci {nic} at={at} class=020000 vendor=15b3 device=1021 numa={node} driver=mlx5_core"
    yield f"net en{node}s{slot} {nic}"
    yield f"ib mlx5_{node * 8 + slot} {nic}"
    yield f'gpu {gpu} "Model=NVIDIA RTX PRO 6000 Blackwell" "GPU UUID=GPU-{node:02x}{slot:02x}"'


def deployment(nodes: int, gpus_per_node: int) -> str:
    """Prefill on the first half of the nodes, decode on the others, an instance a node."""
    tables = []
    for node in range(nodes):
        role = "prefill" if node < nodes // 2 else "decode"
        first = node * gpus_per_node
        tables.append(f"[[{role}]]\ngpus = {list(range(first, first + gpus_per_node))}")
        tables.append(f'numa = "auto"\nport = {30000 + node * 10}')
        tables.append(f"bootstrap_port = {9000 + node}" if role == "prefill" else "")
    head = '[deployment]\nname = "big"\n[engine]\npython = "/opt/sglang/bin/python"\nmodel = "/models/x"\n'
    flags = '[engine.sm120]\nSGLANG_SM120_TRITON_INDEXER = "1"\n'
    return head + flags + "\n".join(tables) + '\n[router]\nport = 29999\npython = "/opt/router/bin/python"\n'


@dataclass(frozen=True)
class Times:
    """Seconds of several runs: of a processor, and by the clock."""

    own_s: list[float]
    wall_s: list[float]

    def __str__(self) -> str:
        own, wall = (statistics.median(times) * 1000 for times in (self.own_s, self.wall_s))
        return f"own {own:6.1f} ms (at most {max(self.own_s) * 1000:.1f}), by the clock {wall:.1f} ms"


def timed(call: Callable[[], object], runs: int = RUNS) -> Times:
    """Times of `call`, its child processes' included, after one run that warms caches."""
    call()
    times = Times([], [])
    for _ in range(runs):
        own, wall = processor_s(), time.perf_counter()
        call()
        times.own_s.append(processor_s() - own)
        times.wall_s.append(time.perf_counter() - wall)
    return times


def processor_s() -> float:
    """Processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def run(*argv: str) -> None:
    subprocess.run([sys.executable, *argv], check=True, capture_output=True)


def measure(name: str, nodes: int, gpus_per_node: int) -> bool:
    """Measures one host and prints its lines. Returns: whether it keeps to its budget."""
    text = deployment(nodes, gpus_per_node)
    with tempfile.TemporaryDirectory(prefix="pd-units-bench-") as folder:
        root = build("\n".join(tree(nodes, gpus_per_node)), Path(folder))
        topology = read_topology(root)
        assert len(topology.gpus or ()) == nodes * gpus_per_node, topology
        assert len(topology.numa_nodes or ()) == nodes, topology

        def read_and_plan() -> object:
            facts = HostFacts(topology=read_topology(root), pd_units_python="/p", engine_version="0.5.23")
            return make_plan(parse_deployment(text, source=name), facts)

        reading, both = timed(lambda: read_topology(root)), timed(read_and_plan)
        command = timed(lambda: run("-m", "pd_units", "topology", "--sysroot", folder, "--json"), runs=5)
        bare = timed(lambda: run("-c", "pass"), runs=5)
    own_s, budget_s = statistics.median(both.own_s), BUDGETS_S[name]
    ratio = statistics.median(command.own_s) / statistics.median(bare.own_s)
    print(f"{name}")
    print(f"  reading            {reading}")
    print(f"  reading, planning  {both}; {own_s / budget_s:.0%} of {budget_s * 1000:.0f} ms")
    print(f"  whole command      {command}; {ratio:.1f} times a bare python")
    return own_s <= budget_s


def main() -> int:
    kept = [measure("8 GPUs, 2 nodes", 2, 4), measure("64 GPUs, 8 nodes", 8, 8)]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
