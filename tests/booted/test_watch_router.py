"""The watcher of a router, and what users see of a start: progress, and the timeline of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO
from xml.etree import ElementTree

import pytest
from serving import (
    DECODE,
    PREFILL,
    ROUTER,
    UNITS,
    complete,
    install,
    invocations,
    order,
    pd_units,
    restart_quickly,
    write_deployment,
)

from rig.box import Box, until
from rig.images import Image

SMOKE = "one generation through the router"


@pytest.fixture(scope="module")
def pair(image: Image) -> Iterator[Box]:
    """A box with a pair and its router, ready."""
    with Box(image) as box:
        write_deployment(box)
        install(box).check()
        restart_quickly(box)
        yield box


def live(box: Box, unit: str = ROUTER) -> dict:
    """The verdict of the unit's present invocation, {} if there is none yet."""
    text = box.run(["cat", f"/run/pd-units/dsv4/{unit}.json"]).out
    verdict = json.loads(text) if text else {}
    return verdict if verdict.get("invocation_id") == box.show(unit, "InvocationID")["InvocationID"] else {}


def under_way(box: Box) -> str:
    """What the router's start waits for; "" if it has ended."""
    verdict = live(box)
    return str(verdict.get("phase")) if verdict.get("state") in ("gate", "waiting") else ""


def starts(box: Box, unit: str = ROUTER) -> list[dict]:
    return [json.loads(line) for line in box.read(f"/var/lib/pd-units/dsv4/starts/{unit}.jsonl").splitlines()]


def restart(box: Box, unit: str) -> None:
    box.run(["systemctl", "restart", "--no-block", unit]).check()


def test_ready_says_what_it_rests_on(pair: Box) -> None:
    verdict = live(pair)
    assert (verdict["state"], verdict["source"]) == ("ready", "http")
    texts = " ".join(row["text"] for row in verdict["evidence"])
    assert "2 declared workers healthy" in texts
    assert "a generation came back" in texts
    assert verdict["backends"] == {unit: invocations(pair)[unit] for unit in (PREFILL, DECODE)}
    assert starts(pair)[-1]["phases"][0]["name"] == "gate"


def test_a_backend_that_dies_before_the_verdict_sends_the_router_back_to_its_gate(pair: Box) -> None:
    order(pair, DECODE, "generate_delay_s = 20")
    pair.run(["systemctl", "restart", DECODE]).check()
    restart(pair, ROUTER)
    until("the smoke test", lambda: under_way(pair) == SMOKE)
    pair.run(["systemctl", "kill", "--signal=KILL", "--kill-whom=main", DECODE]).check()
    before = invocations(pair)
    order(pair, DECODE, "")
    until("the router's next life", lambda: invocations(pair)[ROUTER] != before[ROUTER])
    failed = next(each for each in reversed(starts(pair)) if each["invocation_id"] == before[ROUTER])
    assert failed["outcome"] == "failed"
    pd_units(pair, "wait-ready", "--timeout", "2min").check()
    assert live(pair)["backends"][DECODE] == invocations(pair)[DECODE]
    complete(pair)


def test_the_bus_is_restarted_while_the_gate_waits(pair: Box) -> None:
    pair.run(["systemctl", "stop", DECODE]).check()
    restart(pair, ROUTER)
    until("the gate", lambda: under_way(pair) == "waiting for backends")
    pair.run(["systemctl", "restart", "dbus.service"]).check()
    pair.run(["systemctl", "start", DECODE]).check()
    until("the router", lambda: pair.state(ROUTER) == "active/running", timeout_s=60)
    complete(pair)


def test_the_bus_is_restarted_during_the_smoke_test(pair: Box) -> None:
    order(pair, DECODE, "generate_delay_s = 4")
    pair.run(["systemctl", "restart", DECODE]).check()
    restart(pair, ROUTER)
    until("the smoke test", lambda: under_way(pair) == SMOKE)
    pair.run(["systemctl", "restart", "dbus.service"]).check()
    until("the router", lambda: pair.state(ROUTER) == "active/running", timeout_s=60)
    order(pair, DECODE, "")
    pair.run(["systemctl", "restart", DECODE]).check()


