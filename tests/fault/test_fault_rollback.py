"""A generation that does not become ready: back to the last good one, both stories told, not tried again."""

from __future__ import annotations

from typing import Any

import pytest
from faults import STATE, TWO, Host, two

from rig.box import Box, until

A, B, C = "0.75", "0.65", "0.55"
NO_MEMORY = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."


@pytest.fixture
def host(box: Box) -> Host:
    at_work = Host(box, "two", TWO)
    at_work.write(two(A))
    at_work.install().check()
    return at_work


def order(host: Host, orders: str, port: int = 31000) -> None:
    host.box.write(f"/etc/stub-engine/{port}.toml", orders)


def no_such_option(fraction: str) -> str:
    return two(fraction).replace("trust-remote-code = true", "trust-remote-code = true\nno-such-option = 5")


def history(host: Host) -> list[Any]:
    rows: list[Any] = host.pd("history", "two", "--json").check().json()["generations"]
    return rows


def results(host: Host) -> list[tuple[str, bool, bool]]:
    return [(row["result"], row["good"], row["rolled_back"]) for row in history(host)]


def test_43_tells_both_stories_and_is_not_tried_again(host: Host) -> None:
    host.write(no_such_option(B))
    told = host.install()
    assert told.rc == 43, (told.out, told.err)
    answer = told.json()
    (only,) = answer["deployments"]
    assert (only["result"], only["generation"]) == ("rolled-back", 1)
    assert only["failed"]["generation"] == 2
    bad = {unit["unit"]: unit for unit in only["failed"]["units"]}
    assert bad[TWO[0]]["cause"] == "bad-argument"
    assert any("no-such-option" in row["text"] for row in bad[TWO[0]]["evidence"])
    assert {unit["state"] for unit in only["units"]} == {"ready"}
    assert {"write", "restart"} <= {change["kind"] for change in only["changes"]}
    assert "generation 2 failed" in answer["message"]
    assert "generation 1 is ready again" in answer["message"]
    assert host.processes_have(f"mem-fraction-static {A}")
    assert results(host) == [("ready", True, False), ("failed", False, True)]
    assert history(host)[1]["failed_units"][0]["evidence"]
    for_everybody = host.pd("history", "two", "--json", user="operator").check().json()["generations"]
    assert for_everybody == [{**row, "failed_units": []} for row in history(host)]
    before = host.mains()
    again = host.install()
    assert again.rc == 40
    assert "not tried again" in again.json()["message"]
    assert "--force" in again.json()["message"]
    assert again.json()["changed"] is False
    assert again.json()["deployments"][0]["failed"]["units"][0]["cause"] == "bad-argument"
    assert {unit["state"] for unit in again.json()["deployments"][0]["units"]} == {"ready"}
    assert host.mains() == before
    forced = host.pd("install", "--skip", "gpu", "--force")
    assert forced.rc == 43
    assert "bad-argument" in forced.err
    assert "generation 1 is ready again" in forced.err
    assert "no-such-option" in forced.err
    host.write(two(A))
    assert host.install().check().json()["changed"] is False


def test_44_tells_both_stories_too(host: Host) -> None:
    order(host, f'fail = {{ phase = "kv", text = "{NO_MEMORY}", exit = 1 }}')
    host.write(two(B))
    told = host.install()
    assert told.rc == 44, (told.out, told.err)
    answer = told.json()
    (only,) = answer["deployments"]
    assert only["result"] == "rollback-failed"
    assert only["failed"]["generation"] == 2
    assert {"oom-kv-cache"} <= {unit["cause"] for unit in only["failed"]["units"]}
    assert {"oom-kv-cache"} <= {unit["cause"] for unit in only["units"]}
    assert "did not become ready" in answer["message"]
    assert host.index()["generation"] == 1
    prose = host.pd("install", "--skip", "gpu", "--force")
    assert prose.rc == 44
    assert "Not enough memory" in prose.err  # the new one's story, told when it failed
    assert "Not enough memory" in prose.out  # and the old one's
    order(host, "")
    host.write(two(A))
    host.install().check()
    assert host.status()["state"] == "ready"


@pytest.mark.parametrize(
    ("orders", "timeout", "code"),
    [
        (f'fail = {{ phase = "kv", text = "{NO_MEMORY}", exit = 1 }}', "60s", 40),
        ('hang = "weights"', "4s", 41),
    ],
)
def test_a_first_install_that_fails_stays_as_evidence(box: Box, orders: str, timeout: str, code: int) -> None:
    host = Host(box, "two", TWO)
    order(host, orders)
    host.write(two(A))
    told = host.install("--timeout", timeout)
    assert told.rc == code, (told.out, told.err)
    assert "failed" not in told.json()["deployments"][0]
    assert set(host.texts()) == set(TWO)
    assert all(host.texts().values())
    told = host.status()
    assert told["state"] != "ready"
    assert told["interrupted"] is None
    assert [row["result"] for row in history(host)] == [{40: "failed", 41: "not-ready"}[code]]
    none = host.pd("rollback", "two")
    assert none.rc == 32
    assert "no good generation" in none.err
    order(host, "")
    if code == 41:
        box.run(["systemctl", "kill", "--signal=KILL", "--kill-whom=main", TWO[0]]).check()
    host.install().check()  # nothing was rolled back, so that it is tried again
    assert results(host) == [("ready", True, False)]


