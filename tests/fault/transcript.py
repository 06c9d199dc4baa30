"""A terminal's transcript made reproducible: no times, no process IDs, tables laid out anew."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PROGRESS = re.compile(r"\[ *\d+\.\d s\] (?P<unit>[\w-]+): (?P<what>.*)")
_SECONDS = re.compile(r"\b\d+\.\d+ s\b")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_COLUMNS = re.compile(r"  +")
# What only the throw-away box is to be blamed for.
_OF_THE_BOX = re.compile(
    r"preflight warning: .*|warning: .*could not raise its limit on open files|warning: .*no binding"
    # Whether the watcher or systemd was the first to see an end is chance.
    r"|  watcher: .*"
)
_TABLES = ("UNIT ", "   GENERATION ")


def tidy(text: str) -> str:
    """The output of one command, the same from run to run.

    Progress is shortened to each unit's last word of it, in the order of the units' starts; the journal's
    last lines, and warnings that only concern the box, are left out.
    """
    return "\n".join(_tables(_stages(text.splitlines())))


def _stages(lines: Iterable[str]) -> list[str]:
    """Each run of progress lines as one line a unit: which phases are seen in passing is chance."""
    kept: list[str] = []
    last: dict[str, str] = {}

    def end() -> None:
        order = sorted(last, key=lambda unit: ("-router" in unit, "-decode" in unit, unit))
        kept.extend(f"[  ... s] {unit}: {_plain(last[unit])}" for unit in order)
        last.clear()

    skipping = False
    for line in lines:
        skipping = line.startswith("    ") and skipping
        match = _PROGRESS.fullmatch(line)
        if match is not None:
            what = _plain(match["what"])
            if re.search(r"ready after|failed|restarting:", what):
                last[match["unit"]] = what
            continue
        end()
        if not skipping and not _OF_THE_BOX.fullmatch(line):
            kept.append(_plain(line))
        if line == "  last lines:":
            kept.append("    ...")
            skipping = True
    end()
    return kept


def _plain(line: str) -> str:
    line = re.sub(r" \(ready after [^)]*as a rule\)", "", line)
    line = re.sub(r"process \d+", "process 4711", line)
    line = re.sub(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]", "[...]", line)
    return _MOMENT.sub("2026-11-29T14:..:..Z", _SECONDS.sub("... s", line))


def _tables(lines: list[str]) -> list[str]:
    """The same lines with every table laid out anew: its cells have other widths now."""
    done: list[str] = []
    table: list[list[str]] = []
    for line in [*lines, ""]:
        cells = _COLUMNS.split(line.strip())
        # A row that is current begins with a star in a column of its own.
        cells = cells if line.startswith("* ") else ["", *cells] if line.startswith("   ") else cells
        if table and len(cells) in (len(table[0]), len(table[0]) - 1) and line.strip():
            row = cells + [""] * (len(table[0]) - len(cells))
            if "starting" in row[:2]:
                row[-1] = "..."  # how far it has come is chance
            table.append(row)
            continue
        if table:
            widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
            done += [
                "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table
            ]
            table = []
        if line.startswith(_TABLES):
            table = [cells]
        else:
            done.append(line)
    return done[:-1]
