"""The playbook of docs/examples/ansible, run by the real ansible-core inside a box."""

from __future__ import annotations

import re
from pathlib import Path

from serving import DEPLOYMENT, complete, deployment, invocations, order, traces

from rig.box import Box, Result

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "ansible"
PLACE = "/root/ansible"


def prepare(box: Box, text: str = DEPLOYMENT) -> None:
    box.write(f"{PLACE}/serve.yml", (EXAMPLE / "serve.yml").read_text())
    box.write(f"{PLACE}/files/dsv4.toml", text)
    box.write(f"{PLACE}/inventory.ini", "[gpu_servers]\nbox ansible_connection=local ansible_become=false\n")


def play(box: Box, *words: str) -> Result:
    extra = '{"pd_units_deployment": "dsv4", "pd_units_options": ["--skip", "gpu"]}'
    argv = ["/opt/ansible/bin/ansible-playbook", "-i", f"{PLACE}/inventory.ini", "-e", extra, *words]
    return box.run([*argv, f"{PLACE}/serve.yml"], env={"ANSIBLE_LOCALHOST_WARNING": "false"}, timeout_s=300)


def recap(result: Result) -> dict[str, int]:
    """The counts of the play's last line."""
    line = next(line for line in result.out.splitlines() if line.startswith("box ") and "ok=" in line)
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}


def test_check_first_then_changed_then_unchanged(box: Box) -> None:
    prepare(box)
    checked = play(box, "--check", "--diff").check()
    assert recap(checked)["changed"] > 0
    assert "write dsv4-decode.service" in checked.out
    assert traces(box) == []
    assert not box.exists("/etc/pd-units/dsv4.toml")

    first = play(box).check()
    assert recap(first)["changed"] > 0
    assert "dsv4-router.service: ready" in first.out
    complete(box)

    before = invocations(box)
    second = play(box).check()
    assert recap(second)["changed"] == 0
    assert recap(play(box, "--check").check())["changed"] == 0
    assert invocations(box) == before


def test_a_failed_start_fails_the_play_with_its_cause(box: Box) -> None:
    prepare(box)
    order(box, "dsv4-decode.service", 'fail = { phase = "kv", text = "RuntimeError: Not enough memory." }')
    failed = play(box)
    assert failed.rc != 0
    assert recap(failed)["failed"] == 1
    assert "Not enough memory" in failed.out


def test_a_broken_file_does_not_replace_the_good_one(box: Box) -> None:
    prepare(box)
    play(box).check()
    prepare(box, deployment(**{"gpus = [2, 3]": "gpus = [0, 3]"}))
    failed = play(box)
    assert failed.rc != 0
    assert box.read("/etc/pd-units/dsv4.toml") == DEPLOYMENT
    complete(box)


def test_the_examples_own_deployment_file_is_valid(box: Box) -> None:
    box.write("/root/example.toml", (EXAMPLE / "files" / "sglang-dsv4.toml").read_text())
    box.run(["pd-units", "validate", "/root/example.toml"]).check()
