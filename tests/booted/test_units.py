"""Rendered units before systemd itself: accepted without a word, and read back exactly as the file says."""

from __future__ import annotations

import json

import pytest
from golden_cases import HERE as GOLDEN
from golden_cases import quoting_deployment, quoting_values, quoting_variable, read_cases

from rig.box import Box, until

PYTHON = "/usr/local/bin/show-start"
# Stands in for the engine's interpreter: writes down what the process really received.
SHOW_START = r"""#!/usr/bin/python3
import json, os, sys, time
with open("/var/lib/stub-engine/started.json.new", "w") as file:
    json.dump({"argv": sys.argv[1:], "environment": dict(os.environ)}, file)
os.rename("/var/lib/stub-engine/started.json.new", "/var/lib/stub-engine/started.json")
time.sleep(3600)
"""
SERVICE = "org.freedesktop.systemd1.Service"


def verify(box: Box, folder: str) -> None:
    done = box.run(["sh", "-c", f"systemd-analyze verify --recursive-errors=no --man=no {folder}/*"])
    assert (done.rc, done.err) == (0, "")


def test_golden_units_are_accepted_without_a_word(box: Box) -> None:
    for case in [case for case in read_cases() if not case.exit_code]:
        folder = f"/root/golden/{case.name}"
        for name, text in case.expected().items():
            box.write(f"{folder}/{name}", text)
        verify(box, folder)


@pytest.mark.parametrize("preset", ["dsv4-pd", "dsv4-single", "qwen3.6-27b", "qwen3.6-27b-mtp"])
def test_presets_render_and_are_accepted(box: Box, preset: str) -> None:
    topology = (GOLDEN / "topologies" / "two-nodes.json").read_text()
    box.write("/root/topology.json", topology)
    box.run(["pd-units", "init", "--preset", preset, "-o", "/root/preset.toml"]).check()
    box.run(["pd-units", "validate", "/root/preset.toml"]).check()
    box.run(
        ["pd-units", "render", "/root/preset.toml", "--topology", "/root/topology.json", "-o", "/root/out"]
    ).check()
    verify(box, "/root/out")


def start_quoting(box: Box) -> str:
    """Starts the unit that carries every awkward value, without its watcher; the unit's name."""
    box.write(PYTHON, SHOW_START, mode=0o755)
    text = quoting_deployment(PYTHON).replace("[engine]", '[engine]\nuser = "sglang"')
    box.write("/root/quoting.toml", text)
    box.run(["pd-units", "render", "/root/quoting.toml", "-o", "/etc/systemd/system"]).check()
    unit = "quoting-standalone.service"
    box.write(
        f"/etc/systemd/system/{unit}.d/bare.conf", "[Service]\nExecStartPost=\nExecStopPost=\nRestart=no\n"
    )
    box.sh("systemctl daemon-reload; mkdir -p /models/quoting")
    box.run(["systemctl", "start", unit]).check()
    return unit


def read_back(box: Box, unit: str, name: str) -> object:
    path = "/org/freedesktop/systemd1/unit/" + "".join(
        each if each.isalnum() else f"_{ord(each):02x}" for each in unit
    )
    argv = ["busctl", "--json=short", "get-property", "org.freedesktop.systemd1", path, SERVICE, name]
    return box.run(argv).check().json()["data"]


def test_awkward_values_reach_systemd_and_the_process_unchanged(box: Box) -> None:
    unit = start_quoting(box)
    wanted = {quoting_variable(name): value for name, value in quoting_values().items()}

    environment = dict(each.split("=", 1) for each in read_back(box, unit, "Environment"))
    assert {key: environment.get(key) for key in wanted} == wanted

    ((_, argv, *_),) = read_back(box, unit, "ExecStart")
    plain = [word.replace("$$", "$") for word in argv]
    started = until("the process's own account", lambda: box.exists("/var/lib/stub-engine/started.json"))
    assert started
    process = json.loads(box.read("/var/lib/stub-engine/started.json"))
    assert [PYTHON, *process["argv"]] == plain
    assert {key: process["environment"].get(key) for key in wanted} == wanted
    for name, value in quoting_values().items():
        option = f"--q-{name}"
        given = process["argv"]
        assert f"{option}={value}" in given or given[given.index(option) + 1] == value, name
    assert box.journal(None, "--grep=Failed to parse|Ignoring|Unknown key|invalid") == ""
