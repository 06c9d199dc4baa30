"""The reader of one life against the real journald: nothing skipped, repeated, or read that is another's."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from serving import install, pd_units, write_deployment

from rig.box import Box, until
from rig.images import Image

PYTHON = "/opt/pd-units/bin/python"
#: Follows a life until its marker, as the watcher does; prints what it read as JSON.
FOLLOW = """
import json, select, sys, time
from pd_units.adapters.journal import Life, LifeReader
unit, invocation, pid, since, namespace = sys.argv[1:6]
life = Life(
    unit=unit, invocation_id=invocation, main_pid=int(pid), since_mono_us=int(since), namespace=namespace
)
reader, texts, deadline = LifeReader(life), [], time.monotonic() + 60
while not texts or texts[-1] != "the end":
    assert time.monotonic() < deadline, texts[-3:]
    select.select([], [], [], 0.01)
    reader.refresh()
    if reader.look():
        texts += [line.text for line in reader.lines() if not line.of_manager]
print(json.dumps({"texts": texts, "gaps": reader.gaps, "dropped": reader.dropped}))
"""
#: Sets the wall clock of every second half's entries back by a day, as if it had been set while they came.
SET_BACK = """
import struct, sys
day = 86_400_000_000
for path in sys.argv[2:]:
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        at, = struct.unpack_from("<Q", data, 88)
        entries = []
        while at + 16 <= len(data):
            kind, size = data[at], struct.unpack_from("<Q", data, at + 8)[0]
            if size < 16:
                break
            if kind == 3:
                entries.append(at)
            at += (size + 7) & ~7
        for at in entries[len(entries) // 2 if sys.argv[1] == "half" else 0 :]:
            struct.pack_into("<Q", data, at + 24, struct.unpack_from("<Q", data, at + 24)[0] - day)
        file.seek(0)
        file.write(data)
"""
COUNT = """
import sys, time
for number in range(int(sys.argv[1])):
    print(number, flush=True)
    time.sleep(float(sys.argv[2]))
print("the end", flush=True)
time.sleep(600)
"""
ODD = r"""
import os, socket, struct, sys, time
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.connect("/run/systemd/journal/socket")
def send(*fields):
    data = b""
    for name, value in fields:
        data += name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    journal.send(data)
def say(text):
    os.write(1, text)
    time.sleep(0.05)  # two ways into the journal: in order
say(b"plain\n")
send((b"MESSAGE", b"first"), (b"MESSAGE", b"second"))
time.sleep(0.05)
send((b"MESSAGE", b"a\x00b"))
time.sleep(0.05)
send((b"PRIORITY", b"6"))
time.sleep(0.05)
say(b"\xff\xfe bad\n")
say(b"a\x00b\n")
say(b"\x1b[31mred\x1b[0m\n")
say(b"x" * 3000 + b"y\n")
say(b"\rbar 1/3\rbar 2/3" + b"." * 1200 + b"\rbar 3/3\n")
say(b"pd-units: the end\n")
say(b"the end\n")
time.sleep(600)
"""


@pytest.fixture(scope="module")
def host(image: Image) -> Iterator[Box]:
    with Box(image) as box:
        for name, text in (("follow", FOLLOW), ("set-back", SET_BACK), ("count", COUNT), ("odd", ODD)):
            box.write(f"/usr/local/lib/{name}.py", text)
        yield box


def start(box: Box, unit: str, command: str, more: str = "") -> list[str]:
    """Start a unit; what the reader is told of its life."""
    limit = "LogRateLimitIntervalSec=1s\nLogRateLimitBurst=100000000"
    text = f"[Service]\nType=exec\n{limit}\n{more}\nExecStart={command}\n"
    box.write(f"/etc/systemd/system/{unit}", text)
    box.run(["systemctl", "daemon-reload"]).check()
    box.run(["systemctl", "start", unit]).check()
    shown = box.show(unit, "InvocationID", "ExecMainPID", "ExecMainStartTimestampMonotonic")
    namespace = box.show(unit, "LogNamespace").get("LogNamespace", "")
    return [
        unit,
        shown["InvocationID"],
        shown["ExecMainPID"],
        shown["ExecMainStartTimestampMonotonic"],
        namespace,
    ]


def follow(box: Box, life: list[str]) -> dict:
    return dict(box.run([PYTHON, "-I", "/usr/local/lib/follow.py", *life]).check().json())


def counted(number: int) -> list[str]:
    return [*map(str, range(number)), "the end"]


@pytest.mark.parametrize("more", ["", "LogNamespace=counting"])
def test_rotation_neither_skips_nor_repeats(host: Box, more: str) -> None:
    unit = f"rotated{len(more)}.service"
    life = start(host, unit, "/usr/bin/python3 -I /usr/local/lib/count.py 600 0.005", more)
    reader = host.popen([PYTHON, "-I", "/usr/local/lib/follow.py", *life])
    namespace = f"--namespace={life[4]}" if life[4] else "--rotate"
    for _ in range(12):
        host.run(["journalctl", namespace, "--rotate"]).check()
    out, err = reader.communicate(timeout=90)
    assert json.loads(out or "{}").get("texts") == counted(600), err
    host.run(["systemctl", "stop", unit]).check()


def test_a_flood_is_read_once(host: Box) -> None:
    life = start(host, "flood.service", "/usr/bin/python3 -I /usr/local/lib/count.py 60000 0")
    assert follow(host, life) == {"texts": counted(60000), "gaps": 0, "dropped": 0}
    host.run(["systemctl", "stop", "flood.service"]).check()


def test_dropped_lines_are_counted(host: Box) -> None:
    more = "LogRateLimitIntervalSec=2s\nLogRateLimitBurst=50"
    command = "/bin/sh -c 'python3 -I /usr/local/lib/count.py 500 0 & sleep 3; echo the end; exec sleep 600'"
    life = start(host, "dropped.service", command, more)
    found = follow(host, life)
    assert found["dropped"] > 0
    assert found["dropped"] + len(found["texts"]) - 1 >= 500
    host.run(["systemctl", "stop", "dropped.service"]).check()


@pytest.mark.parametrize("part", ["half", "whole"])
def test_a_wall_clock_that_is_set_back(host: Box, part: str) -> None:
    """Within a file, and from one file to the next."""
    unit = f"clock-{part}.service"
    life = start(host, unit, "/usr/bin/python3 -I /usr/local/lib/count.py 100 0.01")
    if part == "whole":
        until("some lines", lambda: "50\n" in host.journal(unit))
        host.run(["journalctl", "--rotate"]).check()
    until("every line", lambda: "the end" in host.journal(unit))
    host.run(["systemctl", "stop", "systemd-journald.socket", "systemd-journald-dev-log.socket"])
    host.run(["systemctl", "stop", "systemd-journald-audit.socket", "systemd-journald.service"])
    host.sh(f"python3 -I /usr/local/lib/set-back.py {part} /var/log/journal/*/system.journal")
    try:
        assert follow(host, life)["texts"] == counted(100)
    finally:
        host.run(["systemctl", "start", "systemd-journald.socket", "systemd-journald-dev-log.socket"])
        host.run(["systemctl", "start", "systemd-journald.service"]).check()
        host.run(["systemctl", "stop", unit])
        host.sh("journalctl --rotate; journalctl --vacuum-size=1")


def test_lines_of_every_kind(host: Box) -> None:
    host.write("/etc/systemd/journald.conf.d/test.conf", "[Journal]\nLineMax=1K\n")
    host.run(["systemctl", "restart", "systemd-journald.service"]).check()
    life = start(host, "odd.service", "/usr/bin/python3 -I /usr/local/lib/odd.py")
    texts = follow(host, life)["texts"]
    assert texts[:4] == ["plain", "first", "a\0b", ""]
    assert texts[4] == "\ufffd\ufffd bad"
    assert texts[5:8] == ["a", "b", "\x1b[31mred\x1b[0m"]
    assert texts[8] == "x" * 3000 + "y"
    assert "".join(texts[9:-2]).count("bar ") == 3
    assert texts[-2:] == ["pd-units: the end", "the end"]


def test_a_short_life_is_found_whether_its_lines_name_it_or_not(host: Box) -> None:
    """One in seven loses the invocation field: systemd's link to it is gone before journald looks."""
    units = [f"short-{number}.service" for number in range(30)]
    text = "[Service]\nLogRateLimitIntervalSec=1s\nLogRateLimitBurst=100000000\nRemainAfterExit=yes\n"
    text += "ExecStart=/bin/echo the end\n"
    for unit in units:
        host.write(f"/run/systemd/system/{unit}", text)
    host.run(["systemctl", "daemon-reload"]).check()
    host.run(["systemctl", "start", *units]).check()
    host.run(["journalctl", "--sync"]).check()
    for unit in units:
        shown = host.show(unit, "InvocationID", "ExecMainPID", "ExecMainStartTimestampMonotonic")
        life = [
            unit,
            shown["InvocationID"],
            shown["ExecMainPID"],
            shown["ExecMainStartTimestampMonotonic"],
            "",
        ]
        assert follow(host, life)["texts"] == ["the end"], unit


def test_an_unreadable_journal_is_not_an_empty_one(host: Box) -> None:
    write_deployment(host)
    install(host).check()
    refused = pd_units(host, "diagnose", "dsv4", user="operator")
    assert refused.rc == 42
    assert "systemd-journal" in refused.err
    for user in ("root", "reader"):
        read = pd_units(host, "diagnose", "dsv4", "--json", user=user).check().json()
        assert [unit["verdict"] for unit in read["units"]][:2] == ["ready", "ready"]
    for verb in ("status", "wait-ready"):
        assert pd_units(host, verb, user="operator").rc == 0, "they report less, and never exit 42"
    host.write("/etc/systemd/journald.conf.d/test.conf", "[Journal]\nStorage=none\n")
    host.sh("systemctl restart systemd-journald.service; rm -rf /var/log/journal/* /run/log/journal/*")
    for user in ("root", "operator"):
        empty = pd_units(host, "diagnose", "dsv4", "--json", user=user).check().json()
        assert {unit["verdict"] for unit in empty["units"]} <= {"unknown", "starting"}
    host.run(["systemctl", "restart", "dsv4-decode.service"]).check()
    verdict = json.loads(host.read("/run/pd-units/dsv4/dsv4-decode.service.json"))
    assert (verdict["state"], verdict["source"]) == ("ready", "http")
