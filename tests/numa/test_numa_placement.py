"""On a machine with two NUMA nodes: the whole install, and where its processes really are.

The guest measures with its own eyes (guest.py); what pd-units says is held against that.
"""

from __future__ import annotations

from typing import Any

import pytest

Steps = list[dict[str, Any]]
PREFILL, DECODE, ROUTER = (f"dsv4-{role}.service" for role in ("prefill", "decode", "router"))
NODES = {PREFILL: 0, DECODE: 1}
CPUS = {0: "0-1", 1: "2-3"}
RANKS = 4
LEAST_PAGES = 12_000  # of the 12,800 that every process fills
UUIDS = [f"GPU-{number:08x}-0000-4000-8000-000000000000" for number in range(8)]


def one(steps: Steps, name: str, **which: Any) -> dict[str, Any]:
    """The only step of that name. Raises: AssertionError."""
    found = [s for s in steps if s["step"] == name and all(s.get(k) == v for k, v in which.items())]
    assert len(found) == 1, f"{len(found)} steps {name} {which}; there are {[s['step'] for s in steps]}"
    return found[0]


def said(steps: Steps, name: str, rc: int = 0) -> dict[str, Any]:
    """The JSON that pd-units answered in a step."""
    step = one(steps, name)
    assert step["rc"] == rc, step
    return dict(step["json"])


def placement(answer: dict[str, Any], unit: str) -> dict[str, Any]:
    units = [each for deployment in answer["deployments"] for each in deployment["units"]]
    return dict(next(each for each in units if each["unit"] == unit)["placement"])


def share_on(process: dict[str, Any], node: int) -> float:
    """The share of its anonymous pages on a NUMA node."""
    return float(process["pages"].get(str(node), 0) / sum(process["pages"].values()))


def test_the_host_is_seen_as_it_is(steps: Steps) -> None:
    addresses = one(steps, "dressed")["addresses"]
    found = said(steps, "topology")
    assert [(node["id"], node["cpus"]) for node in found["numa_nodes"]] == [(0, "0-1"), (1, "2-3")]
    assert [node["distances"] for node in found["numa_nodes"]] == [[10, 21], [21, 10]]
    assert [gpu["pci_address"] for gpu in found["gpus"]] == addresses
    assert [gpu["numa"] for gpu in found["gpus"]] == [0] * 4 + [1] * 4
    assert [gpu["uuid"] for gpu in found["gpus"]] == UUIDS
    assert {gpu["compute_capability"] for gpu in found["gpus"]} == {"12.0"}


def test_preflight_passes_with_the_whole_of_its_checks(steps: Steps) -> None:
    checks = said(steps, "preflight")["checks"]
    evidence = {check["name"]: check["evidence"] for check in checks if check["ok"]}
    assert "dsv4-decode.service to node 1 (CPUs 2-3)" in evidence["numa"]
    assert "driver 580.95.05" in evidence["gpu"]
    assert "GPU 0-7 is 12.x" in evidence["kernel-flags"]
    failed = {check["name"] for check in checks if not check["ok"]}
    assert failed <= {"systemd", "numa", "disk", "limits"}, checks  # a small machine without a network
    assert any("clock is not synchronised" in check["evidence"] for check in checks)


def test_the_whole_install_becomes_ready(steps: Steps) -> None:
    answer = said(steps, "install")
    assert answer["changed"] is True
    units = answer["deployments"][0]["units"]
    assert {unit["unit"]: unit["state"] for unit in units} == dict.fromkeys(
        (PREFILL, DECODE, ROUTER), "ready"
    )
    assert placement(answer, PREFILL)["numa"] == [0]
    assert placement(answer, DECODE)["numa"] == [1]


