"""How fast a flood of lines is classified, against how fast journald takes lines in and a reader gives them.

    sudo python benchmarks/flood.py --boxed 257
    python benchmarks/flood.py [--lines 400000] [--memory-lines 5000000] [--no-journal]

Everything is measured in this one run, and printed as rates and ratios: with --boxed in a box of that
systemd, else on this machine, where the ratios to journald are left out if it has none. Exit status 1 if a
ratio misses its goal: classification faster than journald's intake, at least a quarter of the raw reading
rate, and memory below 60 MiB.
"""

from __future__ import annotations

import argparse
import importlib
import random
import socket
import string
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pd_units.diagnosis import Classifier, load_rules

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
LAUNCH = "[2026-01-02 03:04:05] server_args=ServerArgs(model_path='/m/x')"
GOAL_MEMORY_MIB = 60


def batches(count: int) -> Iterator[str]:
    """What a busy engine prints."""
    for n in range(count):
        yield (
            f"[2026-01-02 03:04:{n % 60:02d} TP0] Decode batch, #running-req: {n % 32}, #token: {n}, token "
            f"usage: 0.{n % 100:02d}, cuda graph: True, gen throughput (token/s): {n * 1.37:.2f}, #queue: 0"
        )


def notices(count: int) -> Iterator[str]:
    """Tuning notices: six figures of them in one good start."""
    for n in range(count):
        yield (
            f"[2026-01-02 03:04:05 TP{n % 8}] Using default W8A8 Block FP8 kernel config. Performance might "
            f"be sub-optimal! Config file not found at /opt/configs/N={n},K=2048,device_name=GPU.json"
        )


def strangers(count: int) -> Iterator[str]:
    """Lines no two of which are alike."""
    chance = random.Random(7)
    letters = string.ascii_letters + "    "
    for _ in range(count):
        yield "".join(chance.choices(letters, k=100))


FLOODS: dict[str, Callable[[int], Iterator[str]]] = {
    "batches": batches,
    "notices": notices,
    "strangers": strangers,
}


def rate(work: Callable[[], object], count: int) -> float:
    """Lines a second."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def classify_rate(lines: list[str]) -> float:
    """Lines a second through the classifier's fast path."""
    classifier = Classifier(RULES)
    classifier.feed(LAUNCH)
    return rate(lambda: classifier.feed_many(lines), len(lines))


def intake_rate(lines: list[str], mark: str) -> float:
    """Lines a second that journald takes: each send waits until there is room."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(JOURNAL_SOCKET))

        def send() -> None:
            for line in lines:
                sender.send(f"MESSAGE={line}\nSYSLOG_IDENTIFIER={mark}\nPRIORITY=6\n".encode())

        return rate(send, len(lines))


def reading_rate(mark: str) -> tuple[float, int]:
    """Entries a second that the reader gives, MESSAGE alone, and how many there were."""
    reader = importlib.import_module("systemd._reader")._Reader()
    reader.add_match(f"SYSLOG_IDENTIFIER={mark}")
    reader.seek_head()
    count = 0
    began = time.perf_counter()
    while reader._next(1):
        reader._get("MESSAGE")
        count += 1
    return count / (time.perf_counter() - began), count


def peak_memory_mib(count: int) -> float:
    """Peak resident memory (MiB) of a process of its own that classifies `count` lines."""
    answer = subprocess.run(
        [sys.executable, __file__, "--child", str(count)], check=True, capture_output=True, text=True
    )
    return float(answer.stdout)


def child(count: int) -> None:
    classifier = Classifier(RULES)
    classifier.feed(LAUNCH)
    for make in FLOODS.values():
        classifier.feed_many(make(count // len(FLOODS)))
    status = Path("/proc/self/status").read_text()  # ru_maxrss would count the parent's memory, too
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def journal_ratios(lines: list[str], classified: float) -> bool:
    """Print the ratios to journald; False if one misses its goal."""
    mark = f"flood-{uuid.uuid4().hex[:8]}"
    intake = intake_rate(lines, mark)
    print(f"journald takes in      {intake:12,.0f} lines/s   classified {classified / intake:5.1f} times it")
    raw, count = reading_rate(mark)
    if not count:
        print("the journal could not be read back: no ratio to reading")
        return classified > intake
    print(f"the reader alone gives {raw:12,.0f} entries/s classified {classified / raw:5.1f} times that")
    return classified > intake and classified >= raw / 4


def boxed(systemd: int, options: Sequence[object]) -> int:
    """The same in a box; its exit status."""
    from boxes import booted  # with the rig of the tests, which a box has not

    path = "/usr/local/lib/flood.py"
    with booted(systemd, size="4g") as box:
        box.write(path, Path(__file__).read_text())
        argv = ["/opt/pd-units/bin/python", "-I", path, *map(str, options)]
        return subprocess.run(box.argv(argv), stdin=subprocess.DEVNULL).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=400_000)
    parser.add_argument("--memory-lines", type=int, default=5_000_000)
    parser.add_argument("--no-journal", action="store_true")
    parser.add_argument("--boxed", type=int, choices=[252, 257], metavar="SYSTEMD")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.boxed:
        return boxed(options.boxed, ["--lines", options.lines, "--memory-lines", options.memory_lines])
    if options.child:
        child(options.child)
        return 0
    good = True
    rates = {}
    for name, make in FLOODS.items():
        lines = list(make(options.lines))
        rates[name] = classify_rate(lines)
        alone = rate(lambda lines=lines: [line for line in lines if "exit" in line], len(lines))
        print(f"{name:22} {rates[name]:12,.0f} lines/s   (one search a line: {alone:,.0f})")
    if options.no_journal or not JOURNAL_SOCKET.exists():
        print("no journald here: no ratios to it")
    else:
        good = journal_ratios(list(batches(min(options.lines, 200_000))), min(rates.values())) and good
    memory = peak_memory_mib(options.memory_lines)
    print(f"peak memory            {memory:12.1f} MiB for {options.memory_lines:,} lines")
    return 0 if good and memory < GOAL_MEMORY_MIB else 1


RULES = load_rules(extra_dirs=())

if __name__ == "__main__":
    sys.exit(main())
