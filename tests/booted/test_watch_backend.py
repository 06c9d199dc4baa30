"""The watcher of a backend against what journals, ports, signals and engines do to it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from watching import Lab, Server, all_of, lab

from rig.box import Box, until
from rig.images import Image

READY_LINE = "The server is fired up and ready to roll!"
BOTH, HTTP = "journal+http", "http"
SLOWLY = "delay = { weights = 2.5 }"
HANG = 'hang = "weights"'
# Answers 200 to everything on a port, and counts the questions.
SQUATTER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *words):
        print("asked", self.path, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def prepare(box: Box) -> None:
    """Long lines are cut early in this box, so that every start meets some."""
    box.write("/etc/systemd/journald.conf.d/test.conf", "[Journal]\nLineMax=1K\n")
    box.run(["systemctl", "restart", "systemd-journald.service"]).check()
    box.write("/usr/local/lib/squatter.py", SQUATTER)


@pytest.fixture(scope="module")
def servers(image: Image) -> Iterator[Lab]:
    with lab(image, prepare) as made:
        made.install("many", 10)
        made.install("newer", 1, version="0.5.23")
        made.install("quiet", 1, args='log-level = "warning"')
        made.install("strict", 1, readiness='timeout = "40s"\nno_progress = "3s"')
        made.install("short", 1, readiness='timeout = "4s"')
        made.install("longer", 2, readiness='timeout = "4s"\nno_progress = "3s"\nextend = "60s"')
        yield made


@pytest.fixture(autouse=True)
def cleared(servers: Lab) -> Iterator[None]:
    """Nothing of a test goes on beside the next one."""
    yield
    servers.clear()


@pytest.fixture
def server(servers: Lab) -> Server:
    """A server of its own for a test."""
    return servers.take("many")


def squat(box: Box, port: int) -> str:
    """Another HTTP server on a port; its unit."""
    unit = f"squatter-{port}.service"
    text = f"[Service]\nExecStart=/usr/bin/python3 -I /usr/local/lib/squatter.py {port}\n"
    box.write(f"/run/systemd/system/{unit}", text)
    box.sh(f"systemctl daemon-reload; systemctl start {unit}")
    until("the squatter", lambda: box.http(f"http://127.0.0.1:{port}/health")[0] == 200)
    return unit


# ------------------------------------------------------------------------------------------- what ready needs
@pytest.mark.parametrize("name", ["many", "newer"])
def test_ready_says_what_it_rests_on(servers: Lab, name: str) -> None:
    server = servers.take(name)
    server.ready()
    live = server.live()
    assert (live["state"], live["source"]) == ("ready", BOTH)
    assert [row["source"] for row in live["evidence"]] == ["journal", "http"]
    assert live["capacity"]["kv_tokens"] == 2_580_000
    start = server.start()
    assert (start["outcome"], start["evidence"]) == ("ready", BOTH)
    names = [phase["name"] for phase in start["phases"]]
    assert names.index("loading") < names.index("serving") < names.index("warming")
    assert 0 < start["phases"][-1]["at_s"] <= start["seconds"]


def test_a_ready_line_of_an_earlier_life_never_counts(server: Server) -> None:
    server.ready()
    server.order(HANG)
    before = server.show("InvocationID")
    server.box.run(["systemctl", "restart", "--no-block", server.unit]).check()
    until("the next life", lambda: server.show("InvocationID") not in ("", before))
    server.until_phase("loading weights")
    assert READY_LINE in server.box.journal(server.unit)
    assert server.live()["state"] == "waiting"
    # Killed, so that the watch must end: had it counted the old line, it would have ended before.
    server.box.run(["kill", "-KILL", server.main_pid()]).check()
    assert server.until_ended()["was_ready"] is False


def test_health_503_after_the_ready_line_is_left_to_the_clocks(servers: Lab) -> None:
    server = servers.take("strict")
    server.begin('health = "503"')
    end = server.until_ended()
    assert (end["timed_out"], end["cause"]) == (True, "no-progress")
    said = server.said()
    assert READY_LINE in said
    assert "the ready line came, but /health did not answer 200 (503)" in said


def test_the_whole_start_is_bounded(servers: Lab) -> None:
    server = servers.take("short")
    server.begin("delay = { weights = 60 }\nshards = 600")
    end = server.until_ended()
    assert (end["timed_out"], end["cause"]) == (True, "timeout")
    assert "not ready within 4 s, last phase: loading weights" in server.said()
    assert server.start()["outcome"] == "timed-out"


def test_real_progress_outlives_the_deadline_where_the_file_allows_it(servers: Lab) -> None:
    moving, stuck = servers.take("longer", 2)
    moving.drop_in("[Service]\nTimeoutStartSec=5\n")  # systemd's own limit must be extended too
    moving.begin("delay = { init = 2, weights = 2, kv = 2, graph = 2, uvicorn = 2 }")
    stuck.begin('hang = "init"')
    end = stuck.until_ended()
    assert (end["timed_out"], end["cause"] in ("timeout", "no-progress", "nccl")) == (True, True)
    moving.until_active()
    assert moving.start()["seconds"] > 8


def test_a_health_answer_on_its_way_is_waited_for(server: Server) -> None:
    server.begin('health = "slow:3"')
    live = server.until_active()
    took = next(row["text"] for row in live["evidence"] if row["source"] == "http")
    assert float(re.search(r"in ([\d.]+) s", took).group(1)) >= 3
    assert server.said().count("GET /health HTTP") <= 2


def test_ready_then_dead_at_once(servers: Lab) -> None:
    several = servers.take("many", 4)
    for server, after_s in zip(several, (0.0, 0.01, 0.05, 0.1), strict=True):
        server.begin(f'die_after_ready = {{ after_s = {after_s}, signal = "SEGV" }}')
    for server in several:
        server.until_over()
        end = server.end()
        assert (end["cause"], end["exit_status"]) == ("segfault", "SEGV")


def test_a_death_after_readiness_has_its_cause(servers: Lab) -> None:
    main, rank = servers.take("many", 2)
    main.ready()
    rank.ready()
    servers.box.run(["kill", "-BUS", main.main_pid()]).check()
    servers.box.run(["kill", "-KILL", rank.children()[0]]).check()
    for server, cause in ((main, "bus-error"), (rank, "child-died")):
        server.until_over()
        end = server.end()
        assert (end["was_ready"], end["cause"]) == (True, cause)
        assert end["evidence"]


def test_an_instant_death_has_its_cause(servers: Lab) -> None:
    """One short life in seven loses the invocation field of its lines."""
    several = servers.take("many", 8)
    for server in several:
        text = "launch_server.py: error: unrecognized arguments: --no-such-option"
        server.begin(f'fail = {{ phase = "args", raw = true, exit = 2, text = "{text}" }}')
    for server in several:
        end = server.until_ended()
        assert (end["cause"], end["retried"]) == ("bad-argument", False)
        assert "--no-such-option" in end["evidence"][0]["text"]


# ------------------------------------------------------------------------------------------- slow verdicts
def test_verdicts_that_take_their_time(servers: Lab) -> None:
    """All at once: HTTP alone confirms only after 10 s, a symptom settles for 8."""
    box = servers.box
    dropped, silent, squatted, defunct = servers.take("many"), servers.take("quiet"), *servers.take("many", 2)
    text = "[Service]\nLogRateLimitIntervalSec=10min\nLogRateLimitBurst=60\n"
    dropped.drop_in(text)
    dropped.begin('flood = { phase = "graph", lines = 500 }')
    silent.begin("delay = { weights = 1 }")
    squatter = squat(box, squatted.port)
    squatted.begin(HANG)
    defunct.begin(HANG)
    defunct.until_phase("loading weights")
    box.sh(f"kill -STOP {defunct.main_pid()}; kill -KILL {defunct.children()[0]}")

    def lost_by_the_rate_limit() -> None:
        assert dropped.until_active()["source"] == HTTP
        assert READY_LINE not in dropped.said()
        assert "by HTTP alone" in dropped.live()["detail"]

    def hidden_by_the_log_level() -> None:
        live = silent.until_active()
        assert live["source"] == HTTP
        assert any("its log level hides it" in row["text"] for row in live["evidence"])
        assert float(silent.start()["seconds"]) >= 10

    def nobody_elses_health() -> None:
        questions = lambda: box.journal(squatter).count("asked")  # noqa: E731
        until("many answers of the squatter", lambda: questions() >= 8, timeout_s=60)
        assert squatted.live()["state"] == "waiting"
        assert squatted.state == "activating/start-post"

    def a_rank_that_nobody_waited_for() -> None:
        assert defunct.until_ended()["cause"] == "child-died"

    all_of(
        [
            (each.__name__, each)
            for each in (
                lost_by_the_rate_limit,
                hidden_by_the_log_level,
                nobody_elses_health,
                a_rank_that_nobody_waited_for,
            )
        ]
    )


def test_a_port_that_another_server_has_is_a_failure_though_the_engine_lives_on(server: Server) -> None:
    squat(server.box, server.port)
    server.begin()
    end = server.until_ended()
    assert end["cause"] == "port-in-use"
    assert READY_LINE in server.said(), "the engine's warm-up met the other server"
    assert any("bind on address" in row["text"] for row in end["evidence"])


# ------------------------------------------------------------------------------------------- the journal
@pytest.mark.parametrize(
    "what",
    [
        "journalctl --rotate; journalctl --vacuum-size=1; journalctl --vacuum-time=1s",
        "systemctl restart systemd-journald.service",
        "systemctl kill --signal=KILL systemd-journald.service",
        "systemctl restart dbus.service",
        "systemctl daemon-reexec",
    ],
)
def test_a_start_is_watched_on_through(server: Server, what: str) -> None:
    server.begin(SLOWLY)
    server.until_phase("loading weights")
    server.box.sh(what)
    live = server.until_active()
    assert live["source"] == BOTH
    assert live["capacity"]["kv_tokens"] == 2_580_000


def test_a_journal_that_is_thrown_away_again_and_again(server: Server) -> None:
    server.begin("delay = { weights = 2 }\nshards = 40")
    server.until_phase("loading weights")
    while server.state != "active/running":
        server.box.sh("journalctl --rotate; rm -f /var/log/journal/*/system@*.journal")
    live = server.live()
    assert live["state"] == "ready"
    # What was deleted before anybody could open it is gone: then the verdict says that lines are missing.
    assert live["capacity"].get("kv_tokens") == 2_580_000 or any(
        "gaps" in row["text"] for row in live["evidence"]
    )


def test_a_damaged_journal_file(server: Server) -> None:
    server.begin(SLOWLY)
    server.until_phase("loading weights")
    server.box.sh(
        "journalctl --sync; file=$(ls /var/log/journal/*/system.journal); size=$(stat -c %s $file); "
        "dd if=/dev/urandom of=$file bs=4096 count=$((size / 8192)) seek=$((size / 16384)) conv=notrunc"
    )
    live = server.until_active()
    assert live["source"] in (BOTH, HTTP)
    server.box.sh(
        "journalctl --rotate; journalctl --vacuum-size=1; systemctl restart systemd-journald.service"
    )


def test_a_journal_namespace_of_its_own(server: Server) -> None:
    server.drop_in("[Service]\nLogNamespace=apart\n")
    server.ready()
    assert server.live()["source"] == BOTH
    assert READY_LINE not in server.said()
    server.box.run(["kill", "-SEGV", server.main_pid()]).check()
    server.until_over()
    assert server.end()["cause"] == "segfault", "PID 1's line is in the default journal"


def test_a_text_that_journald_cuts_in_two(server: Server) -> None:
    head = "x" * (1024 - 30)
    text = f"{head} RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    server.begin(f'fail = {{ phase = "kv", raw = true, exit = 1, text = "{text}" }}')
    assert server.until_ended()["cause"] == "oom-kv-cache"


def test_lines_that_are_not_text(server: Server) -> None:
    server.drop_in("[Service]\nExecStartPre=/bin/sh -c \"printf '\\\\377\\\\376 bad utf-8\\\\n'\"\n")
    server.ready(r'prints = { weights = "\u001b[31mred\u001b[0m \u0000 nul \u0085 \ud7ff" }')
    assert server.live()["source"] == BOTH


def test_an_operators_rules_with_a_fault_keep_no_start_down(server: Server) -> None:
    server.box.write("/etc/pd-units/rules.d/broken.toml", "schema = 1\n[[failure]]\npattern = '('\n")
    server.ready()
    server.box.run(["rm", "/etc/pd-units/rules.d/broken.toml"]).check()
    assert "left out" in server.said()


# ------------------------------------------------------------------------------------------- the watcher
def test_a_watcher_that_is_killed_never_leaves_the_unit_active(servers: Lab) -> None:
    signals = ("TERM", "KILL", "INT", "HUP", "SEGV", "QUIT", "PIPE", "USR1")
    several = servers.take("many", len(signals))
    for server in several:
        server.begin(HANG)
    for server, name in zip(several, signals, strict=True):
        watcher = server.watcher_pid()
        servers.box.run(["kill", f"-{name}", watcher]).check()
        if name == "PIPE":  # Python ignores it: the watch goes on
            servers.box.run(["kill", "-KILL", watcher]).check()
    all_of([(name, server.until_ended) for server, name in zip(several, signals, strict=True)])


def test_a_stop_while_loading_is_no_failure(servers: Lab) -> None:
    orders = (HANG, "delay = { weights = 20 }", f"{HANG}\nignore_term = true")
    several = servers.take("many", len(orders))
    for server, order in zip(several, orders, strict=True):
        server.drop_in("[Service]\nTimeoutStopSec=2\n")
        server.begin(order)
    for server in several:
        server.until_phase("loading weights")
    servers.box.run(["systemctl", "stop", *(server.unit for server in several)])
    for server, order in zip(several, orders, strict=True):
        # systemd itself calls a process that must be killed after TimeoutStopSec= a failure.
        assert server.state.split("/")[0] == ("failed" if "ignore" in order else "inactive"), order
        assert server.end()["requested"] is True
    waited = servers.wait_ready("many", "--timeout", "1s", *(f"--unit={server.unit}" for server in several))
    assert waited.rc == 40
    rows = waited.json()["deployments"][0]["units"]
    states = {row["unit"]: row["state"] for row in rows}
    assert {states[server.unit] for server in several} == {"stopped"}


def test_idle_costs_under_one_percent_of_a_core(server: Server) -> None:
    server.begin(HANG)
    server.until_phase("loading weights")
    path = f"/proc/{server.watcher_pid()}/schedstat"

    def sample() -> tuple[int, int]:
        return int(server.box.read(path).split()[0]), int(server.box.read("/proc/uptime").split(".")[0])

    before = sample()
    until("five seconds of the box's clock", lambda: sample()[1] >= before[1] + 5, every_s=0.5)
    after = sample()
    assert (after[0] - before[0]) / 1e9 < 0.02 * (after[1] - before[1])  # 0.6 % on an idle machine


def test_it_runs_nothing_of_the_engines_environment(servers: Lab) -> None:
    """The watcher is root: what the engine's variables point to must not run in it."""
    server = servers.take("many")
    server.box.write("/opt/evil/sitecustomize.py", "open('/root/evil', 'a').write('x')")
    server.box.write("/opt/evil/systemd.py", "open('/root/evil', 'a').write('x')")
    server.drop_in("[Service]\nEnvironment=PYTHONPATH=/opt/evil PYTHONHOME=/opt/evil\n")
    server.box.run(["systemctl", "start", "--no-block", server.unit]).check()
    server.until_over()  # the stub itself cannot run with such a PYTHONHOME
    assert not server.box.exists("/root/evil")


def test_its_files_are_for_everybody_and_hold_no_log_text(server: Server) -> None:
    server.ready('prints = { kv = "secret-in-the-log" }')
    shown = server.box.run(
        ["sh", "-c", "cat /run/pd-units/many/* /var/lib/pd-units/many/starts/*"], user="operator"
    ).out
    assert '"state": "ready"' in shown
    assert "secret-in-the-log" not in shown


def test_wait_ready_shows_phases_to_everybody(server: Server) -> None:
    server.begin("delay = { weights = 3, warmup = 2 }")
    waited = server.box.run(
        ["pd-units", "wait-ready", "many", "--unit", server.unit], user="operator"
    ).check()
    for phase in ("loading weights", "warming up", "ready after"):
        assert phase in waited.err
    assert "\x1b" not in waited.err + waited.out
    named = {line.split("] ")[1].split(":")[0] for line in waited.err.splitlines()}
    assert named == {server.unit.removesuffix(".service")}