@pytest.mark.parametrize("unit", [PREFILL, DECODE])
def test_pages_policy_and_cpus_are_on_the_gpus_node(steps: Steps, unit: str) -> None:
    node = NODES[unit]
    processes = one(steps, "measured", unit=unit)["processes"]
    assert len(processes) == RANKS + 2, processes
    for process in processes:
        assert sum(process["pages"].values()) >= LEAST_PAGES, process
        assert share_on(process, node) >= 0.95, process
        assert process["cpus"] == CPUS[node], process
        assert process["policies"] == [f"bind:{node}"], process
        gpus = ",".join(str(index) for index in range(4 * node, 4 * node + 4))
        assert process["environment"]["CUDA_VISIBLE_DEVICES"] == gpus
        assert process["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert process["environment"]["SGLANG_SM120_MMA_FLASHMLA"] == "1"
    pages = [sum(process["pages"].values()) for process in processes]
    local = sum(process["pages"].get(str(node), 0) for process in processes) / sum(pages)
    print(f"{unit}: {100 * local:.2f} % of {sum(pages):,} anonymous pages on NUMA node {node}")


@pytest.mark.parametrize("step", ["install", "status", "status-of-operator"])
def test_pd_units_verifies_it_and_tells_everybody(steps: Steps, step: str) -> None:
    answer = said(steps, step)
    for unit, node in NODES.items():
        found = placement(answer, unit)
        assert found["verified"] is True, found
        assert found["deviations"] == []
        assert found["processes"] == RANKS + 2
        total = sum(found["anonymous_pages"].values())
        assert total >= LEAST_PAGES * (RANKS + 2)
        assert found["anonymous_pages"][str(node)] >= 0.95 * total
        assert found["sm120"] == {"SGLANG_SM120_MMA_FLASHMLA": "1", "SGLANG_SM120_TRITON_INDEXER": "1"}


def test_what_pd_units_counts_is_what_there_is(steps: Steps) -> None:
    for unit in NODES:
        truth = sum(sum(p["pages"].values()) for p in one(steps, "measured", unit=unit)["processes"])
        counted = sum(placement(said(steps, "status"), unit)["anonymous_pages"].values())
        assert counted == pytest.approx(truth, rel=0.05)


def test_a_unit_bound_to_the_wrong_node_is_reported_as_wrong(steps: Steps) -> None:
    for process in one(steps, "measured-wrong", unit=DECODE)["processes"]:
        assert share_on(process, 0) >= 0.95  # so it really is wrong
    found = placement(said(steps, "status-wrong"), DECODE)
    assert found["verified"] is False
    text = "\n".join(found["deviations"])
    assert "may run on CPUs 0-1, wants 2-3" in text
    assert "have the memory policy bind:0, wants bind:1" in text
    pages = [each for each in found["deviations"] if "anonymous pages" in each]
    assert len(pages) == RANKS + 2
    assert all(each.startswith("dsv4-decode: process ") for each in pages)
    assert all(each.endswith("anonymous pages on NUMA node 0, wants node 1") for each in pages)
    assert "99 %" in text or "100 %" in text


def test_wrong_gpus_and_one_process_astray_are_reported_as_wrong(steps: Steps) -> None:
    processes = one(steps, "measured-wrong", unit=PREFILL)["processes"]
    astray = [process for process in processes if share_on(process, 0) < 0.95]
    assert len(astray) == 1
    found = placement(said(steps, "status-wrong"), PREFILL)
    assert found["verified"] is False
    text = "\n".join(found["deviations"])
    assert "have CUDA_VISIBLE_DEVICES=4,5,6,7, wants 0,1,2,3" in text
    pages = [each for each in found["deviations"] if "anonymous pages" in each]
    assert len(pages) == 1
    assert f"process {astray[0]['pid']} (" in pages[0]
    assert pages[0].endswith("anonymous pages on NUMA node 1, wants node 0")
    assert "may run on CPUs" not in text


def test_device_rules_are_effective(steps: Steps) -> None:
    found = one(steps, "devices")
    denied = {f"/dev/nvidia{number}": "EPERM" for number in range(4)}
    allowed = {f"/dev/nvidia{number}": "ENXIO" for number in range(4, 8)}
    assert found["closed"] == denied | allowed
    assert found["open"] == {f"/dev/nvidia{number}": "ENXIO" for number in range(8)}


def test_a_lost_gpu_moves_the_indexes_and_is_said(steps: Steps) -> None:
    lost = one(steps, "dressed")["addresses"][2]
    answer = said(steps, "status-lost-gpu")
    prefill = "\n".join(placement(answer, PREFILL)["deviations"])
    assert f"GPU 2 ({lost}) was there at install and is not there now" in prefill
    decode = "\n".join(placement(answer, DECODE)["deviations"])
    assert "dsv4-decode: GPU 4 was 0000:81:00.0 at install and is 0000:82:00.0 now" in decode


def test_a_clock_of_another_century_stops_an_install(steps: Steps) -> None:
    checks = said(steps, "preflight-1999", rc=13)["checks"]
    (found,) = [check for check in checks if "clock" in check["evidence"]]
    assert (found["name"], found["severity"]) == ("systemd", "error")
    assert "the clock says the year 1999" in found["evidence"]
    assert "timedatectl" in found["advice"]
