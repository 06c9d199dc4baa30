"""The rig itself: a box boots in about a second, has all that the tests need, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from rig.box import Box, BoxError, host_cgroups, until
from rig.images import Image

BACKEND = """
[Service]
Type=exec
User=sglang
KillMode=mixed
ExecStart=/opt/sglang/bin/python -m sglang.launch_server --model-path /models/tiny --port {port} \
    --disaggregation-mode {mode} --disaggregation-transfer-backend nixl {more}
"""
ROUTER = """
[Service]
Type=exec
User=sglang
ExecStart=/opt/router/bin/python -m sglang_router.launch_router --host 127.0.0.1 --port 30001 \
    --pd-disaggregation --prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30002 \
    --worker-startup-check-interval 1
"""


def leftovers(name: str) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{name}*"))


def write_pair(box: Box) -> None:
    for mode, port, more in (
        ("prefill", 30000, "--disaggregation-bootstrap-port 8998"),
        ("decode", 30002, ""),
    ):
        box.write(f"/etc/systemd/system/{mode}.service", BACKEND.format(mode=mode, port=port, more=more))
    box.write("/etc/systemd/system/router.service", ROUTER)
    box.run(["systemctl", "daemon-reload"]).check()


def test_boots_in_about_a_second(image: Image) -> None:
    before = time.monotonic()
    with Box(image) as box:
        seconds = time.monotonic() - before
        assert box.sh("systemctl is-system-running --wait").strip() == "running"
        version = box.sh("systemctl --version").split()[1]
        assert int(version) == image.suite.systemd
    assert seconds < 5  # 0.5 s on an idle machine


def test_leaves_nothing_behind(image: Image) -> None:
    with Box(image) as box:
        leader, name = box.leader, box.name
        assert all(cgroup.exists() for cgroup in host_cgroups(name))
        box.write("/etc/systemd/system/busy.service", "[Service]\nExecStart=sleep infinity\n")
        box.run(["systemctl", "start", "busy.service"]).check()
    assert not Path(f"/proc/{leader}").exists()
    assert not any(cgroup.exists() for cgroup in host_cgroups(name))
    assert name not in Path("/proc/self/mountinfo").read_text()
    assert not leftovers(name)


def test_a_box_dies_with_the_process_that_asked_for_it(image: Image, tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(
        "import os, sys\n"
        f"sys.path[:0] = {[str(Path(__file__).parents[1])]!r}\n"
        "from pathlib import Path\n"
        "from rig.box import Box\n"
        "from rig.images import Image, SUITES\n"
        f"layers = tuple(map(Path, {[str(layer) for layer in image.layers]!r}))\n"
        f"image = Image(SUITES[{image.suite.systemd}], layers)\n"
        "box = Box(image).__enter__()\n"
        "print(box.leader, box.name, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(["python3", str(script)], capture_output=True, text=True, timeout=60)
    leader, name = done.stdout.split()
    until("the orphan's end", lambda: not Path(f"/proc/{leader}").exists())
    until("its cgroups' end", lambda: not any(cgroup.exists() for cgroup in host_cgroups(name)))
    until("its directory's end", lambda: not leftovers(name))


def test_reboot_and_power_loss_keep_the_disk(box: Box) -> None:
    box.write("/etc/kept", "once\n")
    box.reboot()
    assert box.read("/etc/kept") == "once\n"
    box.write("/etc/kept", "twice\n")
    box.power_loss()
    box.boot()
    assert box.read("/etc/kept") == "twice\n"
    assert box.sh("journalctl --list-boots --no-pager | grep -c ' [0-9a-f]\\{32\\} '").strip() == "3"


def test_users_and_their_rights(box: Box) -> None:
    box.sh("logger hello-from-the-rig; journalctl --sync")
    shown = {}
    for user in ("root", "reader", "operator"):
        shown[user] = box.run(
            ["journalctl", "--no-pager", "--output=cat", "--grep=hello-from-the-rig"], user=user
        ).out
    assert "hello" in shown["root"]
    assert "hello" in shown["reader"]
    assert "hello" not in shown["operator"]
    assert box.run(["systemctl", "is-active", "dbus.service"], user="operator").out.strip() == "active"
    assert box.run(["systemctl", "stop", "dbus.service"], user="operator").rc != 0


def test_a_timeout_shows_what_was_printed(box: Box) -> None:
    with pytest.raises(BoxError, match=r"(?s)still running after 0\.5 s.*so far"):
        box.run(["sh", "-c", "echo so far; exec sleep 600"], timeout_s=0.5)
    until("the end of the command in the box", lambda: box.run(["pgrep", "-x", "sleep"]).rc == 1)


def test_the_real_router_serves_through_a_hand_written_pair(box: Box) -> None:
    write_pair(box)
    box.run(["systemctl", "start", "prefill", "decode", "router"]).check()
    until("readiness", lambda: box.http("http://127.0.0.1:30001/readiness")[0] == 200)
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 32}}
    status, text = box.http("http://127.0.0.1:30001/generate", body)
    assert status == 200
    assert "Served by stub engine 30000 and 30002 for: hello" in text
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 32}
    status, text = box.http("http://127.0.0.1:30001/v1/chat/completions", chat)
    assert (status, "Served by stub engine 30000 and 30002" in text) == (200, True)
    status, text = box.http("http://127.0.0.1:30001/v1/chat/completions", {**chat, "stream": True})
    assert (status, "[DONE]" in text) == (200, True)


def test_the_real_router_does_not_serve_with_half_a_pair(box: Box) -> None:
    write_pair(box)
    box.run(["systemctl", "start", "decode", "router"]).check()
    until("the router's port", lambda: box.http("http://127.0.0.1:30001/health")[0] == 200)
    until("decode", lambda: box.http("http://127.0.0.1:30002/health")[0] == 200)
    assert box.http("http://127.0.0.1:30001/readiness")[0] == 503
    assert box.http("http://127.0.0.1:30001/generate", {"text": "hello"})[0] >= 500


def test_two_engine_versions_are_installed(box: Box) -> None:
    ask = "import importlib.metadata as m; print(m.version('sglang'))"
    for python, version in (("/opt/sglang", "0.5.13"), ("/opt/sglang-0.5.23", "0.5.23")):
        assert box.sh(f'{python}/bin/python -c "{ask}"').strip() == version
