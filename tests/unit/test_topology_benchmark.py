"""The composed host of 64 GPUs: read right, and within the time that benchmarks/topology.py allows."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from sysfs_tree import build

from pd_units.adapters.sysfs import read_topology
from pd_units.model import parse_deployment
from pd_units.plan import HostFacts, make_plan

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "topology.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("topology_benchmark", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "nodes", "each"), [("8 GPUs, 2 nodes", 2, 4), ("64 GPUs, 8 nodes", 8, 8)])
def test_big_hosts(benchmark: ModuleType, tmp_path: Path, name: str, nodes: int, each: int) -> None:
    build("\n".join(benchmark.tree(nodes, each)), tmp_path)
    deployment = parse_deployment(benchmark.deployment(nodes, each), source="big")
    times = []
    for _ in range(3):
        before = time.process_time()
        topology = read_topology(tmp_path)
        plan = make_plan(deployment, HostFacts(topology=topology, pd_units_python="/p"))
        times.append(time.process_time() - before)
    assert [gpu.numa for gpu in topology.gpus or ()] == [index // each for index in range(nodes * each)]
    assert {gpu.compute_capability for gpu in topology.gpus or ()} == {"12.0"}
    assert len(topology.nics or ()) == 2 * nodes * each
    assert [unit.numa_nodes for unit in plan.units[:-1]] == [(node,) for node in range(nodes)]
    assert min(times) < benchmark.BUDGETS_S[name]
