"""Every shipped preset, from `init` to units that systemd accepts without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from rig.box import Box

TOPOLOGY = Path(__file__).resolve().parents[1] / "golden" / "topologies" / "two-nodes.json"


def presets(box: Box) -> list[str]:
    listed = box.run(["pd-units", "init", "--list", "--json"]).check().json()
    return [preset["name"] for preset in listed["presets"]]


def test_there_is_a_preset_for_every_reference_system(box: Box) -> None:
    assert {"dsv4-pd", "dsv4-single", "qwen3.6-27b", "qwen3.6-27b-mtp"} <= set(presets(box))


@pytest.mark.parametrize("preset", ["dsv4-pd", "dsv4-single", "qwen3.6-27b", "qwen3.6-27b-mtp"])
def test_a_preset_renders_to_units_that_are_accepted(box: Box, preset: str) -> None:
    box.write("/root/topology.json", TOPOLOGY.read_text())
    file, topology = "/root/preset.toml", ["--topology", "/root/topology.json"]
    box.run(["pd-units", "init", "--preset", preset, "-o", file]).check()
    box.run(["pd-units", "validate", file]).check()
    box.run(["pd-units", "render", file, *topology, "-o", "/root/out"]).check()
    again = box.run(["pd-units", "render", file, *topology]).check().out
    assert again == box.run(["pd-units", "render", file, *topology]).check().out
    done = box.run(["sh", "-c", "systemd-analyze verify --recursive-errors=no --man=no /root/out/*"])
    assert (done.rc, done.err) == (0, "")
