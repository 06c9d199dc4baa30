"""Whose ports, GPU memory and drop-ins preflight looks at, with the host's answers given."""

from __future__ import annotations

from pathlib import Path

import pytest

from pd_units.adapters import procfs
from pd_units.adapters.gpu_memory import GpuMemory
from pd_units.manifest import manifest_path, manifest_text
from pd_units.model import parse_deployment
from pd_units.naming import Names
from pd_units.plan import HostFacts, Plan, make_plan
from pd_units.preflight import drop_ins, engine, gpus
from pd_units.preflight.base import Check
from pd_units.preflight.drop_ins import check_lines, overrides_of
from pd_units.preflight.gpus import check_gpu_memory
from pd_units.preflight.ports import check_ports
from pd_units.prepare import subject_of
from pd_units.topology import Gpu, HostTopology

DEPLOYMENT = """
deployment.name = "a"
engine = { python = "/usr/bin/python3", model = "/models/m", user = "nobody" }
prefill = [
    { gpus = [0], port = 30000, bootstrap_port = 8998 },
    { gpus = [1], port = 30003, bootstrap_port = 8999 },
]
decode = [{ gpus = [2], port = 30002 }]
router = { port = 30001 }
"""
TOPOLOGY = HostTopology(
    numa_nodes=None, gpus=tuple(Gpu(index=n, pci_address=f"0000:0{n}:00.0") for n in range(3)), nics=None
)
GIB = 1 << 30


def plan_of(text: str = DEPLOYMENT) -> Plan:
    deployment = parse_deployment(text, source="a.toml")
    return make_plan(deployment, HostFacts(topology=TOPOLOGY, pd_units_python="/opt/python"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which process 7 of a-prefill.service listens on 30000 and holds GPU 0."""
    monkeypatch.setattr(procfs, "port_in_use", lambda port: port == 30000)
    monkeypatch.setattr(procfs, "port_owner", lambda port: 7 if port == 30000 else None)
    monkeypatch.setattr(procfs, "unit_of", lambda pid: "a-prefill.service" if pid == 7 else "")
    monkeypatch.setattr(procfs, "command_line", lambda pid: ("/usr/bin/python3",))
    memory = GpuMemory(total_bytes=96 * GIB, used_bytes=90 * GIB, by_pid={7: 90 * GIB})
    monkeypatch.setattr(gpus, "read_gpu_memory", lambda: {"0000:00:00.0": memory})
    return tmp_path


def failed(root: Path, plan: Plan) -> list[Check]:
    subject = subject_of(plan, TOPOLOGY, None, root=root)
    return [check for check in (*check_ports(subject), *check_gpu_memory(subject)) if not check.ok]


def installed(root: Path, *units: str) -> None:
    path = manifest_path(Names("a", root))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest_text(dict.fromkeys(units, "0" * 64)))


def test_an_instance_that_becomes_two_is_in_nobodys_way(host: Path) -> None:
    installed(host, "a-prefill.service", "a-decode.service", "a-router.service")
    assert failed(host, plan_of()) == []


def test_a_unit_of_our_name_that_no_record_knows_is_in_the_way(host: Path) -> None:
    for check in failed(host, plan_of()):
        assert "systemctl disable --now a-prefill.service" in check.advice
        assert "retires" not in check.advice  # it takes no name of the deployment's own
    assert {check.name for check in failed(host, plan_of())} == {"ports", "gpu-memory"}
    manifest_path(Names("a", host)).parent.mkdir(parents=True)
    manifest_path(Names("a", host)).write_text("damaged")
    assert {check.name for check in failed(host, plan_of())} == {"ports", "gpu-memory"}


def test_a_stranger_can_be_retired(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "unit_of", lambda pid: "old.service")
    assert {"deployment.retires" in check.advice for check in failed(host, plan_of())} == {True}
    retiring = DEPLOYMENT.replace('"a"', '"a"\ndeployment.retires = ["old.service"]', 1)
    assert failed(host, plan_of(retiring)) == []


def test_the_interpreters_are_looked_at_whatever_stands_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(engine, "_importable", lambda python, module, _user: asked.append((python, module)))
    loader = ', environment = { LD_LIBRARY_PATH = "/x" } }\nprefill'
    text = DEPLOYMENT.replace(" }\nprefill", loader).replace("30001", '30001, python = "/opt/router"')
    plan = plan_of(text)
    assert plan.units[0].argv[0] == "/usr/bin/env"
    list(engine.check_engine(subject_of(plan, TOPOLOGY, None)))
    assert asked == [("/usr/bin/python3", "sglang"), ("/opt/router", "sglang_router")]


def drop_in(root: Path, monkeypatch: pytest.MonkeyPatch, folder: str, data: bytes) -> Path:
    monkeypatch.setattr(drop_ins, "_PLACES", (str(root),))
    path = root / "systemd/system" / folder / "x.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hf_abcdefghijklmnopqrstuvwxyz", "is ignored by systemd: there is no = in it"),
        (b"Nice=caf\xe9", "is ignored by systemd and the rest of the file: it is not UTF-8 text"),
        (b"LimitNOFILE=" + b"9" * 5000, ""),
    ],
)
def test_a_line_that_systemd_ignores_is_a_warning_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, why: str
) -> None:
    path = drop_in(tmp_path, monkeypatch, "service.d", b"[Service]\nKillMode=process\n" + line + b"\n")
    subject = subject_of(plan_of(), TOPOLOGY, None, root=tmp_path)
    assert [each.entry.key for each in overrides_of(subject)] == ["KillMode"] * 4
    found = [(str(check.severity), check.evidence) for check in check_lines(subject)]
    assert found == ([("warning", f"{path}:3 {why}")] if why else [])


def test_a_drop_in_for_the_loader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = drop_in(tmp_path, monkeypatch, "a-decode.service.d", b"[Service]\nEnvironment=LD_PRELOAD=/x.so\n")
    (found,) = overrides_of(subject_of(plan_of(), TOPOLOGY, None, root=tmp_path))
    assert found.evidence == f"{path}:2 sets Environment=LD_PRELOAD for a-decode.service"


def test_of_variables_only_the_pins_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        b'[Service]\nEnvironment="A=secret CUDA_VISIBLE_DEVICES=9" CUDA_VISIBLE_DEVICES=7 HF_TOKEN=secret\n'
    )
    path = drop_in(tmp_path, monkeypatch, "a-decode.service.d", text)
    (found,) = overrides_of(subject_of(plan_of(), TOPOLOGY, None, root=tmp_path))
    assert found.evidence == f"{path}:2 sets Environment=CUDA_VISIBLE_DEVICES=7 for a-decode.service"
