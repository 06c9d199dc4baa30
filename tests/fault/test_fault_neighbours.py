"""Deployments side by side, and what a change takes from whom: GPUs, ports, retired units, shared files."""

from __future__ import annotations

from typing import Any

import pytest
from faults import STATE, Host

from rig.box import Box, until

ONE = """
[deployment]
name = "{name}"
retires = [{retires}]

[engine]
kind = "sglang"
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"

[readiness]
timeout = "1min"
"""
INSTANCE = """
[[standalone]]
gpus = [{gpu}]
numa = "none"
port = {port}
dist_init_port = {dist}
"""
INDEX_PLACED = "after rename to /var/lib/pd-units/{name}/operation.json"
OLD = "[Service]\nExecStart=/usr/bin/sleep infinity\n\n[Install]\nWantedBy=multi-user.target\n"


def file_of(name: str, *instances: tuple[int, int], retires: str = "") -> str:
    text = ONE.format(name=name, retires=f'"{retires}"' if retires else "")
    for gpu, port in instances:
        text += INSTANCE.format(gpu=gpu, port=port, dist=port + 400)
    return text


def deployed(box: Box, name: str, *instances: tuple[int, int], retires: str = "") -> Host:
    units = tuple(
        f"{name}-standalone{f'-{number}' if len(instances) > 1 else ''}.service"
        for number in range(len(instances))
    )
    host = Host(box, name, units)
    host.write(file_of(name, *instances, retires=retires))
    return host


def install(host: Host, *words: str) -> Any:
    return host.install(host.file, *words)


def old_service(box: Box) -> None:
    box.write("/etc/systemd/system/old.service", OLD)
    box.sh("systemctl daemon-reload; systemctl enable --now old.service")


def old_is(box: Box, active: str, enabled: str) -> bool:
    seen = [box.run(["systemctl", verb, "old.service"]).out.strip() for verb in ("is-active", "is-enabled")]
    return seen == [active, enabled]


def fails(box: Box, port: int) -> None:
    box.write(f"/etc/stub-engine/{port}.toml", 'fail = { phase = "weights", exit = 3 }\n')


