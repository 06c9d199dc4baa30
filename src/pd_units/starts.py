"""The history of starts: what each start of a unit went through, and when.

`/var/lib/pd-units/NAME/starts/UNIT.jsonl`, one object a start, the newest last, world-readable: no log text.
It tells how long a start takes as a rule, and shows the last one beside the earlier ones (`timeline`).
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pd_units.adapters.files import write_atomic, write_error
from pd_units.naming import Names

KEPT = 50
# Rewritten only when it has grown to this: appending is what a start that has just become ready can afford.
_REWRITE_BYTES = 256 * 1024
_MOST_PHASES = 100
# Starts that a typical time is taken from: the newest ready ones.
_TYPICAL_OF = 10


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """A phase and when it began, in seconds from the start of the unit's invocation."""

    name: str
    text: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a unit. `began` is seconds since the epoch; `outcome` is ready, failed or timed-out.

    `seconds` is the time to the verdict, from the start of the invocation. `evidence` says what a ready
    verdict rests on (readiness.Source).
    """

    unit: str
    invocation_id: str
    began: float
    outcome: str
    seconds: float
    cause: str = "none"
    evidence: str = ""
    phases: tuple[PhaseTime, ...] = ()

    def spans(self) -> tuple[tuple[PhaseTime, float], ...]:
        """Each phase with its length in seconds; the last one ends at the verdict."""
        ends = [phase.at_s for phase in self.phases[1:]] + [self.seconds]
        return tuple(
            (phase, max(0.0, end - phase.at_s)) for phase, end in zip(self.phases, ends, strict=True)
        )

    def length_of(self, name: str) -> float | None:
        """The time spent in the phase `name`, in all its spans; None if the start never was in it."""
        lengths = [length for phase, length in self.spans() if phase.name == name]
        return sum(lengths) if lengths else None


class PhaseLog:
    """The phases of a start under way, in the order of their first sight."""

    def __init__(self, earlier: Iterable[PhaseTime] = ()) -> None:
        self._times = list(earlier)

    def enter(self, name: str, text: str, at_s: float) -> None:
        """Note that the start is in this phase now."""
        if len(self._times) < _MOST_PHASES and (not self._times or self._times[-1].name != name):
            self._times.append(PhaseTime(name, text, round(max(0.0, at_s), 3)))

    @property
    def times(self) -> tuple[PhaseTime, ...]:
        """The phases so far."""
        return tuple(self._times)


def starts_path(names: Names, unit: str) -> Path:
    """Where the starts of a unit are kept."""
    return names.state_dir / "starts" / f"{unit}.jsonl"


def phases_from(rows: Iterable[Mapping[str, Any]]) -> tuple[PhaseTime, ...]:
    """Phases as they are kept: {"name", "text", "at_s"}."""
    return tuple(PhaseTime(str(row["name"]), str(row["text"]), float(row["at_s"])) for row in rows)


def note_start(names: Names, start: Start) -> None:
    """Add a start to the history. Raises: HostError 32."""
    path = starts_path(names, start.unit)
    line = json.dumps(asdict(start), ensure_ascii=False, separators=(",", ":"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        with path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write((b"\n" if torn else b"") + line.encode() + b"\n")
            os.fchmod(file.fileno(), 0o644)
        if size > _REWRITE_BYTES:
            kept = path.read_bytes().decode("utf-8", "replace").splitlines()[-KEPT:]
            write_atomic(path, "\n".join(kept) + "\n")
    except OSError as error:
        raise write_error(path, error) from error


def read_starts(names: Names, unit: str) -> tuple[Start, ...]:
    """The starts of a unit, the newest last; what cannot be read is left out."""
    try:
        lines = starts_path(names, unit).read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(start for line in lines[-KEPT:] if (start := _start(line)) is not None)


def _start(line: str) -> Start | None:
    try:
        row = json.loads(line)
        return Start(
            unit=row["unit"],
            invocation_id=row["invocation_id"],
            began=float(row["began"]),
            outcome=row["outcome"],
            seconds=float(row["seconds"]),
            cause=row.get("cause", "none"),
            evidence=row.get("evidence", ""),
            phases=phases_from(row.get("phases", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def ready_starts(starts: Sequence[Start], *, before: str = "") -> tuple[Start, ...]:
    """The newest ready starts, without the one of the invocation `before` and those after it."""
    ready = []
    for start in starts:
        if before and start.invocation_id == before:
            break
        if start.outcome == "ready":
            ready.append(start)
    return tuple(ready[-_TYPICAL_OF:])


def typical_s(starts: Sequence[Start], *, before: str = "") -> float | None:
    """How long a start takes as a rule: the median (s) of the newest ready ones; None without any."""
    seconds = [start.seconds for start in ready_starts(starts, before=before)]
    return statistics.median(seconds) if seconds else None


def typical_length_s(starts: Sequence[Start], name: str, *, before: str = "") -> float | None:
    """How long the phase `name` takes as a rule, in seconds; None if no ready start was in it."""
    every = [start.length_of(name) for start in ready_starts(starts, before=before)]
    lengths = [length for length in every if length is not None]
    return statistics.median(lengths) if lengths else None
