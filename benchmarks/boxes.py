"""A booted box for a benchmark: the rig of the tests, with this tree installed."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from rig.box import Box
from rig.product import image_for

DEPLOYMENT = """
[deployment]
name = "one"

[engine]
kind = "sglang"
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"

[[standalone]]
gpus = [0]
numa = "none"
port = 30000
"""
UNIT = "one-standalone.service"


@contextlib.contextmanager
def booted(systemd: int, *, size: str = "2g") -> Iterator[Box]:
    """A box with one server installed and not started; root is needed."""
    if os.geteuid() != 0:
        raise SystemExit("booting a box needs root")
    with Box(image_for(systemd), size=size) as box:
        box.write("/etc/pd-units/one.toml", DEPLOYMENT)
        box.run(["pd-units", "install", "--skip", "gpu", "--no-start"]).check()
        yield box


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and maximum."""
    return statistics.median(values), max(values)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns; the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def judged(name: str, value: float, goal: float, unit: str = "") -> bool:
    """Print a figure beside its goal (at most); whether it is met."""
    good = value <= goal
    print(f"{'ok  ' if good else 'MISS'}  {name}: {value:.3g}{unit}, goal at most {goal:g}{unit}")
    return good