# ------------------------------------------------------------------------------------- GPUs and ports
def test_what_an_interrupted_install_takes_is_taken(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    a.write(file_of("a", (5, 35000)))
    words = ("install", "--skip", "gpu", "--json", a.file)
    assert a.strike(INDEX_PLACED.format(name="a"), "kill", *words).rc in (137, -9)
    b = deployed(box, "b", (5, 36000))
    refused = install(b)
    assert (refused.rc, "GPU 5 belongs to a-standalone.service" in refused.out) == (12, True)
    b.write(file_of("b", (6, 35000)))
    refused = install(b)
    assert (refused.rc, "port 35000 belongs to" in refused.out) == (12, True)
    b.write(file_of("b", (0, 36000)))  # what the way back of `a` needs
    assert install(b).rc == 12
    box.reboot()
    a.ready()
    b.write(file_of("b", (0, 36000)))
    install(b).check()


def test_the_port_of_a_deployment_that_is_down_is_its_own(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    box.run(["systemctl", "stop", a.units[0]]).check()
    b = deployed(box, "b", (1, 31000))
    refused = install(b)
    assert (refused.rc, "port 31000 belongs to a" in refused.out) == (12, True)


def test_the_way_back_of_a_deployment_that_loads_stays_free(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    a.write(file_of("a", (1, 31000)))
    box.write("/etc/stub-engine/31000.toml", 'hang = "weights"\n')
    loading = box.popen(["pd-units", "install", "--skip", "gpu", "--json", a.file])
    until("it loads", lambda: (a.operation() or {}).get("phase") == "units")
    b = deployed(box, "b", (0, 31500))
    assert install(b).rc == 12
    box.write("/etc/stub-engine/31000.toml", "")
    box.run(["systemctl", "kill", "--kill-whom=main", "-s", "KILL", a.units[0]]).check()
    loading.communicate(timeout=90)
    assert loading.returncode == 43
    a.ready()


def test_what_one_of_a_call_went_back_to_is_not_given_to_the_next(box: Box) -> None:
    a, b = deployed(box, "a", (0, 31000)), deployed(box, "b", (1, 31500))
    a.install().check()
    a.write(file_of("a", (1, 31000)))
    b.write(file_of("b", (0, 31500)))
    fails(box, 31000)
    both = a.install("--timeout", "20s").json()
    results = {each["name"]: each for each in both["deployments"]}
    assert results["a"]["result"] == "rolled-back" or both["exit_code"] in (43, 44)
    assert "GPU 0 belongs to a-standalone.service" in str(both)
    box.write("/etc/stub-engine/31000.toml", "")
    b.ready()
    assert b.install(b.file).rc in (0, 12)


def test_two_first_installs_of_one_gpu_at_once(box: Box) -> None:
    hosts = [deployed(box, name, (0, port)) for name, port in (("a", 31000), ("b", 31500))]
    both = [box.popen(["pd-units", "install", "--skip", "gpu", "--json", host.file]) for host in hosts]
    for process in both:
        process.communicate(timeout=90)
    assert sorted(process.returncode for process in both) == [0, 12]


# ------------------------------------------------------------------------------- within a deployment
def test_instances_that_exchange_their_ports_stop_before_they_start(box: Box) -> None:
    host = deployed(box, "a", (0, 31000), (1, 31001))
    install(host).check()
    host.write(file_of("a", (0, 31001), (1, 31000)))
    done = install(host).check().json()
    assert done["changed"] is True
    host.ready()
    host.write(file_of("a", (2, 31001), (0, 31002)))  # and one that takes what another one leaves
    install(host).check()
    host.write(file_of("a", (0, 31001), (2, 31002)))
    install(host, "--no-start").check()  # the processes still are what they were
    install(host).check()
    host.ready()
    host.write(file_of("a", (3, 31005), (2, 31001), (0, 31000)))
    install(host).check()
    host.ready()


# ------------------------------------------------------------------------------------- retired units
def test_a_retirement_that_broke_off_is_finished_at_boot(box: Box) -> None:
    old_service(box)
    a = deployed(box, "a", (0, 31000), retires="old.service")
    words = ("install", "--skip", "gpu", "--json", a.file)
    assert a.strike(INDEX_PLACED.format(name="a"), "kill", *words).rc in (137, -9)
    box.reboot()
    a.ready()
    assert old_is(box, "inactive", "disabled")
    assert install(a).check().json()["changed"] is False
    a.pd("uninstall", "a", "--restore-retired").check()
    assert old_is(box, "active", "enabled")


def test_the_way_back_brings_back_what_was_retired(box: Box) -> None:
    old_service(box)
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    a.write(file_of("a", (0, 31007), retires="old.service"))
    fails(box, 31007)
    assert install(a).rc == 43
    assert old_is(box, "active", "enabled")


@pytest.mark.parametrize("how", ["undo", "kill"])
def test_an_uninstall_brings_back_what_served_before(box: Box, how: str) -> None:
    old_service(box)
    a = deployed(box, "a", (0, 31000), retires="old.service")
    if how == "undo":  # a first install that broke off, after it had retired
        words = ("install", "--skip", "gpu", "--json", a.file)
        assert a.strike("after DisableUnitFiles (['old.service'], False)", "kill", *words).rc in (137, -9)
        a.pd("uninstall", "a").check()
    else:  # an uninstall that broke off, finished at boot
        install(a).check()
        words = ("uninstall", "a", "--restore-retired")
        gone = f"after unlink /etc/systemd/system/{a.units[0]}"
        assert a.strike(gone, "kill", *words).rc in (137, -9)
        box.reboot()
        until("the boot has finished it", lambda: not box.exists(f"{STATE}/a/operation.json"))
    assert old_is(box, "active", "enabled")
    assert box.sh("find /etc/systemd/system -name 'a-*' -o -name '*pd-units*'") == ""


def test_a_retired_unit_that_was_masked_meanwhile_holds_up_no_uninstall(box: Box) -> None:
    box.sh("mkdir -p /opt/old")
    box.write("/opt/old/old.service", OLD)
    box.sh("systemctl enable --now /opt/old/old.service")  # a link: disabling it takes it away
    a = deployed(box, "a", (0, 31000), retires="old.service")
    install(a).check()
    a.pd("uninstall", "a", "--restore-retired").check()
    assert box.run(["systemctl", "is-active", "old.service"]).out.strip() == "active"
    install(a).check()
    box.sh("systemctl mask old.service")
    done = a.pd("uninstall", "a", "--restore-retired").check()
    assert "old.service is not restored" in done.err
    assert a.pd("status", "--json").rc == 10


# -------------------------------------------------------------------------------------- shared files
def test_the_last_two_uninstalls_at_once_leave_nothing(box: Box) -> None:
    hosts = [deployed(box, name, (gpu, port)) for name, gpu, port in (("a", 0, 31000), ("b", 1, 31500))]
    hosts[0].install().check()
    both = [box.popen(["pd-units", "uninstall", host.name, "--purge"]) for host in hosts]
    for process in both:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert box.sh("find /etc/systemd/system -name '?-standalone*' -o -name '*pd-units*'") == ""
    assert not box.exists(STATE)
    install(hosts[0]).check()
    hosts[0].ready()


def test_a_deployment_file_through_a_pipe(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    box.sh(f"cat {a.file} | pd-units install --skip gpu /dev/stdin")
    a.ready()


def test_the_last_uninstall_leaves_what_an_interrupted_install_needs(box: Box) -> None:
    a, b = deployed(box, "a", (0, 31000)), deployed(box, "b", (1, 31500))
    install(a).check()
    words = ("install", "--skip", "gpu", "--json", b.file)
    struck = b.strike(f"after rename to /etc/systemd/system/{b.units[0]}", "kill", *words)
    assert struck.rc in (137, -9)
    a.pd("uninstall", "a").check()
    box.reboot()
    b.ready()


def test_a_name_that_was_never_installed_takes_nothing_away(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    box.sh(f"mv {STATE} {STATE}.away")
    done = a.pd("uninstall", "zzz").check()
    assert "nothing to do" in done.out
    box.sh(f"mv {STATE}.away {STATE}")
    a.ready()
    assert install(a).check().json()["changed"] is False


# ----------------------------------------------------------------------------------- behind a lock
def test_who_waited_behind_an_uninstall_finds_nothing(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    a.write(file_of("a", (0, 31001)))
    install(a).check()
    for words in (("restart", "a"), ("rollback", "a", "--to", "1")):
        leaving = box.popen([
            "sh", "-c",
            f"exec 9>>/run/pd-units/a.lock; flock 9; touch /run/held; while [ ! -e /run/go ]; do :; done; "
            f"mv {STATE}/a {STATE}/.a; rm /run/pd-units/a.lock",
        ])  # fmt: skip
        until("the lock is held", lambda: box.exists("/run/held"))
        waiting = box.popen(["pd-units", *words, "--lock-timeout", "60s"])
        until("it waits", lambda: box.run(["pgrep", "-f", "lock-timeout 60s"]).rc == 0)
        box.sh("touch /run/go")
        leaving.communicate(timeout=30)
        assert waiting.communicate(timeout=30) and waiting.returncode == 10, words
        box.sh(f"rm -f /run/go /run/held; mv {STATE}/.a {STATE}/a")
    a.ready()
    assert a.operation() is None


def test_a_restart_does_not_run_what_is_half_there(box: Box) -> None:
    a = deployed(box, "a", (0, 31000), (1, 31001))
    install(a).check()
    a.write(file_of("a", (0, 31005), (1, 31006)))
    words = ("install", "--skip", "gpu", "--json", a.file)
    struck = a.strike(f"after rename to /etc/systemd/system/{a.units[0]}", "kill", *words)
    assert struck.rc in (137, -9)
    mains = a.mains()
    refused = a.pd("restart", "a")
    assert (refused.rc, "interrupted install" in refused.err) == (32, True)
    assert a.mains() == mains
    install(a).check()
    a.ready()


# -------------------------------------------------------------------------------------- odd callers
def test_a_masked_target_is_told_before_anything_moves(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    before = a.texts()
    box.sh("systemctl mask pd-units@a.target")
    a.write(file_of("a", (0, 31001)))
    refused = install(a)
    assert (refused.rc, "the target is masked" in refused.out) == (32, True)
    assert a.operation() is None
    assert a.texts() == before


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed_stop_nothing(box: Box, closed: str) -> None:
    a = deployed(box, "a", (0, 31000))
    for words in (f"install --skip gpu {a.file}", "wait-ready", "restart a", "status"):
        done = box.run(["sh", "-c", f"pd-units {words} {closed}"])
        assert done.rc == 0, (words, done)
    a.ready()


# -------------------------------------------------------------------------- what is shown is what is done
def test_a_check_tells_what_is_not_tried_again(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    a.write(file_of("a", (0, 31007)))
    fails(box, 31007)
    assert install(a).rc == 43
    shown = a.pd("install", "--skip", "gpu", "--check", "--exit-code", "--json", a.file)
    assert (shown.rc, shown.json()["changed"]) == (0, False)
    assert "not tried again" in shown.err
    tried = install(a)
    assert (tried.rc, tried.json()["changed"]) == (40, False)
    forced = a.pd("install", "--skip", "gpu", "--check", "--exit-code", "--force", "--json", a.file)
    assert (forced.rc, forced.json()["changed"]) == (50, True)


def test_a_rollback_is_verified_before_it_changes_anything(box: Box) -> None:
    a = deployed(box, "a", (0, 31000))
    install(a).check()
    a.write(file_of("a", (0, 31001)))
    install(a).check()
    before, mains = a.texts(), a.mains()
    box.write(f"/etc/systemd/system/{a.units[0]}.d/odd.conf", "[Service]\nExecStart=oak\n")
    refused = a.pd("rollback", "a")
    assert refused.rc == 21
    assert (a.texts(), a.mains(), a.operation()) == (before, mains, None)
