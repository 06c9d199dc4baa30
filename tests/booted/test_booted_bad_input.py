"""What is wrong is said, each in its own words and with its own exit code, and the host is left as it was."""

from __future__ import annotations

import json

import pytest
from serving import (
    DECODE,
    DEPLOYMENT,
    FILE,
    complete,
    deployment,
    install,
    installed,
    invocations,
    pd_units,
    unit_of,
    write_deployment,
)

from rig.box import Box, Result, until


def snapshot(box: Box) -> str:
    """Every file that an install could touch, and every unit's state."""
    places = "/etc /usr/local /var/lib /opt/pd-units"
    left_out = "-not -type d -not -path '*/__pycache__/*' -not -path '/var/lib/s*'"  # stub-engine, systemd
    files = box.sh(f"find {places} {left_out} -printf '%p %s %i %l %T@\\n' | sort")
    return files + box.sh("systemctl list-unit-files --no-legend --plain 'dsv4*' 'pd-*' || true")


def refused(
    box: Box, code: int, *words: str, command: tuple[str, ...] = ("install", "--skip", "gpu")
) -> Result:
    """Runs it as a person and with --json: same code, every word in the message, nothing changed."""
    before = snapshot(box)
    said = pd_units(box, *command)
    assert said.rc == code, (said.rc, said.out, said.err)
    for word in words:
        assert word in said.out + said.err, f"{word!r} is not in:\n{said.out}{said.err}"
    assert "Traceback" not in said.err
    answer = pd_units(box, *command, "--json")
    assert answer.rc == code
    told = json.loads(answer.out)
    assert (told["schema"], told["exit_code"]) == (1, code)
    assert told["message"]
    assert snapshot(box) == before
    return said


def test_no_file(box: Box) -> None:
    refused(box, 10, "/etc/pd-units")
    refused(box, 10, "/nowhere.toml", command=("install", "/nowhere.toml"))


def test_not_toml(box: Box) -> None:
    box.write(FILE, "[deployment\nname = 3")
    refused(box, 10, FILE, "line 1")


def test_all_faults_at_once(box: Box) -> None:
    text = deployment(**{"gpus = [2, 3]": "gpus = [0, 3]\ngpuz = 1", "port = 30002": "port = 30001"})
    write_deployment(box, text)
    refused(box, 11, "decode[0].gpus", "decode[0].gpuz", "decode[0].port")


def test_an_option_that_the_engine_does_not_have(box: Box) -> None:
    write_deployment(box, deployment(**{"trust-remote-code": "gpu-memory-utilization"}))
    # A fork may have options that no table knows, so the engine itself is asked; it refuses at once.
    said = install(box)
    assert said.rc == 40
    assert said.wall_s < 20
    failed = unit_of(said.json(), DECODE)
    assert failed["cause"] == "bad-argument"
    assert any("--gpu-memory-utilization" in row["text"] for row in failed["evidence"])


def test_an_option_that_this_engine_version_no_longer_has(box: Box) -> None:
    write_deployment(box, deployment(**{"trust-remote-code = true": "pdlb-url = 'x'"}))
    refused(box, 11, "pdlb-url")


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        ({"/models/tiny": "/models/nothing-here"}, ("model", "/models/nothing-here")),
        ({"/opt/sglang/bin/python": "/usr/bin/python3"}, ("engine", "/usr/bin/python3", "sglang")),
        ({"/opt/sglang/bin/python": "/opt/nothing/python"}, ("engine", "/opt/nothing/python")),
        ({"/opt/router/bin/python": "/opt/sglang/bin/python"}, ("engine", "sglang_router")),
        ({'user = "sglang"': 'user = "nobody-here"'}, ("engine", "nobody-here")),
        ({'user = "sglang"': 'user = "sglang"\nenvironment_files = ["/etc/none.env"]'}, ("/etc/none.env",)),
    ],
    ids=["model", "no-sglang", "no-python", "no-router", "user", "environment-file"],
)
def test_preflight_refuses(box: Box, replaced: dict[str, str], words: tuple[str, ...]) -> None:
    write_deployment(box, deployment(**replaced))
    refused(box, 13, *words)


def test_a_port_in_use_names_its_holder(box: Box) -> None:
    write_deployment(box)
    squat = "[Service]\nExecStart=/usr/bin/python3 -m http.server 30002\n"
    box.write("/etc/systemd/system/squatter.service", squat)
    box.run(["systemctl", "start", "squatter.service"]).check()
    until("the squatter", lambda: box.http("http://127.0.0.1:30002/")[0] == 200)
    refused(box, 13, "30002", "squatter.service")


def test_no_gpu_driver(box: Box) -> None:
    write_deployment(box)
    refused(box, 13, "gpu", command=("install",))


