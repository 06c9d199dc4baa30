"""Every start-up log with a known verdict, replayed by the stub through a real journal, its times shortened,
its exit status real: the watcher, and the recorder of ends, must say the same of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watching import Server, all_of, lab

from rig.box import until
from rig.images import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from log_cases import LogCase, load_cases

READY_LINE = "fired up and ready to roll"
CASES = load_cases()
# From the main process's start on: long enough for all of them to be started at once on two cores.
TIMEOUT_S = 60
UNPACK = """
import json, pathlib, sys
for path, text in json.load(sys.stdin).items():
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text(text, encoding="utf-8", newline="")
"""
# What the watcher and the recorder wrote, by unit.
COLLECT = """
import json, pathlib
found = {}
for key, folder in (("live", "/run/pd-units/replay"), ("end", "/var/lib/pd-units/replay/ends")):
    for path in pathlib.Path(folder).glob("*.service.json"):
        found.setdefault(path.name.removesuffix(".json"), {})[key] = json.loads(path.read_text())
print(json.dumps(found))
"""


def newest_life(case: LogCase) -> list[str]:
    """What one invocation prints: a log with two lives is that of two."""
    launches = sum("server_args" in line or "systemd[1]: Started " in line for line in case.lines)
    return list(case.lines[case.newest_life :] if launches > 1 else case.lines)


def lines_of(case: LogCase) -> list[str]:
    """The lines to replay: a server that was ready, and stopped on request later, goes on serving here."""
    lines = newest_life(case)
    if case.verdict == "ready" and case.cause == "none":
        ready = [number for number, line in enumerate(lines) if READY_LINE in line]
        return lines[: ready[-1] + 1] if ready and case.exit_status else lines
    return lines


def orders_of(case: LogCase, file: str) -> str:
    """The stub's orders: replay, then end as recorded, serve, or stay."""
    end = ""
    if case.verdict == "ready" and case.cause == "none":
        end = ", serve = true"
    elif case.verdict != "starting" and case.exit_status:
        status = case.exit_status
        end = f", exit = {status}" if status.isdigit() else f', signal = "{status.removeprefix("SIG")}"'
    return f'replay = {{ file = "{file}"{end} }}\n'


@pytest.fixture(scope="module")
def replayed(image: Image) -> Iterator[list[tuple[LogCase, Server]]]:
    """Every log under way, each in a unit of its own, all at once."""
    with lab(image) as made:
        made.install("replay", len(CASES), readiness=f'timeout = "{TIMEOUT_S}s"')
        servers = made.take("replay", len(CASES))
        files = {"/etc/systemd/system/replay-standalone-.service.d/once.conf": "[Service]\nRestart=no\n"}
        for case, server in zip(CASES, servers, strict=True):
            log = f"/var/lib/replay/{case.name}.log"
            files[log] = "\n".join(lines_of(case)) + "\n"
            files[f"/etc/stub-engine/{server.port}.toml"] = orders_of(case, log)
        made.box.run(["python3", "-I", "-c", UNPACK], stdin=json.dumps(files)).check()
        units = [server.unit for server in servers]
        made.box.run(["systemctl", "daemon-reload"]).check()
        made.box.run(["systemctl", "start", "--no-block", *units]).check()
        yield list(zip(CASES, servers, strict=True))


def becomes_ready(case: LogCase, seen: dict[str, Any]) -> None:
    logged = any(READY_LINE in line for line in case.lines)
    assert seen["ActiveState"] == "active", seen
    assert seen["live"]["source"] == ("journal+http" if logged else "http")


def fails(case: LogCase, seen: dict[str, Any]) -> None:
    assert seen["ActiveState"] == "failed", seen
    assert seen["end"]["cause"] == case.cause, seen


def goes_on_starting(case: LogCase, seen: dict[str, Any]) -> None:
    """Nothing in its text ends it: only the clock does."""
    assert seen["ActiveState"] == "failed", seen
    assert seen["live"]["source"] == "clock", seen
    assert seen["end"]["timed_out"] is True


def check_of(case: LogCase) -> Callable[[LogCase, dict[str, Any]], None]:
    if case.verdict == "starting":
        return goes_on_starting
    return becomes_ready if (case.verdict, case.cause) == ("ready", "none") else fails


def test_a_log_is_judged_in_a_real_journal_as_on_paper(replayed: list[tuple[LogCase, Server]]) -> None:
    box, units = replayed[0][1].box, [server.unit for _, server in replayed]
    show = f"systemctl show --property=Id,ActiveState {' '.join(units)}"

    def states() -> dict[str, str]:
        pairs = re.findall(r"Id=(\S+)\nActiveState=(\S+)|ActiveState=(\S+)\nId=(\S+)", box.sh(show))
        return {pair[0] or pair[3]: pair[1] or pair[2] for pair in pairs}

    until(
        "an end of every start",
        lambda: not set(states().values()) & {"activating", "deactivating"},
        timeout_s=TIMEOUT_S + 120,
        every_s=1.0,
    )
    shown, files = states(), box.run(["python3", "-I", "-c", COLLECT]).check().json()
    checks = []
    for case, server in replayed:
        seen = {"ActiveState": shown[server.unit], **files[server.unit]}
        checks.append((case.name, lambda c=case, s=seen: check_of(c)(c, s)))
    all_of(checks)