def test_another_server_on_the_routers_port(pair: Box) -> None:
    pair.run(["systemctl", "stop", ROUTER]).check()
    program = (
        "import http.server, json\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        urls = [f'http://127.0.0.1:{port}' for port in (30000, 30002)]\n"
        "        rows = [{'url': url, 'is_healthy': True} for url in urls]\n"
        "        body = json.dumps({'text': 'x', 'workers': rows})\n"
        "        self.send_response(200); self.send_header('content-length', str(len(body)))\n"
        "        self.end_headers(); self.wfile.write(body.encode())\n"
        "    do_POST = do_GET\n"
        "http.server.ThreadingHTTPServer(('0.0.0.0', 30001), H).serve_forever()\n"
    )
    pair.write("/usr/local/lib/false-router.py", program)
    service = "[Service]\nExecStart=/usr/bin/python3 /usr/local/lib/false-router.py\n"
    pair.write("/run/systemd/system/false.service", service)
    pair.sh("systemctl daemon-reload; systemctl start false.service")
    until("the false router", lambda: pair.http("http://127.0.0.1:30001/readiness")[0] == 200)
    before = invocations(pair)[ROUTER]
    done = pair.run(["systemctl", "start", ROUTER])
    assert done.rc != 0
    shown = pair.show(
        ROUTER, "ActiveEnterTimestampMonotonic", "ExecMainStartTimestampMonotonic", "InvocationID"
    )
    assert shown["InvocationID"] != before
    assert int(shown["ActiveEnterTimestampMonotonic"]) < int(shown["ExecMainStartTimestampMonotonic"])
    pair.sh("systemctl stop false.service")
    until("the router", lambda: pair.state(ROUTER) == "active/running", timeout_s=60)
    complete(pair)


def read_until(stream: IO[str], text: str) -> str:
    """What a process prints up to the first line with this text."""
    lines = []
    while not lines or (lines[-1] and text not in lines[-1]):
        lines.append(stream.readline())
    return "".join(lines)


def test_progress_on_a_terminal_and_in_a_log(pair: Box) -> None:
    order(pair, DECODE, "delay = { weights = 3, warmup = 1 }")
    restart(pair, DECODE)
    until("the load", lambda: live(pair, DECODE).get("phase") == "loading weights")
    main = pair.show(DECODE, "MainPID")["MainPID"]
    pair.run(["pkill", "-STOP", "-P", main]).check()  # the ranks, until both are looking
    terminal = {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    words = ["script", "--quiet", "--return", "--command", "pd-units wait-ready", "/dev/null"]
    screen = pair.popen(words, user="operator", env=terminal)
    log = pair.popen(["pd-units", "wait-ready"], user="operator")
    said = read_until(log.stderr, "dsv4-decode: starting: loading weights")
    drawn = read_until(screen.stdout, "dsv4-decode: starting: loading weights")
    pair.run(["pkill", "-CONT", "-P", main]).check()
    # Not communicate(): what readline() has read ahead would be lost.
    said, drawn, out = said + log.stderr.read(), drawn + screen.stdout.read(), log.stdout.read()
    assert (log.wait(), screen.wait()) == (0, 0)
    assert "\x1b" not in out + said
    assert len(said.splitlines()) < 20
    for text in ("dsv4-decode: ready after", "dsv4-router: ready"):
        assert text in said
        assert text in drawn
    assert "as a rule" in said
    assert "\x1b[3A" in drawn or "\x1b[4A" in drawn
    assert " of about " in drawn
    order(pair, DECODE, "")


def test_a_timeline_for_everybody(pair: Box) -> None:
    answer = pd_units(pair, "timeline", "dsv4", "--json", user="operator").check().json()
    (deployment,) = answer["deployments"]
    assert [unit["unit"] for unit in deployment["units"]] == list(UNITS)
    for unit in deployment["units"]:
        assert (unit["outcome"], unit["seconds"] > 0, unit["cause"]) == ("ready", True, "none")
    router = deployment["units"][2]
    assert router["compared_with"] >= 1
    assert [phase["name"] for phase in router["phases"]][:2] == ["gate", "router-starting"]
    text = pd_units(pair, "timeline", "--svg", "/tmp/start.svg", user="operator").check().out
    assert "dsv4-decode: ready after" in text
    assert "loading weights" in text
    ElementTree.fromstring(pair.read("/tmp/start.svg"))


def test_a_timeline_of_a_start_under_way(pair: Box) -> None:
    order(pair, DECODE, 'hang = "uvicorn"')
    restart(pair, DECODE)
    until("the load", lambda: live(pair, DECODE).get("phase") == "starting the HTTP server")
    text = pd_units(pair, "timeline", "dsv4", user="operator").check().out
    assert "dsv4-decode: starting for" in text
    pair.run(["systemctl", "stop", DECODE]).check()
    assert "dsv4-decode: starting" not in pd_units(pair, "timeline", "dsv4", user="operator").check().out
