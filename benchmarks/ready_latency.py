"""From the write of the ready line to the verdict: pd-units beside `journalctl -fu UNIT | grep -m1`.

    sudo python benchmarks/ready_latency.py [--starts 20] [--systemd 257] [--quick]

Boots a box, and starts a small engine there again and again: it serves HTTP at once, and notes when it writes
its ready line. Both watch the very same starts; a verdict is `active` in systemd for pd-units, and the end of
grep for the other. Also measured: what the watcher costs while nothing happens. Exit status 1 if a goal is
missed: median at most 25 ms and at most a tenth of grep's, under 1 % of one core.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from boxes import UNIT, booted, judged, percentiles, table

READY_LINE = "The server is fired up and ready to roll!"
# Takes the engine's place: milestones, a warm-up until it is told to go on, the ready line, and an answer to
# every /health.
ENGINE = """
import http.server, os, sys, threading, time
port = int(sys.argv[sys.argv.index("--port") + 1])
ready = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        known = self.path == "/health"
        self.send_response(404 if not known else 200 if ready.is_set() else 503)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *words):
        pass
def wait_for(name):
    while not os.path.exists("/run/engine/" + name):
        time.sleep(0.01)
os.write(2, b"[2026-01-02 03:04:05] server_args=ServerArgs(model_path='/m/x')\\n")
os.write(2, b"[2026-01-02 03:04:05] Load weight begin. avail mem=94.13 GB\\n")
wait_for("loaded")
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.write(2, b"[2026-01-02 03:04:05] INFO:     Uvicorn running on http://127.0.0.1\\n")
wait_for("warm")
ready.set()
written = time.monotonic()
os.write(2, b"[2026-01-02 03:04:05] READY_LINE\\n")
with open("/run/engine/written.new", "w") as file:
    file.write(repr(written))
os.rename("/run/engine/written.new", "/run/engine/written")
threading.Event().wait()
""".replace("READY_LINE", READY_LINE)
DROP_IN = """
[Service]
RuntimeDirectory=engine
ExecStart=
ExecStart=/usr/bin/python3 -I /usr/local/lib/engine.py --port 30000
"""
# What runs in the box shares this. A start is told to go on only once its watcher says that it follows.
COMMON = """
import json, os, subprocess, sys, threading, time
unit = sys.argv[1]
def show(name):
    command = ["systemctl", "show", "--value", "-p", name, unit]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
def until_watched(phase, before):
    deadline = time.monotonic() + 60
    while show("InvocationID") == before or show("StatusText") != phase:
        assert time.monotonic() < deadline, show("StatusText")
def begin():
    before = show("InvocationID")
    start = subprocess.Popen(["systemctl", "restart", unit])
    until_watched("loading weights", before)
    return start, before
def go_on(name):
    os.close(os.open("/run/engine/" + name, os.O_CREAT | os.O_WRONLY))
"""
# (seconds from the write to grep's end, seconds to `active`) of each start.
MEASURE = """
text, starts = sys.argv[2], int(sys.argv[3])
rows = []
for _ in range(starts):
    start, before = begin()
    go_on("loaded")
    follow = subprocess.Popen(["journalctl", "-f", "-n", "0", "-u", unit], stdout=subprocess.PIPE)
    grep = subprocess.Popen(["grep", "-m1", text], stdin=follow.stdout, stdout=subprocess.DEVNULL)
    seen = []
    waiter = threading.Thread(target=lambda: (grep.wait(), seen.append(time.monotonic())))
    waiter.start()
    until_watched("warming up", before)
    time.sleep(1)  # for journalctl, which does not say when it follows
    go_on("warm")
    assert start.wait(60) == 0
    waiter.join(10)
    follow.kill()
    written = float(open("/run/engine/written").read())
    rows.append((seen[0] - written, int(show("ActiveEnterTimestampMonotonic")) / 1e6 - written))
print(json.dumps(rows))
"""
# The share of one core that the watcher takes, in each phase.
COST = """
seconds, shares = float(sys.argv[2]), {}
start, before = begin()
for phase, after in (("loading weights", "loaded"), ("warming up", "warm")):
    until_watched(phase, before)
    path = "/proc/" + show("ControlPID") + "/schedstat"
    spent = lambda: int(open(path).read().split()[0]) / 1e9
    at, began = spent(), time.monotonic()
    time.sleep(seconds)
    shares[phase] = (spent() - at) / (time.monotonic() - began)
    go_on(after)
print(json.dumps(shares))
"""


def measure(starts: int, systemd: int, cost_s: float) -> tuple[list[Any], dict[str, float]]:
    """The latencies (s) of every start, and the watcher's share of a core by phase."""
    python = ["python3", "-I", "-c"]
    with booted(systemd) as box:
        box.write("/usr/local/lib/engine.py", ENGINE)
        box.write(f"/etc/systemd/system/{UNIT}.d/engine.conf", DROP_IN)
        box.run(["systemctl", "daemon-reload"]).check()
        command = [*python, COMMON + MEASURE, UNIT, READY_LINE, str(starts)]
        rows = box.run(command, timeout_s=60 + 30 * starts).check().json()
        command = [*python, COMMON + COST, UNIT, str(cost_s)]
        costs = box.run(command, timeout_s=120 + 2 * cost_s).check().json()
    return rows, costs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--systemd", type=int, default=257, choices=[252, 257])
    parser.add_argument("--quick", action="store_true", help="5 starts, short looks at the cost")
    asked = parser.parse_args()
    starts, cost_s = (5, 5.0) if asked.quick else (asked.starts, 20.0)
    rows, costs = measure(starts, asked.systemd, cost_s)
    grep, ours = ([1000 * row[column] for row in rows] for column in (0, 1))
    lines = [("from the ready line to the verdict", "median", "max")]
    for name, values in (("journalctl -fu UNIT | grep -m1", grep), ("pd-units: the unit is active", ours)):
        middle, most = percentiles(values)
        lines.append((name, f"{middle:.1f} ms", f"{most:.1f} ms"))
    ratio = [percentiles(ours)[number] / percentiles(grep)[number] for number in (0, 1)]
    lines.append(("ratio", f"1/{1 / ratio[0]:.0f}", f"1/{1 / ratio[1]:.0f}"))
    print(f"systemd {asked.systemd}, {starts} starts, each watched by both\n{table(lines)}\n")
    good = [
        judged("median", percentiles(ours)[0], 25, " ms"),
        judged("median, as a share of grep's", ratio[0], 0.1),
        *(judged(f"watcher, {phase}", 100 * cost, 1, " % of a core") for phase, cost in costs.items()),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
