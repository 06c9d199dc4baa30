"""Hosts that are full, read-only, unsafe, damaged or meddled with: a clear error and code, nothing lost."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from faults import STATE, TWO, Host, two

from rig.box import Box

A, B = "0.75", "0.65"
UNITS = "/etc/systemd/system"


@pytest.fixture
def host(box: Box) -> Iterator[Host]:
    """Two servers at work, and a file that would change both."""
    at_work = Host(box, "two", TWO)
    at_work.write(two(A))
    at_work.install().check()
    at_work.write(two(B))
    yield at_work


def untouched(host: Host, before: tuple[dict[str, str], dict[str, str]]) -> None:
    """Files and processes are as they were, and no operation is left open."""
    assert (host.texts(), host.mains()) == before
    assert host.operation() is None
    assert host.leftovers() == []
    assert host.status()["state"] == "ready"


def snapshot(host: Host) -> tuple[dict[str, str], dict[str, str]]:
    return host.texts(), host.mains()


def refused(host: Host, code: int, *words: str) -> str:
    """What a refused install says, in prose; its JSON must say the same with the same code."""
    told = host.install()
    assert told.rc == code, (told.rc, told.out, told.err)
    assert told.json()["exit_code"] == code
    prose = host.pd("install", "--skip", "gpu")
    assert prose.rc == code, (prose.rc, prose.out, prose.err)
    for word in words:
        assert word in prose.err, (word, prose.err)
    return prose.err


@pytest.mark.parametrize("place", [STATE, UNITS])
def test_a_disk_that_is_full_at_each_write(host: Host, place: str) -> None:
    box, before = host.box, snapshot(host)
    # The same directory on a file system of its own, filled up to a few pages: every write is the last once.
    box.sh(
        f"cp -a {place} /root/copy && mount -t tmpfs -o size=4m,mode=755 tmpfs {place} && "
        f"cp -a /root/copy/. {place}/ && systemctl daemon-reload"
    )
    failures, late = 0, False
    for pages in range(40):
        box.run(["sh", "-c", f"rm -f {place}/filler; cat /dev/zero >{place}/filler 2>/dev/null; true"])
        box.sh(f"truncate -s -{pages * 4096} {place}/filler" if pages else "true")
        told = host.install("--skip", "disk")  # preflight would refuse it before anything is tried
        if told.rc == 0:
            break
        failures += 1
        assert told.rc == 32, (pages, told.out, told.err)
        answer = told.json()
        assert "cannot write" in answer["message"] + answer["detail"], answer
        assert "free some space" in answer["hint"], answer
        if "nothing was changed" in answer["message"]:
            untouched(host, before)
            continue
        # Everything is in place and ready: only the record of that could not be written.
        assert "(ready)" in answer["message"], answer
        assert host.operation() is not None
        assert host.processes_have(f"mem-fraction-static {B}")
        late = True
    assert failures >= 2
    assert late == (place == STATE)
    assert told.rc == 0, told
    assert host.processes_have(f"mem-fraction-static {B}")
    assert host.install().check().json()["changed"] is False
    box.sh(f"rm -f {place}/filler")


def test_a_read_only_etc(host: Host) -> None:
    before = snapshot(host)
    host.box.sh("mount --bind /etc /etc && mount -o remount,ro,bind /etc")
    refused(host, 32, "read-only", "nothing was changed")
    host.box.sh("umount /etc")
    untouched(host, before)
    host.install().check()


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        (f"chmod 0777 {STATE}", f"chmod 0755 {STATE}", ("can be written by others", STATE)),
        (f"chown operator: {STATE}/two", f"chown root: {STATE}/two", ("belongs to user", f"{STATE}/two")),
        (
            f"chmod 0770 {STATE}/two/generations",
            f"chmod 0755 {STATE}/two/generations",
            ("can be written by others", "generations"),
        ),
        (f"chmod 1777 {UNITS}", f"chmod 0755 {UNITS}", ("can be written by others", UNITS)),
        (
            f"mv {STATE}/two/generations /root/g && touch {STATE}/two/generations",
            f"rm {STATE}/two/generations && mv /root/g {STATE}/two/generations",
            ("is not a directory", "generations"),
        ),
    ],
    ids=["mode", "owner", "generations", "unit-dir", "file"],
)
def test_directories_that_others_could_change(
    host: Host, wrong: str, right: str, words: tuple[str, ...]
) -> None:
    before = snapshot(host)
    host.box.sh(wrong)
    refused(host, 32, *words)
    undone = host.pd("rollback", "two", "--to", "1")
    assert undone.rc == 32
    gone = host.pd("uninstall", "two")
    assert gone.rc == 32
    host.box.sh(right)
    untouched(host, before)
    host.install().check()


def test_a_umask_of_077_hides_nothing_from_readers(box: Box) -> None:
    host = Host(box, "two", TWO)
    host.write(two(A))
    box.sh("umask 077; pd-units install --skip gpu >/dev/null 2>&1")
    assert host.status()["state"] == "ready"
    assert box.sh(f"stat -c %a {STATE} {STATE}/two {STATE}/two/generations").split() == ["755", "755", "755"]
    box.sh(f"chmod 0700 {STATE} {STATE}/two")
    host.write(two(B))
    host.install().check()
    assert host.status()["state"] == "ready"


def test_links_and_directories_where_unit_files_should_be(host: Host) -> None:
    box, unit = host.box, f"{UNITS}/{TWO[0]}"
    box.sh(f"mv {unit} /root/unit && ln -s /root/unit {unit}")
    refused(host, 32, TWO[0])
    assert box.sh(f"readlink {unit}").strip() == "/root/unit"
    box.sh(f"rm {unit} && mkdir {unit}")
    refused(host, 32, unit)
    box.sh(f"rmdir {unit} && mv /root/unit {unit}")
    host.install().check()


def test_links_in_place_of_records_are_replaced_not_followed(host: Host) -> None:
    host.box.sh(f"cp /etc/passwd /root/passwd && ln -sf /root/passwd {STATE}/two/index.json")
    host.install("--adopt").check()
    assert host.box.sh("cmp /etc/passwd /root/passwd && echo same").strip() == "same"
    assert host.box.run(["test", "-L", f"{STATE}/two/index.json"]).rc == 1


@pytest.mark.parametrize(
    "record", ["index.json", "manifest.json", "operation.json", "generations/1/outcome.json"]
)
def test_a_state_directory_of_a_newer_version(host: Host, record: str) -> None:
    before, path = snapshot(host), f"{STATE}/two/{record}"
    kept = host.box.read(path) if host.box.exists(path) else None
    value = json.loads(kept) if kept else {"kind": "install"}
    host.box.write(path, json.dumps({**value, "schema": 2}))
    refused(host, 32, "newer pd-units", "upgrade pd-units")
    newer = json.loads(host.box.read(path))
    assert newer["schema"] == 2
    if kept is None:
        host.box.run(["rm", path]).check()
    else:
        host.box.write(path, kept)
    untouched(host, before)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 7}', "\\000\\001"])
def test_a_damaged_manifest(host: Host, text: str) -> None:
    before, path = snapshot(host), f"{STATE}/two/manifest.json"
    host.box.sh(f"printf '{text}' >{path}")
    refused(host, 32, "manifest.json is damaged", "--adopt")
    assert host.pd("uninstall", "two").rc == 32
    assert (host.texts(), host.mains()) == before
    host.pd("diff", "two", "--skip", "gpu").check()
    host.install("--adopt").check()
    assert set(json.loads(host.box.read(path))["files"]) == set(TWO)


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1}'])
def test_a_damaged_index_is_named_and_an_install_writes_it_anew(host: Host, text: str) -> None:
    host.box.sh(f"printf '%s' '{text}' >{STATE}/two/index.json")
    asked = host.pd("status", "two", user="operator")
    assert asked.rc == 32
    assert "index.json is damaged" in asked.err
    host.install().check()
    assert host.status()["state"] == "ready"


@pytest.mark.parametrize("named", [True, False])
def test_a_missing_index_is_named_too(host: Host, named: bool) -> None:
    host.box.sh(f"rm {STATE}/two/index.json")
    for verb in ("status", "wait-ready"):
        asked = host.pd(verb, *(["two"] if named else []), user="operator")
        assert asked.rc == 32
        assert "two/index.json is missing" in asked.err
        assert "pd-units install two" in asked.err
    host.pd("install", "two", "--skip", "gpu").check()
    assert host.status()["state"] == "ready"


def test_a_missing_generation(host: Host) -> None:
    host.install().check()
    missing = host.pd("rollback", "two", "--to", "77")
    assert missing.rc == 32
    assert "generation 77" in missing.err
    assert "kept: 1, 2" in missing.err
    before = snapshot(host)
    host.box.sh(f"rm -r {STATE}/two/generations/1/units")
    broken = host.pd("rollback", "two")
    assert broken.rc == 32
    assert "generation 1 of two cannot be used" in broken.err
    untouched(host, before)
    host.box.sh(f"rm -r {STATE}/two/generations")
    none = host.pd("rollback", "two")
    assert none.rc == 32
    assert "no good generation" in none.err
    untouched(host, before)
    host.write(two("0.55"))
    host.install().check()


@pytest.mark.parametrize(
    "moment", ["before rename to /var/lib/pd-units/two/operation.json", f"after rename to {UNITS}/{TWO[0]}"]
)
def test_a_unit_masked_between_plan_and_apply(host: Host, moment: str) -> None:
    mask = f"mv {UNITS}/{TWO[1]} /root/kept; ln -s /dev/null {UNITS}/{TWO[1]}"
    struck = host.strike(moment, f"sh:{mask}")
    assert struck.rc == 32, struck
    assert "masked" in struck.json()["message"]
    assert host.box.sh(f"readlink {UNITS}/{TWO[1]}").strip() == "/dev/null"  # the mask is somebody's will
    host.box.sh(f"rm {UNITS}/{TWO[1]}; mv /root/kept {UNITS}/{TWO[1]}")
    host.install().check()
    assert host.processes_have(f"mem-fraction-static {B}")


@pytest.mark.parametrize("what", ["daemon-reexec", "daemon-reload"])
def test_the_manager_restarts_midway(host: Host, what: str) -> None:
    for version, moment in (
        ("0.55", "before Reload "),
        ("0.45", f"after RestartUnit ('{TWO[0]}', 'replace')"),
    ):
        host.write(two(version))
        struck = host.strike(moment, f"sh:systemctl {what} --no-block")
        assert struck.rc == 0, (moment, struck)
        assert host.processes_have(f"mem-fraction-static {version}")
        assert host.install().check().json()["changed"] is False


def test_a_unit_that_systemd_refuses(host: Host) -> None:
    before = snapshot(host)
    drop_in = f"{UNITS}/{TWO[0]}.d/bad.conf"
    host.box.write(drop_in, "[Service]\nExecStart=/bin/true\n")
    for version in (B, A):  # with files to write, and with nothing but the drop-in
        host.write(two(version))
        refused(host, 21, TWO[0], "nothing was changed", "more than one ExecStart")
        untouched(host, before)
    host.box.sh(f"rm -r {UNITS}/{TWO[0]}.d; systemctl daemon-reload")
    host.write(two(B))
    host.install().check()
