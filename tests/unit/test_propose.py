"""Presets fitted to hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pd_units.errors import DeploymentError
from pd_units.model import Deployment, lint, parse_deployment
from pd_units.plan import HostFacts, make_plan
from pd_units.propose import description, propose
from pd_units.resources import preset_names, read_preset
from pd_units.topology import UNKNOWN, Gpu, HostTopology, NumaNode


def host(*numa_of_gpus: int | None, nodes: int = 2) -> HostTopology:
    return HostTopology(
        numa_nodes=tuple(NumaNode(id=number, cpus=f"{number}") for number in range(nodes)),
        gpus=tuple(Gpu(index=index, numa=numa) for index, numa in enumerate(numa_of_gpus)),
    )


def fitted(preset: str, topology: HostTopology) -> Deployment:
    return parse_deployment(propose(read_preset(preset), topology), source=preset)


def test_the_presets() -> None:
    assert preset_names() == ("dsv4-pd", "dsv4-single", "qwen3.6-27b", "qwen3.6-27b-mtp")
    for name in preset_names():
        deployment = parse_deployment(read_preset(name), source=name)
        assert lint(deployment) == ()
        assert description(read_preset(name))
        plan = make_plan(
            deployment, HostFacts(topology=UNKNOWN, pd_units_python="/p", engine_version="0.5.23")
        )
        assert all("GPUs" in str(each) or "GPU" in str(each) for each in plan.warnings)


@pytest.mark.parametrize(
    ("topology", "prefill", "decode"),
    [
        (host(0, 0, 0, 0, 1, 1, 1, 1), ((0, 1, 2, 3), (0,)), ((4, 5, 6, 7), (1,))),
        (host(1, 1, 0, 0), ((0, 1), (1,)), ((2, 3), (0,))),
        (host(0, 1, 0, 1), ((0, 2), (0,)), ((1, 3), (1,))),
        (host(0, 0, 0, 0), ((0, 1), (0,)), ((2, 3), (0,))),
        (host(*[None] * 8, nodes=1), ((0, 1, 2, 3), "auto"), ((4, 5, 6, 7), "auto")),
        (host(0, 0, 0, nodes=1), ((0,), "auto"), ((1,), "auto")),
        (host(*[0] * 8, *[1] * 8), ((0, 1, 2, 3), (0,)), ((8, 9, 10, 11), (1,))),
        (host(0, 0, 0, 1), ((0, 1), (0,)), ((2, 3), "auto")),
    ],
)
def test_pairs_are_split_by_node(topology: HostTopology, prefill: tuple, decode: tuple) -> None:
    deployment = fitted("dsv4-pd", topology)
    assert (deployment.prefill[0].gpus, deployment.prefill[0].numa) == prefill
    assert (deployment.decode[0].gpus, deployment.decode[0].numa) == decode


def test_small_servers_run_once_per_gpu() -> None:
    deployment = fitted("qwen3.6-27b", host(0, 0, 1, 1))
    assert [(each.gpus, each.numa, each.port) for each in deployment.standalone] == [
        ((0,), (0,), 30000),
        ((1,), (0,), 30001),
        ((2,), (1,), 30002),
        ((3,), (1,), 30003),
    ]


def test_a_big_server_stays_on_one_node() -> None:
    (instance,) = fitted("dsv4-single", host(0, 0, 1, 1, 1, 1)).standalone
    assert (instance.gpus, instance.numa) == ((2, 3, 4, 5), (1,))


@pytest.mark.parametrize("preset", ["dsv4-pd", "dsv4-single", "qwen3.6-27b"])
def test_too_few_gpus(preset: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        fitted(preset, host())
    assert caught.value.exit_code == 12


def test_unknown_gpus_leave_the_numbers_and_drop_absent_nodes() -> None:
    assert propose(read_preset("dsv4-pd"), UNKNOWN) == read_preset("dsv4-pd")
    laptop = HostTopology(numa_nodes=(NumaNode(id=0, cpus="0-7"),))
    deployment = fitted("dsv4-pd", laptop)
    assert deployment.prefill[0].gpus == (0, 1, 2, 3)
    assert {each.numa for each in deployment.instances} == {"auto"}


def test_sliced_gpus_are_passed_over() -> None:
    topology = host(0, 0, 0, 1, 1)
    gpus = [replace(gpu, mig=True) if gpu.index == 0 else gpu for gpu in topology.gpus or ()]
    deployment = fitted("dsv4-pd", replace(topology, gpus=tuple(gpus)))
    assert (deployment.prefill[0].gpus, deployment.decode[0].gpus) == ((1, 2), (3, 4))
    sliced = tuple(replace(gpu, uuid="MIG-1") for gpu in gpus)
    with pytest.raises(DeploymentError, match="this host has 0"):
        fitted("dsv4-pd", replace(topology, gpus=sliced))


@pytest.mark.parametrize("node", [NumaNode(id=1, cpus="1", memory_bytes=0), NumaNode(id=1, cpus="")])
def test_nodes_that_nothing_can_be_bound_to_are_not_proposed(node: NumaNode) -> None:
    topology = replace(host(0, 0, 1, 1), numa_nodes=(NumaNode(id=0, cpus="0"), node))
    deployment = fitted("dsv4-pd", topology)
    assert deployment.prefill[0].numa == (0,)
    assert (deployment.decode[0].gpus, deployment.decode[0].numa) == ((2, 3), "auto")


def test_comments_survive() -> None:
    text = propose(read_preset("qwen3.6-27b"), host(0, 0))
    kept = [line for line in read_preset("qwen3.6-27b").splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == kept
