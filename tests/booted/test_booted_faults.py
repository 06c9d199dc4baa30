"""The real thing broken under it: a killed install, a full disk, journald, systemd and the bus restarted."""

from __future__ import annotations

import json

import pytest
from serving import (
    DECODE,
    FILE,
    PREFILL,
    READY_LINE,
    complete,
    deployment,
    install,
    installed,
    invocations,
    order,
    pd_units,
    unit_of,
    watched,
    write_deployment,
)

from rig.box import Box, until

SLOW = "delay = { weights = 4 }"


def load_slowly(box: Box) -> None:
    """Starts the deployment; decode loads for some seconds and its watcher is at work."""
    write_deployment(box)
    order(box, DECODE, SLOW)
    install(box, "--no-wait").check()
    watched(box, DECODE)


@pytest.mark.parametrize("moment", ["writing", "starting", "waiting"])
def test_a_killed_install_is_finished_by_the_next_one(box: Box, moment: str) -> None:
    write_deployment(box)
    order(box, DECODE, SLOW)
    sign = {
        "writing": lambda: box.exists(f"/etc/systemd/system/{PREFILL}"),
        "starting": lambda: box.show(PREFILL, "ActiveState")["ActiveState"] == "activating",
        "waiting": lambda: box.show(PREFILL, "ActiveState")["ActiveState"] == "active",
    }[moment]
    process = box.popen(["pd-units", "install", "--skip", "gpu"])
    until(moment, sign, every_s=0.001)
    box.run(["pkill", "-KILL", "-f", "bin/pd-units install"])
    process.communicate(timeout=30)
    order(box, DECODE, "")
    install(box).check()
    complete(box)
    assert install(box).check().json()["changed"] is False


def test_a_full_disk_leaves_the_host_as_it_was(box: Box) -> None:
    installed(box)
    before = invocations(box)
    units = box.sh("cat /etc/systemd/system/dsv4-*.service")
    write_deployment(box, deployment(**{"mem-fraction-static = 0.60": "mem-fraction-static = 0.50"}))
    box.run(["sh", "-c", "cat /dev/zero >/var/lib/filler 2>/dev/null"])
    refused = pd_units(box, "install", "--skip", "gpu")
    assert refused.rc == 13, (refused.rc, refused.out, refused.err)
    assert "disk: /var/lib/pd-units has 0 MiB free" in refused.err
    refused = pd_units(box, "install", "--skip", "gpu", "--skip", "disk")
    assert refused.rc == 32, (refused.rc, refused.out, refused.err)
    assert "space" in refused.err
    assert "Traceback" not in refused.err
    box.run(["rm", "/var/lib/filler"]).check()
    assert box.sh("cat /etc/systemd/system/dsv4-*.service") == units
    assert invocations(box) == before
    install(box).check()
    complete(box)


def test_journald_restarted_during_a_load_hides_nothing(box: Box) -> None:
    load_slowly(box)
    box.run(["systemctl", "restart", "systemd-journald.service"]).check()
    waited = pd_units(box, "wait-ready", "--json").check().json()
    assert unit_of(waited, DECODE)["state"] == "ready"
    assert READY_LINE in box.journal(DECODE)
    complete(box)


@pytest.mark.parametrize("what", ["daemon-reload", "daemon-reexec"])
def test_systemd_reloaded_during_a_load(box: Box, what: str) -> None:
    load_slowly(box)
    before = invocations(box)[DECODE]
    box.run(["systemctl", what]).check()
    waited = pd_units(box, "wait-ready", "--json", user="operator").check().json()
    assert unit_of(waited, DECODE)["invocation_id"] == before
    complete(box)


def test_the_bus_restarted_during_a_wait(box: Box) -> None:
    load_slowly(box)
    waiting = box.popen(["pd-units", "wait-ready", "--json"], user="operator")
    until("the wait", lambda: box.run(["pgrep", "-f", "bin/pd-units wait-ready"]).rc == 0)
    box.run(["systemctl", "restart", "dbus.service"]).check()
    out, err = waiting.communicate(timeout=60)
    # Either it found the bus again, or it says in so many words that the manager does not answer.
    assert waiting.returncode in (0, 30), (waiting.returncode, out, err)
    assert "Traceback" not in err
    pd_units(box, "wait-ready", user="operator").check()
    complete(box)


def test_two_installs_at_once_do_not_mix(box: Box) -> None:
    write_deployment(box)
    words = ["pd-units", "install", "--skip", "gpu", "--json", "--lock-timeout", "2min"]
    first, second = box.popen(words), box.popen(words)
    answers = [process.communicate(timeout=120) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], answers
    assert sorted(json.loads(out)["changed"] for out, _ in answers) == [False, True]
    complete(box)
    assert box.exists(FILE)


def test_an_operators_drop_in_survives(box: Box) -> None:
    installed(box)
    drop_in = f"/etc/systemd/system/{DECODE}.d/override.conf"
    box.write(drop_in, "[Service]\nNice=5\n")
    box.run(["systemctl", "daemon-reload"]).check()
    write_deployment(box, deployment(**{"mem-fraction-static = 0.60": "mem-fraction-static = 0.50"}))
    install(box).check()
    assert box.exists(drop_in)
    assert box.show(DECODE, "Nice")["Nice"] == "5"
    pd_units(box, "uninstall", "dsv4").check()
    assert box.exists(drop_in)