def test_a_gpu_that_this_host_does_not_have(box: Box) -> None:
    write_deployment(box)
    gpus = [{"index": index, "numa": 0, "compute_capability": "12.0"} for index in range(2)]
    nodes = [{"id": 0, "cpus": "0-1", "memory_bytes": 1 << 30, "distances": [10]}]
    box.write("/root/topology.json", json.dumps({"numa_nodes": nodes, "gpus": gpus, "nics": []}))
    command = ("install", "--topology", "/root/topology.json", "--skip", "gpu-memory")
    refused(box, 12, "decode[0].gpus", command=command)


def test_no_root(box: Box) -> None:
    write_deployment(box)
    before = snapshot(box)
    said = pd_units(box, "install", "--skip", "gpu", user="operator")
    assert said.rc == 31
    assert "root" in said.err
    assert snapshot(box) == before


def test_no_bus(box: Box) -> None:
    write_deployment(box)
    # Masked, so that nothing brings it back: a socket unit starts its service again at the next message.
    box.run(["systemctl", "mask", "--runtime", "--now", "dbus.socket", "dbus.service"]).check()
    until("the bus is gone", lambda: box.run(["busctl", "list"]).rc != 0)
    refused(box, 30)
    assert pd_units(box, "wait-ready", user="operator").rc in (10, 30)
    pd_units(box, "render", FILE).check()  # needs no systemd at all


def test_no_systemd(box: Box) -> None:
    write_deployment(box)
    hide = "mount -t tmpfs tmpfs /run && exec pd-units install --skip gpu"
    said = box.run(["unshare", "--mount", "sh", "-c", hide])
    assert said.rc == 30
    assert "systemd" in said.err


def test_a_foreign_unit_of_the_same_name(box: Box) -> None:
    write_deployment(box)
    foreign = "[Service]\nExecStart=/bin/true\n"
    path = f"/etc/systemd/system/{DECODE}"
    box.write(path, foreign)
    refused(box, 32, path, "--adopt")
    assert box.read(path) == foreign
    install(box, "--adopt").check()
    complete(box)


@pytest.mark.parametrize("where", ["/etc/systemd/system", "/run/systemd/system"])
def test_a_masked_unit(box: Box, where: str) -> None:
    write_deployment(box)
    box.run(["systemctl", "mask", *(["--runtime"] if where.startswith("/run") else []), DECODE]).check()
    refused(box, 32, DECODE, "mask")
    assert box.sh(f"readlink {where}/{DECODE}").strip() == "/dev/null"


def test_a_unit_that_somebody_edited(box: Box) -> None:
    installed(box)
    path = f"/etc/systemd/system/{DECODE}"
    before = invocations(box)
    edited = box.read(path) + "# by hand\n"
    box.write(path, edited)
    write_deployment(box, deployment(**{"mem-fraction-static = 0.60": "mem-fraction-static = 0.50"}))
    refused(box, 32, path)
    assert box.read(path) == edited
    assert invocations(box) == before
    removed = pd_units(box, "uninstall", "dsv4")
    assert removed.rc == 32
    assert box.read(path) == edited


def test_an_interpreter_that_others_can_write(box: Box) -> None:
    write_deployment(box)
    package = box.sh("/opt/pd-units/bin/python -c 'import pd_units; print(pd_units.__path__[0])'").strip()
    box.run(["chmod", "o+w", package]).check()
    refused(box, 13, package)


def test_a_wrong_command_line(box: Box) -> None:
    said = pd_units(box, "install", "--no-such-option")
    assert said.rc == 2
    assert "--no-such-option" in said.err
    assert pd_units(box, "wait-ready", "nothing", user="operator").rc == 10
    assert pd_units(box, "status", "nothing", user="operator").rc == 10


def test_a_secret_is_warned_about_and_not_shown(box: Box) -> None:
    text = DEPLOYMENT.replace('NCCL_P2P_LEVEL = "PHB"', 'HF_TOKEN = "hf_abcdefghijklmnop"')
    write_deployment(box, text)
    said = pd_units(box, "validate", FILE).check()
    assert "HF_TOKEN" in said.out + said.err
    assert "environment_files" in said.out + said.err
    assert "hf_abcdefghijklmnop" not in said.out + said.err


def test_ctrl_c_says_what_goes_on(box: Box) -> None:
    write_deployment(box)
    box.write("/etc/stub-engine/30002.toml", 'hang = "weights"')
    process = box.popen(["pd-units", "install", "--skip", "gpu"])
    try:
        box.wait_state(DECODE, "activating")
        until("the wait", lambda: box.run(["pkill", "-INT", "-f", "bin/pd-units install"]).rc == 0)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
