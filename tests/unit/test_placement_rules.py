"""Rules of placement that no golden case shows: moved GPUs, kernel flags, memory fractions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pd_units.engines.options import Program
from pd_units.errors import DeploymentError
from pd_units.model import Deployment, lint, parse_deployment
from pd_units.pinning import check_gpus_together, moved_gpus
from pd_units.plan import HostFacts, make_plan
from pd_units.plan_checks import gpu_ids
from pd_units.plan_memory import known_models
from pd_units.resources import preset_names, read_preset
from pd_units.sm120 import check_version, lint_flags, load_flags
from pd_units.topology import UNKNOWN, Gpu, HostTopology, NumaNode


def deployment(gpus: str = "[0, 1]", args: str = "", name: str = "x", more: str = "") -> Deployment:
    text = f"""
[deployment]
name = "{name}"
[engine]
python = "/p"
model = "/models/DeepSeek-V4-Flash"
user = "sglang"
{more}
[[standalone]]
gpus = {gpus}
port = 30000
args = {{ {args} }}
"""
    return parse_deployment(text, source=f"{name}.toml")


def host(*gpus: Gpu) -> HostFacts:
    nodes = tuple(NumaNode(id=number, cpus=str(number)) for number in range(2))
    topology = HostTopology(numa_nodes=nodes, gpus=gpus)
    return HostFacts(topology=topology, pd_units_python="/p", engine_version="0.5.23")


def warnings(plan_of: Deployment, facts: HostFacts) -> list[str]:
    return [str(each) for each in make_plan(plan_of, facts).warnings]


def test_gpus_that_moved_or_are_gone() -> None:
    now = HostTopology(
        gpus=(Gpu(index=0, pci_address="0000:01:00.0"), Gpu(index=1, pci_address="0000:81:00.0"))
    )
    then = {"0": "0000:01:00.0", "1": "0000:41:00.0", "2": "0000:81:00.0"}
    assert [str(each).split(" (")[0] for each in moved_gpus("x.service", then, now)] == [
        "x.service: GPU 1 was 0000:41:00.0 when this was placed, and is 0000:81:00.0 now",
        "x.service: GPU 2",
    ]
    assert moved_gpus("x", then, UNKNOWN) == ()
    assert moved_gpus("x", {}, now) == ()
    assert moved_gpus("x", {"0": "0000:01:00.0"}, HostTopology(gpus=(Gpu(index=0),))) == ()


def test_two_deployments_on_one_gpu() -> None:
    (fault,) = check_gpus_together([deployment("[0, 1]"), deployment("[1, 2]", name="y")])
    assert str(fault) == "y.toml: standalone[0].gpus: GPU 1 is used by the deployment x already"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, (0,)),
        ({"tensor-parallel-size": 4}, (0, 1, 2, 3)),
        ({"tensor-parallel-size": 2, "pipeline-parallel-size": 2, "base-gpu-id": 4}, (4, 5, 6, 7)),
        ({"tensor-parallel-size": 2, "gpu-id-step": 2, "base-gpu-id": 1}, (1, 3)),
        ({"base-gpu-id": "many"}, (0,)),
    ],
)
def test_numbers_by_which_the_engine_knows_its_gpus(options: dict, ids: tuple[int, ...]) -> None:
    assert gpu_ids(options) == ids


def test_a_rank_bound_away_from_its_gpu() -> None:
    facts = host(Gpu(index=0, numa=0), Gpu(index=1, numa=1))
    found = warnings(deployment(args="numa-node = [1, 1]"), facts)
    assert "standalone[0].args.numa-node: names NUMA node 1 for GPU 0, which is on 0" in found
    assert not [
        each for each in warnings(deployment(args="numa-node = [0, 1]"), facts) if "numa-node" in each
    ]


@pytest.mark.parametrize("value", ["0", "-0.1", "1.5", "70"])
def test_fractions_that_no_process_can_have(value: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        deployment(args=f"mem-fraction-static = {value}")
    assert caught.value.exit_code == 11
    assert "a share of each GPU's memory" in str(caught.value.faults[0])


@pytest.mark.parametrize("value", ["1", "0.0001", '"0.7"', "true"])
def test_fractions_that_are_left_to_the_engine(value: str) -> None:
    deployment(args=f"mem-fraction-static = {value}")


def test_memory_against_what_is_known() -> None:
    big = Gpu(index=0, memory_bytes=288 * 10**9), Gpu(index=1, memory_bytes=288 * 10**9)
    small = Gpu(index=0, memory_bytes=96 * 10**9), Gpu(index=1, memory_bytes=96 * 10**9)

    def found(args: str, gpus: tuple[Gpu, ...]) -> list[str]:
        return [each for each in warnings(deployment(args=args), host(*gpus)) if "mem-fraction" in each]

    assert found("mem-fraction-static = 0.95", big) == []
    assert "ran with 0.7" in found("mem-fraction-static = 0.95", small)[0]
    assert "146 GB of weights, 73 on each of 2 GPUs" in found("mem-fraction-static = 0.70", small)[0]
    assert found("mem-fraction-static = 0.74, max-running-requests = 1", big) == []
    assert found("", small) == []


def test_the_presets_keep_to_what_is_known() -> None:
    for name in preset_names():
        preset = parse_deployment(read_preset(name), source=name)
        for instance in preset.instances:
            known = known_models().get(preset.engine.model.rpartition("/")[2].lower())
            declared = instance.args.get("mem-fraction-static", preset.engine.args.get("mem-fraction-static"))
            if known is not None:
                assert declared == known.fractions[instance.role]


def test_kernel_flags_that_are_not_known_pass_with_a_warning() -> None:
    declared = {"SGLANG_SM120_TRITON_INDEXR": "1", "SGLANG_SM120_FLASHMLA_BACKEND": "b12x"}
    assert [str(each) for each in lint_flags(declared)] == [
        "engine.sm120.SGLANG_SM120_TRITON_INDEXR: is not a flag for compute capability 12.x that pd-units "
        "knows; passed on as it is (did you mean SGLANG_SM120_TRITON_INDEXER?)",
        "engine.sm120.SGLANG_SM120_FLASHMLA_BACKEND: is 'b12x'; known values are flashinfer, triton, torch; "
        "passed on as it is",
    ]
    more = '[engine.sm120]\nSGLANG_SM120_OURS = "1"'
    assert any("SGLANG_SM120_OURS" in str(each) for each in lint(deployment(more=more)))
    facts = host(*(Gpu(index=index, compute_capability="12.0") for index in range(2)))
    (unit,) = make_plan(deployment(more=more), facts).units
    assert ("SGLANG_SM120_OURS", "1") in unit.environment


def test_kernel_flags_by_engine_version() -> None:
    upstream = {"SGLANG_SM120_FLASHMLA_BACKEND": "triton"}
    assert len(check_version(upstream, Program.engine("0.5.12"))) == 1
    assert check_version(upstream, Program.engine("0.5.23")) == ()
    assert check_version(upstream, Program.engine(None)) == ()
    assert check_version({"SGLANG_SM120_MMA_FLASHMLA": "1", "OURS": "1"}, Program.engine("0.5.12")) == ()


def test_the_table_of_kernel_flags() -> None:
    flags = load_flags()
    assert {flag.origin for flag in flags.values()} == {"fork", "sglang"}
    assert all(flag.does for flag in flags.values())
    assert {name: flag.seed for name, flag in flags.items() if flag.seed} == {
        "SGLANG_SM120_MMA_FLASHMLA": "1",
        "SGLANG_SM120_TRITON_INDEXER": "1",
    }
    page = (Path(__file__).resolve().parents[2] / "docs/reference/deployment-file.md").read_text(
        encoding="utf-8"
    )
    for name, flag in flags.items():
        assert f"| `{name}` |" in page, "the reference lists every flag"
        assert flag.seed is None or not flag.values or flag.seed in flag.values


def test_flags_forced_by_the_environment() -> None:
    more = '[engine.environment]\nSGLANG_SM120_MMA_FLASHMLA = "1"'
    (unit,) = make_plan(deployment(more=more), host(Gpu(index=0), Gpu(index=1))).units
    assert ("SGLANG_SM120_MMA_FLASHMLA", "1") in unit.environment
