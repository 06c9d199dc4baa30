"""SIGKILL at every point of an install: files are old or new; the next command knows, and finishes it."""

from __future__ import annotations

import os

import pytest
from faults import STATE, TWO, Host, two

from rig.box import Box

OLD, NEW = "0.75", "0.65"
CHUNKS = 4
# Of each chunk's points, one in so many: on one version half of them, on the other a sample. All of them, of
# every verb, on both: PD_UNITS_EVERY_POINT=1.
SHARE = {252: 2, 257: 8}
EVERY_POINT = bool(os.environ.get("PD_UNITS_EVERY_POINT"))


def sample(box: Box, points: list[str], first: int, step: int) -> list[str]:
    """Of the other verbs' points one in `step`, on the second version half as many."""
    return points if EVERY_POINT else points[first :: step if box.image.suite.systemd == 252 else 2 * step]


def strike_and_recover(host: Host, what: str, turn: int, live: str) -> str:
    """Kills the install of the other version at `what`; the version that is live after this turn."""
    other = NEW if live == OLD else OLD
    before = host.texts()
    generation = host.index()["generation"]
    host.write(two(other))
    struck = host.strike(what, "kill")
    assert struck.rc in (137, -9), (what, struck)
    begun, told, now = host.operation(), host.status(), host.texts()
    for unit in TWO:
        assert now[unit] == before[unit] or f"mem-fraction-static {other}" in now[unit], (what, unit)
    if begun is not None:
        assert told["interrupted"], what
        assert f"install of generation {begun['generation']} was interrupted" in told["interrupted"]
        assert begun["generation"] > generation
    else:
        assert told["interrupted"] is None, what
        assert len({text == before[unit] for unit, text in now.items()}) == 1, what  # all old, or all new
    ended = begun is None and now != before
    return recover(host, turn, what, begun=begun is not None, ended=ended, live=live, other=other)


def recover(host: Host, turn: int, what: str, *, begun: bool, ended: bool, live: str, other: str) -> str:
    """Finishes or undoes it by the means of this turn; the version that is live then."""
    if turn == 1 and begun:
        host.pd("rollback", host.name).check()
        result = live
    elif turn in (2, 3):
        if turn == 2:
            host.box.reboot()
        else:
            host.box.power_loss()
            host.box.boot()
        host.ready()
        result = other if begun or ended else live
        assert host.operation() is None, what
    else:
        host.install().check()
        result = other
    host.ready()
    status = host.status()
    assert (status["state"], status["interrupted"]) == ("ready", None), (what, status)
    assert host.processes_have(f"mem-fraction-static {result}"), (what, turn, result, host.mains())
    host.write(two(result))
    again = host.install().check().json()
    assert again["changed"] is False, (what, turn, again)
    if begun:
        assert host.leftovers() == [], what
    return result


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_at_every_point(box: Box, chunk: int) -> None:
    host = Host(box, "two", TWO)
    host.write(two(OLD))
    host.install().check()
    host.write(two(NEW))
    points = host.points()
    assert len(points) >= 120, points
    live = NEW
    share = 1 if EVERY_POINT else SHARE[box.image.suite.systemd]
    mine = points[chunk :: CHUNKS * share]
    for turn, point in enumerate(mine):
        live = strike_and_recover(host, point, (turn + chunk) % 4, live)
    print(f"killed at {len(mine)} of {len(points)} points")


def test_a_first_install_killed_at_some_points(box: Box) -> None:
    host = Host(box, "two", TWO)
    host.write(two(OLD))
    points = host.points()
    host.pd("uninstall", "two", "--purge").check()
    for turn, what in enumerate(sample(box, points, 5, 16)):
        struck = host.strike(what, "kill")
        assert struck.rc in (137, -9), (what, struck)
        begun = host.operation() is not None
        if begun:
            assert "install of generation 1 was interrupted" in host.status()["interrupted"], what
            assert "`pd-units uninstall two` undoes it" in host.status()["interrupted"]
        if turn % 3 == 0 and begun:
            box.reboot()
            host.ready()
        elif turn % 3 == 1:
            host.pd("uninstall", "two", "--purge").check()
            assert (
                box.sh("find /etc/systemd/system -name 'two-*' -o -name '.*.????????' -o -name '*pd-units*'")
                == ""
            ), what
            assert not box.exists(f"{STATE}/two"), what
            continue
        else:
            host.install().check()
        assert host.status()["state"] == "ready", what
        assert host.install().check().json()["changed"] is False, what
        host.pd("uninstall", "two", "--purge").check()


def test_links_that_are_gone_since_the_last_reload_are_made_again(box: Box) -> None:
    """An uninstall that broke off before its reload leaves systemd with "enabled" for what is not."""
    host = Host(box, "two", TWO)
    host.write(two(OLD))
    host.install().check()
    links = (
        "/etc/systemd/system/pd-units@two.target.wants /etc/systemd/system/multi-user.target.wants/pd-units*"
    )
    box.sh(f"rm -r {links}")
    made = host.install().check().json()
    assert {change["unit"] for change in made["deployments"][0]["changes"] if change["kind"] == "enable"} == {
        *TWO,
        "pd-units@two.target",
        "pd-units-recover.service",
    }
    for unit in (*TWO, "pd-units@two.target"):
        assert box.run(["systemctl", "is-enabled", unit]).out.strip() == "enabled"
    assert host.install().check().json()["changed"] is False


@pytest.mark.parametrize("verb", ["rollback", "uninstall", "restart"])
def test_other_verbs_killed_at_some_points(box: Box, verb: str) -> None:
    host = Host(box, "two", TWO)
    host.write(two(OLD))
    host.install().check()
    host.write(two(NEW))
    host.install().check()
    words = {
        "rollback": ("rollback", "two"),
        "uninstall": ("uninstall", "two"),
        "restart": ("restart", "two"),
    }[verb]
    points = host.points(*words)
    host.install().check()
    for turn, what in enumerate(sample(box, points, 3, 9)):
        before = host.index()["generation"]
        struck = host.strike(what, "kill", *words)
        assert struck.rc in (137, -9), (what, struck)
        begun = host.operation() is not None
        if begun:
            assert f"{verb} of generation" in host.status()["interrupted"], what
        gone_back = verb == "rollback" and not begun and host.index()["generation"] != before
        if turn % 3 == 0:
            box.reboot()
        elif turn % 3 == 1 and not gone_back:
            host.pd(*words).check()
        host.install().check()  # of the newer version, whatever became of the verb
        assert host.status()["state"] == "ready", what
        assert host.status()["interrupted"] is None, what
        assert host.processes_have(f"mem-fraction-static {NEW}"), what
        assert host.install().check().json()["changed"] is False, what
