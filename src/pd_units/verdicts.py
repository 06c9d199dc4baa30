"""What the watchers leave behind: the verdict of the life under way, and how each life ended.

A verdict lies in /run/pd-units/NAME/UNIT.json, world-readable, and is replaced while a unit starts: phase,
progress, capacity, warnings, cause; no log text, which may hold secrets. The end of a life lies in
/var/lib/pd-units/NAME/ends/UNIT.json, world-readable too; its log lines lie beside it in UNIT.lines.json, for
root and the journal's readers. All name the invocation they speak of; a reader ignores those of another one.
"""

from __future__ import annotations

import contextlib
import grp
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pd_units.adapters.files import read_json, write_json
from pd_units.naming import Names

_JOURNAL_GROUP = "systemd-journal"
# Fields of an end that hold log text.
_LINES = ("evidence", "last_lines")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveVerdict:
    """The life under way, as its watcher sees it.

    `state` is a readiness.State; for a router also "gate" while it waits for its backends and "gate-passed"
    after that. `since` is the start of the invocation, in seconds since the epoch; `seconds` the time from
    there to the verdict. `evidence` holds (text, source) pairs that a ready verdict rests on; `phases` the
    start's phases so far, as in starts.PhaseTime. `backends` maps each backend unit of a router to its
    invocation: those that the gate let pass, or, once ready, those that a generation went through.
    """

    unit: str
    invocation_id: str
    state: str
    phase: str | None = None
    detail: str = ""
    cause: str = "none"
    source: str | None = None
    since: float = 0.0
    seconds: float | None = None
    capacity: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[Mapping[str, str], ...] = ()
    backends: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[Mapping[str, str], ...] = ()
    phases: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfLife:
    """How a life ended.

    `was_ready` says whether it had become ready; `requested` whether somebody asked for the stop; `timed_out`
    whether a clock ran out with the engine alive; `by_watcher` whether the watcher killed the engine, so that
    the exit status tells only of that.
    `service_result`, `exit_code` and `exit_status` are systemd's words (systemd.exec(5)).
    `evidence` holds (text, source) pairs.
    """

    unit: str
    invocation_id: str
    ended: float
    was_ready: bool = False
    requested: bool = False
    timed_out: bool = False
    by_watcher: bool = False
    cause: str = "unknown"
    phase: str | None = None
    retried: bool = True
    service_result: str = ""
    exit_code: str = ""
    exit_status: str = ""
    advice: str = ""
    evidence: tuple[Mapping[str, str], ...] = ()
    last_lines: tuple[str, ...] = ()
    warnings: tuple[Mapping[str, str], ...] = ()
    capacity: Mapping[str, float] = field(default_factory=dict)


def _live_path(names: Names, unit: str) -> Path:
    return names.run_dir / f"{unit}.json"


def _end_path(names: Names, unit: str) -> Path:
    return names.state_dir / "ends" / f"{unit}.json"


def write_live(names: Names, verdict: LiveVerdict) -> None:
    """Replace the live verdict of a unit."""
    write_json(_live_path(names, verdict.unit), asdict(verdict))


def read_live(names: Names, unit: str, invocation_id: str) -> LiveVerdict | None:
    """The live verdict of this invocation of a unit, None if there is none."""
    return _read(LiveVerdict, _live_path(names, unit), invocation_id)


def read_last_live(names: Names, unit: str) -> LiveVerdict | None:
    """The live verdict of a unit, of whichever invocation; it outlives a unit that is stopped."""
    value = read_json(_live_path(names, unit))
    return read_live(names, unit, str(value.get("invocation_id"))) if value is not None else None


def write_end(names: Names, end: EndOfLife) -> None:
    """Record how a life ended: what everybody may know, and its log lines for the journal's readers."""
    group, mode = None, 0o600
    with contextlib.suppress(KeyError):
        group, mode = grp.getgrnam(_JOURNAL_GROUP).gr_gid, 0o640
    record = asdict(end)
    lines = {"invocation_id": end.invocation_id, **{name: record.pop(name) for name in _LINES}}
    path = _end_path(names, end.unit)
    write_json(path.with_suffix(".lines.json"), lines, mode=mode, group=group)
    write_json(path, record)


def read_end(names: Names, unit: str, invocation_id: str) -> EndOfLife | None:
    """How this invocation of a unit ended, None if it is not recorded; without lines one may not read."""
    path = _end_path(names, unit)
    end = _read(EndOfLife, path, invocation_id)
    lines = read_json(path.with_suffix(".lines.json"))
    if end is None or lines is None or lines.get("invocation_id") != invocation_id:
        return end
    evidence, last_lines = (tuple(lines.get(name, ())) for name in _LINES)
    return replace(end, evidence=evidence, last_lines=last_lines)


def read_last_end(names: Names, unit: str) -> EndOfLife | None:
    """The last recorded end of a unit, of whichever invocation."""
    value = read_json(_end_path(names, unit))
    return read_end(names, unit, str(value.get("invocation_id"))) if value is not None else None


def _read(kind: type[T], path: Path, invocation_id: str) -> T | None:
    value: dict[str, Any] | None = read_json(path)
    if value is None or value.get("invocation_id") != invocation_id:
        return None
    known = {name: value[name] for name in kind.__dataclass_fields__ if name in value}  # type: ignore[attr-defined]
    try:
        return kind(**known)
    except TypeError:
        return None
