"""Ctrl-C, SIGTERM and SIGHUP: exit 130, what goes on, how to finish it; recorded as interrupted."""

from __future__ import annotations

import json
import subprocess

import pytest
from faults import TWO, Host, two

from rig.box import Box, until

A, B = "0.75", "0.65"


def begin(host: Host, *words: str) -> subprocess.Popen[str]:
    """A verb at work in the box, whose own process gets the signals."""
    return host.box.popen(["pd-units", *words])


def signal(host: Host, name: str, verb: str) -> None:
    host.box.run(["pkill", f"-{name}", "-f", f"bin/pd-units {verb}"]).check()


def loading(host: Host) -> bool:
    """Whether the first server loads: it was restarted, and the second one not yet."""
    return host.box.state(TWO[0]).startswith("activating")


@pytest.fixture
def host(box: Box) -> Host:
    """Two servers at work, the next version of which loads slowly."""
    at_work = Host(box, "two", TWO)
    at_work.write(two(A))
    at_work.install().check()
    at_work.write(two(B))
    box.write("/etc/stub-engine/31000.toml", "delay = { weights = 4 }")
    return at_work


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_an_interrupted_install_says_what_goes_on(host: Host, name: str) -> None:
    at_work = begin(host, "install", "--skip", "gpu", "--json")
    until("its units are started", lambda: loading(host))
    told = host.status()
    assert told["operation"] == {"kind": "install", "generation": 2, "at_work": True}
    assert told["interrupted"] is None
    signal(host, name, "install")
    out, err = at_work.communicate(timeout=20)
    assert at_work.returncode == 130, (out, err)
    assert "Traceback" not in err
    answer = json.loads(out)
    assert answer["exit_code"] == 130
    assert f"interrupted by SIG{name}" in answer["message"]
    assert "go on by themselves" in answer["message"]
    assert "`pd-units install two` finishes it" in answer["message"]
    assert answer["deployments"][0]["result"] == "interrupted"
    assert f"interrupted by SIG{name}" in host.status()["interrupted"]
    history = host.pd("history", "two", "--json").check().json()["generations"]
    assert [row["result"] for row in history] == ["ready", "interrupted"]
    host.box.write("/etc/stub-engine/31000.toml", "")
    host.install("two").check()  # not refused as known to fail
    assert host.processes_have(f"mem-fraction-static {B}")
    assert host.status()["interrupted"] is None


def test_nohup_goes_on(host: Host) -> None:
    at_work = begin(host, "install", "--skip", "gpu")
    until("its units are started", lambda: loading(host))
    at_work.kill()
    at_work.communicate()
    host.box.sh("nohup pd-units install --skip gpu >/root/out 2>&1 & echo $! >/root/pid")
    until(
        "the second one is at work",
        lambda: (host.operation() or {}).get("doer", "").split()[1:2] == [host.box.read("/root/pid").strip()],
    )
    host.box.sh("kill -HUP $(cat /root/pid)")
    until("it has ended", lambda: host.operation() is None, timeout_s=60)
    assert host.processes_have(f"mem-fraction-static {B}")


@pytest.mark.parametrize("verb", ["install", "rollback", "reboot", "nothing"])
def test_what_was_interrupted_is_finished_or_undone(host: Host, verb: str) -> None:
    at_work = begin(host, "install", "--skip", "gpu")
    until("its units are started", lambda: loading(host))
    signal(host, "INT", "install")
    at_work.communicate(timeout=20)
    host.box.write("/etc/stub-engine/31000.toml", "")
    if verb == "reboot":
        host.box.reboot()
        host.ready()
    elif verb == "rollback":
        host.pd("rollback", "two").check()
        assert host.processes_have(f"mem-fraction-static {A}")
        assert host.index()["generation"] == 1
    elif verb == "nothing":
        # The first of two was restarted and loads by itself; nobody restarts the other one.
        until("the first is ready", lambda: host.box.state(TWO[0]) == "active/running")
        told = host.status()
        assert told["state"] == "starting"
        assert "earlier generation" in json.dumps(told["units"])
        assert host.pd("wait-ready", "two", "--timeout", "2s").rc == 41
        host.install("two").check()
    else:
        host.install("two").check()
    if verb != "rollback":
        assert host.processes_have(f"mem-fraction-static {B}")
    assert host.status()["state"] == "ready"
    assert host.status()["interrupted"] is None


def test_an_interrupted_rollback_restart_and_uninstall_are_named(host: Host) -> None:
    host.install().check()
    host.box.write("/etc/stub-engine/31000.toml", "delay = { weights = 4 }")
    for verb in ("rollback", "restart"):
        at_work = begin(host, verb, "two")
        until("its units are started", lambda: loading(host))
        signal(host, "INT", verb)
        _, err = at_work.communicate(timeout=20)
        assert at_work.returncode == 130, err
        assert f"{verb} of generation" in host.status()["interrupted"]
        host.box.write("/etc/stub-engine/31000.toml", "")
        host.pd(verb, "two").check()
        assert host.status()["interrupted"] is None
        host.box.write("/etc/stub-engine/31000.toml", "delay = { weights = 4 }")
    host.box.write("/etc/stub-engine/31000.toml", "drain_s = 5")
    host.box.run(["systemctl", "restart", TWO[0]]).check()
    at_work = begin(host, "uninstall", "two")
    until("it has begun", lambda: host.operation() is not None)
    signal(host, "INT", "uninstall")
    out, err = at_work.communicate(timeout=20)
    assert at_work.returncode == 130, (out, err)
    assert "uninstall of generation" in host.status()["interrupted"]
    host.pd("uninstall", "two", "--purge").check()
    assert host.box.sh("ls /etc/systemd/system | grep ^two || true") == ""
