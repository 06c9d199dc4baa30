"""Every shipped preset, as `init` proposes it, installed to readiness on one box with the stub engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rig.box import Box

#: One version: what differs between them is tested elsewhere.
SYSTEMD = 257
TOPOLOGY = Path(__file__).resolve().parents[1] / "golden" / "topologies" / "one-node-8-gpus.json"
FILE, TOPOLOGY_FILE = "/etc/pd-units/preset.toml", "/root/topology.json"
INSTALL = ["pd-units", "install", FILE, "--skip", "gpu", "--topology", TOPOLOGY_FILE, "--json"]
#: Units that each preset makes of 8 GPUs on a host of one NUMA node, and the GPUs of each.
PRESETS = {
    "dsv4-pd": {
        "sglang-dsv4-prefill.service": [0, 1, 2, 3],
        "sglang-dsv4-decode.service": [4, 5, 6, 7],
        "sglang-dsv4-router.service": [],
    },
    "dsv4-single": {"dsv4-single-standalone.service": [0, 1, 2, 3]},
    "qwen3.6-27b": {f"qwen3.6-27b-standalone-{gpu}.service": [gpu] for gpu in range(8)},
    "qwen3.6-27b-mtp": {f"qwen3.6-27b-mtp-standalone-{gpu}.service": [gpu] for gpu in range(8)},
}


def proposed(box: Box, preset: str) -> str:
    """The preset's file, fitted to the host; its model directory is made where the file says."""
    box.write(TOPOLOGY_FILE, TOPOLOGY.read_text(encoding="utf-8"))
    box.run(["pd-units", "init", "--preset", preset, "--topology", TOPOLOGY_FILE, "-o", FILE]).check()
    text = box.read(FILE)
    (model,) = re.findall(r'(?m)^model = "(.*)"$', text)
    box.run(["cp", "-r", "/models/tiny", model]).check()
    return text


def units_of(answer: Any) -> dict[str, Any]:
    return {unit["unit"]: unit for each in answer["deployments"] for unit in each["units"]}


@pytest.mark.parametrize("image", [SYSTEMD], indirect=True, ids=[f"systemd-{SYSTEMD}"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_becomes_ready(box: Box, preset: str) -> None:
    proposed(box, preset)
    answer = box.run(INSTALL, timeout_s=120).check().json()
    units = units_of(answer)
    assert {name: unit["placement"]["gpus"] for name, unit in units.items()} == PRESETS[preset]
    assert {unit["state"] for unit in units.values()} == {"ready"}
    for name, unit in units.items():
        environment = box.read(f"/proc/{unit['main_pid']}/environ").split("\0")
        gpus = ",".join(map(str, PRESETS[preset][name]))
        assert f"CUDA_VISIBLE_DEVICES={gpus}" in environment or not gpus
        flagged = "SGLANG_SM120_MMA_FLASHMLA=1" in environment
        assert flagged is (preset == "dsv4-pd" and bool(gpus))
    again = box.run(INSTALL, timeout_s=60).check().json()
    assert again["changed"] is False
