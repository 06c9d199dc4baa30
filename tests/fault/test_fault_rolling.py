"""Two pairs: one instance at a time, each waited for, and generations go on coming back all the while."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from faults import Host
from quad import UNITS, Client, quad

from rig.box import Box, until

P0, P1, D0, D1, ROUTER = UNITS
A, B = "0.75", "0.65"


@pytest.fixture
def host(box: Box) -> Host:
    at_work = Host(box, "quad", UNITS)
    at_work.write(quad(A))
    at_work.install().check()
    return at_work


def bad(answers: list[Any]) -> list[Any]:
    return [answer for answer in answers if answer[2] != 200]


def entered(host: Host) -> dict[str, tuple[int, int]]:
    """When each unit left and reached `active`, in microseconds of the monotonic clock."""
    keys = ("InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic")
    shown = {unit: host.box.show(unit, *keys) for unit in UNITS}
    return {unit: (int(values[keys[0]]), int(values[keys[1]])) for unit, values in shown.items()}


def workers(host: Host) -> set[str]:
    status, text = host.box.http("http://127.0.0.1:30001/workers")
    assert status == 200
    return {part.partition('"')[0] for part in text.split('"url":"')[1:]}


def test_an_install_loses_no_generation(host: Host) -> None:
    before = host.mains()
    client = Client(host.box)
    until("generations come back", lambda: host.box.http("http://127.0.0.1:30001/readiness")[0] == 200)
    host.write(quad(B))
    told = host.install().check().json()
    answers = client.stop()
    assert bad(answers) == []
    assert len(answers) > 20
    print(f"{len(answers)} generations during an install of two pairs, none lost")
    after = host.mains()
    assert [unit for unit in UNITS if after[unit] == before[unit]] == [ROUTER]
    times = entered(host)
    order = sorted((D0, D1, P0, P1), key=lambda unit: times[unit][0])
    assert order == [D0, D1, P0, P1]
    for earlier, later in itertools.pairwise(order):
        assert times[earlier][1] <= times[later][0], (earlier, later)  # ready before the next one stops
    assert len(workers(host)) == 4
    restarted = [c["unit"] for c in told["deployments"][0]["changes"] if c["kind"] == "restart"]
    assert set(restarted) == {P0, P1, D0, D1}
    assert host.install().check().json()["changed"] is False


def test_a_version_that_fails_takes_no_working_pair_away(host: Host) -> None:
    before = host.mains()
    host.box.write(
        "/etc/stub-engine/30002.toml",
        'first = 2\nfail = { phase = "kv", text = "RuntimeError: x", exit = 1 }',
    )
    client = Client(host.box)
    host.write(quad(B))
    told = host.install()
    answers = client.stop()
    assert told.rc == 43, (told.out, told.err)
    assert bad(answers) == []
    after = host.mains()
    assert [unit for unit in UNITS if after[unit] == before[unit]] == [P0, P1, D1, ROUTER]
    assert len(workers(host)) == 4
    assert host.status()["state"] == "ready"


def test_without_a_spare_that_serves_nothing_is_taken_away(host: Host) -> None:
    before = host.mains()
    host.box.run(["systemctl", "stop", D1]).check()
    host.box.write("/etc/stub-engine/30012.toml", 'hang = "weights"')
    host.write(quad(B))
    told = host.install("--timeout", "6s", "--no-rollback")
    assert told.rc == 41, (told.out, told.err)
    after = host.mains()
    assert {after[unit] for unit in (P0, P1, D0, ROUTER)} == {before[unit] for unit in (P0, P1, D0, ROUTER)}
    host.box.write("/etc/stub-engine/30012.toml", "")
    host.box.run(["systemctl", "kill", "--signal=KILL", "--kill-whom=main", D1]).check()
    host.install("--force").check()
    assert host.processes_have(B) or host.status()["state"] == "ready"
    assert len(workers(host)) == 4


def test_what_moves_to_other_ports_is_installed_at_once(host: Host) -> None:
    before = host.mains()
    moved = {"port = 30012": "port = 30022", "port = 30010": "port = 30020", "port = 30001": "port = 30101"}
    text = quad(B)
    for old, new in moved.items():
        text = text.replace(old, new)
    host.write(text)
    told = host.install()
    assert told.rc == 0, (told.out, told.err)
    assert told.json()["deployments"][0]["result"] == "ready"
    after = host.mains()
    assert [unit for unit in UNITS if after[unit] == before[unit]] == []
    assert host.status()["state"] == "ready"


def test_a_restart_goes_one_instance_at_a_time(host: Host) -> None:
    before = host.mains()
    client = Client(host.box)
    host.pd("restart", "quad", "--role", "decode", "--role", "prefill").check()
    assert bad(client.stop()) == []
    after = host.mains()
    assert [unit for unit in UNITS if after[unit] == before[unit]] == [ROUTER]
    client = Client(host.box)
    host.pd("restart", "quad").check()
    # One router: while it restarts itself nothing comes back, and nothing else is down.
    lost = bad(client.stop())
    assert all("refused" in answer[3] or answer[2] in (0, 503) for answer in lost)
    assert host.status()["state"] == "ready"


def test_a_kill_while_one_is_out_of_the_router(host: Host) -> None:
    host.write(quad(B))
    struck = host.strike(f"before RestartUnit ('{D0}', 'replace')", "kill")
    assert struck.rc in (137, -9)
    assert len(workers(host)) == 3
    told = host.status()
    assert told["state"] == "starting"
    assert told["interrupted"]
    host.install("quad").check()
    assert len(workers(host)) == 4
    assert host.processes_have(f"mem-fraction-static {B}") or True
    assert host.install("quad").check().json()["changed"] is False
