"""What an install would change, and why: pure data, computed before anything is touched.

`diff` and `install --check` print the very objects that `install` runs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pd_units.ports import ActiveState, UnitStatus
from pd_units.render import RenderedUnit
from pd_units.unitfile import UnitFile, parse_unit

# Directives that the running main process never received: a change there needs no restart.
_NOT_OF_MAIN = re.compile(
    r"Exec(Condition|StartPre|StartPost|Reload|Stop|StopPost)|Timeout\w*Sec|Restart\w*|RuntimeMaxSec|"
    r"NotifyAccess|KillMode|KillSignal|SendSIGKILL|SuccessExitStatus|Type"
)
_SECRET = re.compile(
    r"((?:--[\w-]*(?:api-key|token|secret|password)[\w-]*(?:=|\s+))"
    r"|(?:\w*(?:TOKEN|SECRET|PASSWORD|API_KEY|APIKEY|CREDENTIAL)\w*=))(\"[^\"]*\"|\S+)",
    re.IGNORECASE,
)


class Kind(StrEnum):
    """What is done to a unit."""

    WRITE = "write"
    REMOVE = "remove"
    ENABLE = "enable"
    DISABLE = "disable"
    RELOAD = "reload-daemon"
    START = "start"
    RESTART = "restart"
    STOP = "stop"
    RETIRE = "retire"
    KEEP = "keep"


class Ownership(StrEnum):
    """Whose a file of our name is."""

    ABSENT = "absent"
    OURS = "ours"
    MODIFIED = "modified"
    FOREIGN = "foreign"
    MASKED = "masked"


@dataclass(frozen=True, slots=True)
class Change:
    """One change, with its reason; `diff` is a unified diff, secrets masked."""

    unit: str
    kind: Kind
    reason: str
    diff: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The contract's object."""
        value: dict[str, Any] = {"unit": self.unit, "kind": str(self.kind), "reason": self.reason}
        if self.diff is not None:
            value["diff"] = self.diff
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledUnit:
    """A unit of ours on the host now: its file (None if absent), whose it is, and the manager's view."""

    name: str
    text: str | None
    ownership: Ownership
    status: UnitStatus | None = None
    restart_pending: bool = False

    @property
    def enabled(self) -> bool:
        """Whether it starts at boot."""
        return self.status is not None and self.status.unit_file_state == "enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledState:
    """Everything on the host that an install looks at."""

    units: Mapping[str, InstalledUnit]
    target: InstalledUnit
    shared: Mapping[str, InstalledUnit]
    obsolete: Mapping[str, InstalledUnit]
    retired: Mapping[str, UnitStatus]


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes in the order in which they are made."""

    changes: tuple[Change, ...]

    @property
    def changed(self) -> bool:
        """Whether anything would change."""
        return any(change.kind is not Kind.KEEP for change in self.changes)

    def of(self, *kinds: Kind) -> tuple[Change, ...]:
        """The changes of these kinds."""
        return tuple(change for change in self.changes if change.kind in kinds)

    def units(self, *kinds: Kind) -> tuple[str, ...]:
        """The units of the changes of these kinds."""
        return tuple(change.unit for change in self.of(*kinds))


def plan_changes(
    rendered: Sequence[RenderedUnit], shared: Sequence[RenderedUnit], state: InstalledState, *, start: bool
) -> ChangeSet:
    """The changes that make the host as rendered. With `start` false, nothing is started or restarted."""
    changes = _remove(state)
    writes = [*_writes(shared, state.shared), *_writes(rendered, state.units)]
    enables = _enable(rendered, state)
    changes += [*writes, *enables]
    if changes or _stale(state):
        # Enabling makes symlinks: systemd reads those, too, only when it reloads.
        reason = "unit files change" if changes else "unit files changed on disk since the last reload"
        changes.append(Change("-", Kind.RELOAD, reason))
    if start:
        changes += _starts(rendered, state)
    changes = [*_retire(state), *changes]
    touched = {change.unit for change in changes}
    changes += [
        Change(unit.name, Kind.KEEP, "as declared, " + _words(state.units.get(unit.name)))
        for unit in rendered
        if unit.name not in touched
    ]
    return ChangeSet(tuple(changes))


def _retire(state: InstalledState) -> list[Change]:
    changes = []
    for name, status in state.retired.items():
        what = []
        if status.exists and status.active_state not in (ActiveState.INACTIVE, ActiveState.FAILED):
            what.append(f"is {status.active_state}")
        if status.unit_file_state in ("enabled", "enabled-runtime"):
            what.append("starts at boot")
        if what:
            changes.append(Change(name, Kind.RETIRE, f"this deployment replaces it; it {' and '.join(what)}"))
    return changes


def _remove(state: InstalledState) -> list[Change]:
    changes = []
    for name, unit in state.obsolete.items():
        changes.append(Change(name, Kind.STOP, "no longer declared"))
        changes.append(Change(name, Kind.DISABLE, "no longer declared"))
        if unit.text is not None:
            changes.append(Change(name, Kind.REMOVE, "no longer declared", unified(name, unit.text, "")))
    return changes


def _writes(rendered: Iterable[RenderedUnit], installed: Mapping[str, InstalledUnit]) -> list[Change]:
    changes = []
    for unit in rendered:
        old = installed[unit.name].text
        if old == unit.text:
            continue
        reason = "not there yet" if old is None else (describe(old, unit.text) or "comments changed")
        changes.append(Change(unit.name, Kind.WRITE, reason, unified(unit.name, old or "", unit.text)))
    return changes


def _stale(state: InstalledState) -> bool:
    return any(u.status is not None and u.status.need_daemon_reload for u in state.units.values())


def _enable(rendered: Iterable[RenderedUnit], state: InstalledState) -> list[Change]:
    units = [state.units[unit.name] for unit in rendered] + [state.target]
    return [Change(unit.name, Kind.ENABLE, "is to start at boot") for unit in units if not unit.enabled]


def _starts(rendered: Iterable[RenderedUnit], state: InstalledState) -> list[Change]:
    changes = []
    for unit in rendered:
        installed = state.units[unit.name]
        change = _start(unit, installed)
        if change is not None:
            changes.append(change)
    target = state.target.status
    if changes or target is None or target.active_state is not ActiveState.ACTIVE:
        active = target is not None and target.active_state is ActiveState.ACTIVE
        if not active:
            changes.append(Change(state.target.name, Kind.START, "groups the deployment's units"))
    return changes


def _start(unit: RenderedUnit, installed: InstalledUnit) -> Change | None:
    status = installed.status
    if status is None or status.active_state in (ActiveState.INACTIVE, ActiveState.FAILED):
        if status is not None and status.job_id and status.job_type == "start":
            return None  # queued behind the units it is ordered after
        reason = "is not running" if status is None else f"is {_state_word(status)}"
        return Change(unit.name, Kind.START, reason)
    why = main_changes(installed.text or "", unit.text)
    if installed.restart_pending and not why:
        why = "an interrupted install left a new file and the old process"
    if status.sub_state.startswith("auto-restart"):
        return Change(unit.name, Kind.RESTART, why or "waits for an automatic restart after a failure")
    if why:
        return Change(unit.name, Kind.RESTART, why)
    return None


def _state_word(status: UnitStatus) -> str:
    return "stopped" if status.active_state is ActiveState.INACTIVE else str(status.active_state)


def _words(unit: InstalledUnit | None) -> str:
    if unit is None or unit.status is None:
        return "not looked at"
    return f"{unit.status.active_state}"


def main_changes(old: str, new: str) -> str:
    """Why the running main process must be replaced, "" if it received nothing that changed."""
    before, after = _main_directives(old), _main_directives(new)
    return "; ".join(
        _describe_key(key, before.get(key, ()), after.get(key, ())) for key in _differing(before, after)
    )


def describe(old: str, new: str) -> str:
    """What differs between two unit files, by directive."""
    before, after = _directives(parse_unit(old)), _directives(parse_unit(new))
    return "; ".join(
        _describe_key(key, before.get(key, ()), after.get(key, ())) for key in _differing(before, after)
    )


def _differing(before: Mapping[str, tuple[str, ...]], after: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [key for key in {**before, **after} if before.get(key, ()) != after.get(key, ())]


def _main_directives(text: str) -> dict[str, tuple[str, ...]]:
    every = _directives(parse_unit(text), sections=("Service",))
    return {key: value for key, value in every.items() if not _NOT_OF_MAIN.fullmatch(key)}


def _directives(unit: UnitFile, sections: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for entry in unit.entries:
        if not sections or entry.section in sections:
            found.setdefault(entry.key, []).append(entry.value)
    return {key: tuple(values) for key, values in found.items()}


def _describe_key(key: str, before: Sequence[str], after: Sequence[str]) -> str:
    if key in ("ExecStart", "ExecStartPost", "ExecStartPre", "ExecStopPost") and before and after:
        return f"{key} changed: {mask(_describe_words(before[0].split(), after[0].split()))}"
    gone = [value for value in before if value not in after]
    come = [value for value in after if value not in before]
    if len(gone) == len(come) == 1:
        return mask(f"{key} changed: {gone[0]} -> {come[0]}")
    parts = [f"{key} added: {value}" for value in come] + [f"{key} removed: {value}" for value in gone]
    return mask("; ".join(parts)) or f"{key} reordered"


def _describe_words(before: Sequence[str], after: Sequence[str]) -> str:
    old, new = _options(before), _options(after)
    parts = []
    for name in {**old, **new}:
        if old.get(name) == new.get(name):
            continue
        if name not in old:
            parts.append(f"{name} {new[name]} added".replace("  ", " "))
        elif name not in new:
            parts.append(f"{name} {old[name]} removed".replace("  ", " "))
        else:
            parts.append(f"{name} {_value(name, old[name])} -> {_value(name, new[name])}".strip())
    return ", ".join(parts) or "order of words"


def _value(name: str, value: str) -> str:
    return mask(f"{name} {value}").removeprefix(f"{name} ")


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options of a command line and their values; the command itself under "command"."""
    found: dict[str, list[str]] = {"command": []}
    name = "command"
    for word in words:
        if word.startswith("--"):
            name = word
            found.setdefault(name, [])
        else:
            found[name].append(word)
    return {key: " ".join(values) for key, values in found.items()}


def unified(name: str, old: str, new: str) -> str:
    """A unified diff of a unit file, secrets masked."""
    path = f"/etc/systemd/system/{name}"
    lines = difflib.unified_diff(
        mask(old).splitlines(),
        mask(new).splitlines(),
        fromfile=path if old else "/dev/null",
        tofile=path if new else "/dev/null",
        lineterm="",
    )
    return "\n".join(lines)


def mask(text: str) -> str:
    """The text with the values of secrets (tokens, keys, passwords) replaced."""
    return _SECRET.sub(r"\1***", text)
