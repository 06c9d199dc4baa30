"""An operator's drop-ins survive and are part of every diff; hand-edited units are shown and refused."""

from __future__ import annotations

from faults import STATE, TWO, Host, two

from rig.box import Box

A, B = "0.75", "0.65"
UNITS = "/etc/systemd/system"
DROP_IN = f"{UNITS}/{TWO[0]}.d/override.conf"


def working(box: Box) -> Host:
    host = Host(box, "two", TWO)
    host.write(two(A))
    host.install().check()
    return host


def changes(host: Host, *words: str, user: str = "root") -> dict[tuple[str, str], str]:
    """(kind, unit) -> reason of every change that `diff` shows but for keep."""
    told = host.pd("diff", host.file, "--skip", "gpu", "--json", *words, user=user)
    rows = told.check().json()["deployments"][0]["changes"]
    return {(row["kind"], row["unit"]): row["reason"] for row in rows if row["kind"] != "keep"}


def test_a_drop_in_that_touches_the_process_restarts_it_with_its_reason(box: Box) -> None:
    host = working(box)
    before = host.mains()
    box.write(DROP_IN, "[Service]\nNice=5\nEnvironment=HF_TOKEN=hunter2\n")
    for user in ("root", "operator"):
        planned = changes(host, user=user)
        assert set(planned) == {("reload-daemon", "-"), ("restart", TWO[0])}, planned
        reason = planned["restart", TWO[0]]
        assert "Nice added: 5" in reason
        assert DROP_IN in reason
        assert "hunter2" not in reason
    host.install().check()
    after = host.mains()
    assert after[TWO[0]] != before[TWO[0]]
    assert after[TWO[1]] == before[TWO[1]]
    assert box.show(TWO[0], "Nice")["Nice"] == "5"
    assert host.install().check().json()["changed"] is False
    prose = host.pd("install", "--skip", "gpu", "--check").check().out
    assert DROP_IN in prose
    box.run(["rm", DROP_IN]).check()
    planned = changes(host)
    assert "Nice removed: 5" in planned["restart", TWO[0]]
    assert f"{DROP_IN} is gone" in planned["restart", TWO[0]]


def test_a_drop_in_that_the_process_never_sees_is_only_read(box: Box) -> None:
    host = working(box)
    before = host.mains()
    box.write(DROP_IN, "[Service]\nRestartSec=7\nTimeoutStopSec=99\n")
    assert set(changes(host)) == {("reload-daemon", "-")}
    host.install().check()
    assert host.mains() == before
    assert box.show(TWO[0], "RestartUSec")["RestartUSec"] == "7s"
    assert changes(host) == {}


def test_a_drop_in_read_by_somebody_else_is_seen_all_the_same(box: Box) -> None:
    host = working(box)
    box.write(DROP_IN, "[Service]\nLimitCORE=0\n")
    box.run(["systemctl", "daemon-reload"]).check()
    assert set(changes(host)) == {("restart", TWO[0])}


def test_a_drop_in_set_with_a_restart_needs_nothing_more(box: Box) -> None:
    host = working(box)
    box.write(DROP_IN, "[Service]\nNice=5\n")
    box.sh(f"systemctl daemon-reload; systemctl restart {TWO[0]}")
    assert changes(host) == {}


def test_an_environment_file_is_part_of_what_a_process_was_given(box: Box) -> None:
    host = Host(box, "two", TWO)
    box.write("/etc/pd-units/two.env", "# a comment\nNCCL_DEBUG=INFO\n", mode=0o600)
    text = two(A).replace('user = "sglang"', 'user = "sglang"\nenvironment_files = ["/etc/pd-units/two.env"]')
    host.write(text)
    host.install().check()
    box.write("/etc/pd-units/two.env", "# another\n\nNCCL_DEBUG=INFO\n", mode=0o600)
    assert changes(host) == {}
    box.write("/etc/pd-units/two.env", "NCCL_DEBUG=WARN\n", mode=0o600)
    planned = changes(host)
    assert {unit for kind, unit in planned if kind == "restart"} == set(TWO)
    assert "/etc/pd-units/two.env changed" in planned["restart", TWO[0]]
    assert "WARN" not in box.sh("cat /run/pd-units/two/*.received.json")


def test_drop_ins_survive_upgrade_rollback_and_uninstall(box: Box) -> None:
    host = working(box)
    box.write(DROP_IN, "[Service]\nNice=5\n")
    host.write(two(B))
    planned = changes(host)
    assert DROP_IN in planned["write", TWO[0]] + planned["restart", TWO[0]]
    host.install("--adopt").check()
    assert box.show(TWO[0], "Nice")["Nice"] == "5"
    host.pd("rollback", "two").check()
    assert box.show(TWO[0], "Nice")["Nice"] == "5"
    host.pd("uninstall", "two", "--purge").check()
    assert box.read(DROP_IN) == "[Service]\nNice=5\n"


def test_a_hand_edited_unit_is_shown_and_refused(box: Box) -> None:
    host = working(box)
    unit = f"{UNITS}/{TWO[0]}"
    box.sh(f"sed -i 's/^Restart=always/Restart=no/' {unit}")
    edited, mains = box.read(unit), host.mains()
    planned = changes(host)
    assert "changed by hand" in planned["write", TWO[0]]
    assert "Restart changed: no -> always" in planned["write", TWO[0]]
    diff = host.pd("diff", "two", "--skip", "gpu").check().out
    assert "-Restart=no" in diff
    for words in (("install", "--skip", "gpu"), ("rollback", "two", "--to", "1"), ("uninstall", "two")):
        refused = host.pd(*words)
        assert refused.rc == 32, words
        assert "changed by hand" in refused.err
        assert TWO[0] in refused.err
    assert box.read(unit) == edited
    assert host.mains() == mains
    host.install("--overwrite").check()
    assert "Restart=always" in box.read(unit)
    assert host.mains() == mains  # the process never saw that line
    assert host.install().check().json()["changed"] is False


def test_an_upgrade_of_the_tool_alone_restarts_nothing(box: Box) -> None:
    host = working(box)
    before = host.mains()
    # The same pd-units, installed somewhere else: every Exec line of ours changes, the engine's does not.
    box.sh(
        "cp -a /opt/pd-units /opt/pd-units-2; "
        "sed -i '1s#/opt/pd-units/#/opt/pd-units-2/#' /opt/pd-units-2/bin/pd-units"
    )
    done = box.run(["/opt/pd-units-2/bin/pd-units", "install", "--skip", "gpu", "--json"]).check().json()
    kinds = {change["kind"] for change in done["deployments"][0]["changes"]}
    assert done["changed"] is True
    assert kinds == {"write", "reload-daemon"}, kinds
    assert host.mains() == before
    assert "/opt/pd-units-2/" in box.read(f"{UNITS}/{TWO[0]}")
    assert host.status()["state"] == "ready"
    assert box.exists(f"{STATE}/two/generations/2")


def test_a_unit_in_our_name_that_is_not_ours_is_not_touched(box: Box) -> None:
    host = Host(box, "two", TWO)
    box.write(f"{UNITS}/{TWO[1]}", "[Service]\nExecStart=/bin/sleep infinity\n")
    host.write(two(A))
    refused = host.install()
    assert refused.rc == 32
    assert "was not written by pd-units" in refused.out
    assert not box.exists(f"{UNITS}/{TWO[0]}")
    assert box.read(f"{UNITS}/{TWO[1]}").startswith("[Service]\nExecStart=/bin/sleep")
    host.install("--adopt").check()
    host.ready()