def test_no_rollback_leaves_it_and_rollback_goes_back(host: Host) -> None:
    host.write(no_such_option(B))
    told = host.install("--no-rollback")
    assert told.rc == 40
    assert host.index()["generation"] == 2
    assert "--no-such-option" in host.texts()[TWO[0]]
    shown = host.pd("rollback", "two", "--check", "--json").check().json()
    assert shown["changed"] is True
    assert host.index()["generation"] == 2
    back = host.pd("rollback", "two", "--json").check().json()
    assert back["deployments"][0]["generation"] == 1
    assert host.processes_have(f"mem-fraction-static {A}")
    assert host.pd("rollback", "two", "--to", "1", "--json").check().json()["changed"] is False


def test_what_died_within_the_first_minute_is_not_gone_back_to(host: Host) -> None:
    host.write(two(B))
    host.install().check()
    host.box.run(["systemctl", "kill", "--signal=KILL", "--kill-whom=main", TWO[0]]).check()
    until("it is known as unstable", lambda: history(host)[1]["crashes"], timeout_s=60)
    until("it is ready again", lambda: host.status()["state"] == "ready", timeout_s=60)
    host.write(no_such_option(C))
    told = host.install()
    assert told.rc == 43, (told.out, told.err)
    assert told.json()["deployments"][0]["generation"] == 1
    assert "unstable" in host.pd("history", "two").check().out


def test_an_install_that_nobody_waited_for_is_good_once_its_units_were_ready(host: Host) -> None:
    host.write(two(B))
    host.install("--no-wait").check()
    host.ready()
    assert results(host)[1] == ("ready", True, False)
    host.write(no_such_option(C))
    told = host.install()
    assert told.rc == 43
    assert told.json()["deployments"][0]["generation"] == 2
    assert host.processes_have(f"mem-fraction-static {B}")


def test_a_known_good_generation_is_not_undone_for_the_hosts_fault(host: Host) -> None:
    host.write(two(B))
    host.install().check()
    order(host, f'fail = {{ phase = "kv", text = "{NO_MEMORY}", exit = 1 }}')
    host.box.run(["systemctl", "stop", TWO[0]]).check()
    told = host.install()
    assert told.rc == 40, (told.out, told.err)
    assert host.index()["generation"] == 2
    assert results(host) == [("ready", True, False), ("ready", True, False)]
    order(host, "")
    host.install().check()


def test_a_rollback_that_was_killed_is_finished_whatever_comes_next(host: Host) -> None:
    host.write(no_such_option(B))
    at = f"before rename to /etc/systemd/system/{TWO[1]} (2)"
    for verb in ("install", "rollback", "reboot"):
        words = ("install", "--skip", "gpu", "--json", "--force")
        assert host.strike(at, "kill", *words).rc in (137, -9)
        assert "rollback of generation 1 was interrupted" in host.status()["interrupted"]
        if verb == "install":
            told = host.install()  # a playbook's next run, with the very file that failed
            assert told.rc == 40
            assert "not tried again" in told.json()["message"]
        elif verb == "rollback":
            host.pd("rollback", "two").check()
        else:
            host.box.reboot()
            host.ready()
        assert host.status()["state"] == "ready"
        assert host.status()["interrupted"] is None
        assert host.index()["generation"] == 1
        assert host.processes_have(f"mem-fraction-static {A}")
    assert len(history(host)) == 4
    assert host.box.exists(f"{STATE}/two/generations/1")


def test_a_rollback_goes_to_what_was_replaced_and_never_to_the_same(host: Host) -> None:
    host.write(two(B))
    host.install().check()
    host.pd("rollback", "two").check()
    host.write(no_such_option(C))
    told = host.install()  # 3 fails; 2 is good, but the operator went away from it
    assert told.rc == 43
    assert told.json()["deployments"][0]["generation"] == 1
    host.write(two(B))
    host.install().check()
    assert host.index()["generation"] == 4
    shown = host.pd("rollback", "two", "--json").check().json()
    assert shown["deployments"][0]["generation"] == 1
    assert host.processes_have(f"mem-fraction-static {A}")
    none = host.pd("rollback", "two")
    assert none.rc == 32
    host.pd("rollback", "two", "--to", "2").check()
    assert host.processes_have(f"mem-fraction-static {B}")
