"""What an install would change, and why: pure data, computed before anything is touched.

`diff` and `install --check` print the very objects that `install` runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pd_units.adapters.dropins import DropIn
from pd_units.differences import (
    describe,
    describe_keys,
    differing,
    directives_diff,
    main_changes,
    main_directives,
    service_directives,
    unified,
)
from pd_units.ports import ActiveState, UnitStatus
from pd_units.received import Received, texts_of
from pd_units.rendered import RenderedUnit


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


_GOES_ON = "it runs until the next install that starts units, or the next boot"


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
    """A unit of ours on the host now: its file (None if absent), whose it is, and the manager's view.

    `received` is what its process was started with, where that is known; `env_files` are digests of the
    environment files now; `restart_pending` says that an interrupted operation meant to restart this very
    process.
    """

    name: str
    text: str | None
    ownership: Ownership
    status: UnitStatus | None = None
    drop_ins: tuple[DropIn, ...] = ()
    received: Received | None = None
    env_files: Mapping[str, str] = field(default_factory=dict)
    drop_ins_unread: bool = False
    restart_pending: bool = False

    @property
    def unread(self) -> bool:
        """Whether its files changed on disk since systemd read them."""
        status = self.status
        return status is not None and status.exists and (status.need_daemon_reload or self.drop_ins_unread)

    @property
    def enabled(self) -> bool:
        """Whether it starts at boot."""
        return self.status is not None and self.status.unit_file_state == "enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledState:
    """Everything on the host that an install looks at.

    `unfinished` says that an operation broke off before systemd had read its files; `exchanged` are the units
    that have a GPU or a port which another unit of the deployment is to have.
    """

    units: Mapping[str, InstalledUnit]
    target: InstalledUnit
    shared: Mapping[str, InstalledUnit]
    obsolete: Mapping[str, InstalledUnit]
    retired: Mapping[str, UnitStatus]
    unfinished: bool = False
    exchanged: frozenset[str] = frozenset()


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
    """The changes that make the host as rendered.

    With `start` false, nothing is started, restarted or stopped: what runs and is replaced is only disabled.
    The next boot has the new set then, and the next install stops it.
    """
    staged = () if start else _still_running(state)
    changes = _remove(state, staged, start=start)
    changes += [
        *_writes(shared, state.shared),
        *_writes(rendered, state.units),
        *_enable(rendered, shared, state),
    ]
    reload = _reload_reason(changes, state)
    if reload:
        changes.append(Change("-", Kind.RELOAD, reload))
    if start:
        changes += _starts(rendered, state)
    changes = [*_retire(state, staged), *changes]
    touched = {change.unit for change in changes}
    changes += [
        Change(unit.name, Kind.KEEP, "as declared, " + _words(state.units.get(unit.name)))
        for unit in rendered
        if unit.name not in touched
    ]
    changes += [Change(name, Kind.KEEP, _GOES_ON) for name in staged if name not in touched]
    return ChangeSet(tuple(changes))


def _still_running(state: InstalledState) -> tuple[str, ...]:
    """The units at work that the deployment no longer declares, or retires."""
    obsolete = {name: unit.status for name, unit in state.obsolete.items()}
    return tuple(name for name, status in {**obsolete, **state.retired}.items() if _runs(status))


def _runs(status: UnitStatus | None) -> bool:
    return status is not None and status.exists and not status.is_down


def _retire(state: InstalledState, staged: Collection[str]) -> list[Change]:
    changes = []
    for name, status in state.retired.items():
        what = []
        if _runs(status):
            what.append(
                "is about to start"
                if status.active_state is ActiveState.INACTIVE
                else f"is {status.active_state}"
            )
        at_boot = status.unit_file_state in ("enabled", "enabled-runtime")
        if at_boot:
            what.append("starts at boot")
        if name in staged and at_boot:
            changes.append(Change(name, Kind.DISABLE, f"this deployment replaces it; {_GOES_ON}"))
        elif name not in staged and what:
            changes.append(Change(name, Kind.RETIRE, f"this deployment replaces it; it {' and '.join(what)}"))
    return changes


def _remove(state: InstalledState, staged: Collection[str], *, start: bool) -> list[Change]:
    changes = []
    for name, unit in state.obsolete.items():
        if name in staged:
            if unit.enabled:
                changes.append(Change(name, Kind.DISABLE, f"no longer declared; {_GOES_ON}"))
            continue
        if start:
            changes.append(Change(name, Kind.STOP, "no longer declared"))
        changes.append(Change(name, Kind.DISABLE, "no longer declared"))
        if unit.text is not None:
            changes.append(Change(name, Kind.REMOVE, "no longer declared", unified(name, unit.text, "")))
    return changes


def _writes(rendered: Iterable[RenderedUnit], installed: Mapping[str, InstalledUnit]) -> list[Change]:
    changes = []
    for unit in rendered:
        old = installed[unit.name]
        if old.text == unit.text:
            continue
        reason = "not there yet"
        if old.text is not None:
            reason = describe(old.text, unit.text) or "comments changed"
        if old.ownership is Ownership.MODIFIED:
            reason = f"changed by hand since pd-units wrote it: {reason}"
        elif old.ownership is Ownership.FOREIGN:
            reason = f"a file that pd-units did not write is there: {reason}"
        changes.append(
            Change(
                unit.name, Kind.WRITE, reason + _beside(old), unified(unit.name, old.text or "", unit.text)
            )
        )
    return changes


def _beside(unit: InstalledUnit) -> str:
    """The drop-ins that stay, for a reason's end."""
    return f"; stays: {', '.join(each.path for each in unit.drop_ins)}" if unit.drop_ins else ""


def _reload_reason(changes: Sequence[Change], state: InstalledState) -> str:
    if changes:
        return "unit files change"  # enabling makes symlinks: systemd reads those, too, only when it reloads
    if state.unfinished:
        return "an interrupted operation may not have come to its reload"
    stale = [unit.name for unit in (*state.units.values(), state.target) if unit.unread]
    return f"files of {', '.join(stale)} changed on disk since systemd read them" if stale else ""


def _enable(
    rendered: Iterable[RenderedUnit], shared: Iterable[RenderedUnit], state: InstalledState
) -> list[Change]:
    units = [state.units[unit.name] for unit in rendered] + [state.target]
    changes = [Change(unit.name, Kind.ENABLE, "is to start at boot") for unit in units if not unit.enabled]
    for unit in shared:
        installed = state.shared[unit.name]
        if is_own_service(unit) and not installed.enabled:
            reason = "finishes at boot what an interrupted install left undone"
            changes.append(Change(unit.name, Kind.ENABLE, reason))
    return changes


def is_own_service(unit: RenderedUnit) -> bool:
    """Whether it is a service of pd-units itself, not of a deployment."""
    return unit.role is None and unit.name.endswith(".service")


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
            if installed.text not in (None, unit.text):
                return Change(unit.name, Kind.RESTART, "it is about to start from the old file")
            return None  # queued behind the units it is ordered after
        reason = "it does not run" if status is None else _state_words(status)
        return Change(unit.name, Kind.START, reason)
    why, diff = _restart_reason(unit, installed, status)
    if status.active_state is ActiveState.DEACTIVATING:
        return Change(unit.name, Kind.RESTART, why or "it is stopping", diff)
    if status.sub_state.startswith("auto-restart"):
        return Change(
            unit.name, Kind.RESTART, why or "it waits for an automatic restart after a failure", diff
        )
    return Change(unit.name, Kind.RESTART, why, diff) if why else None


def _restart_reason(
    unit: RenderedUnit, installed: InstalledUnit, status: UnitStatus
) -> tuple[str, str | None]:
    """Why the unit's process must be replaced ("" if it need not), and how what it receives differs."""
    if status.sub_state in ("start-pre", "condition"):
        # No main process yet. What runs is the gate; it was started with the old file's arguments.
        before, after = service_directives(installed.text or ""), service_directives(unit.text)
        return describe_keys(before, after, differing(before, after)), None
    got = installed.received
    if got is None:
        why = main_changes(installed.text or "", unit.text)
        if installed.restart_pending and not why:
            why = "an interrupted operation left a new file and the old process"
        return why, None
    if got.stale:
        return "it was started while systemd had not read its changed files yet", None
    wanted = main_directives(*texts_of(unit.text, installed.drop_ins))
    if any(drop_in.text is None for drop_in in installed.drop_ins):
        wanted = {**got.directives, **main_directives(unit.text)}  # this user cannot read them all
    keys = differing(got.directives, wanted)
    if keys:
        diff = directives_diff(unit.name, got.directives, wanted)
        return describe_keys(got.directives, wanted, keys) + _by_drop_in(installed, got, keys), diff
    return _changed_files(got, installed), None


def _by_drop_in(installed: InstalledUnit, got: Received, keys: Sequence[str]) -> str:
    """Which drop-ins set a directive that differs, or did."""
    setting = [
        each.path
        for each in installed.drop_ins
        if set(keys) & set(service_directives(each.text or "")) - {""}
    ]
    gone = [path for path in got.drop_ins if path not in {each.path for each in installed.drop_ins}]
    words = [f"by {path}" for path in setting] + [f"{path} is gone" for path in gone]
    return f" ({'; '.join(words)})" if words else ""


def _changed_files(got: Received, installed: InstalledUnit) -> str:
    changed = [
        value for value, digest in installed.env_files.items() if got.files.get(value, digest) != digest
    ]
    return f"{', '.join(changed)} changed since it was started" if changed else ""


def _state_words(status: UnitStatus) -> str:
    if not status.exists:
        return "it is new"
    return "it is stopped" if status.active_state is ActiveState.INACTIVE else "it has failed"


def _words(unit: InstalledUnit | None) -> str:
    if unit is None or unit.status is None:
        return "not looked at"
    return f"{unit.status.active_state}" + (
        f", with {', '.join(each.path for each in unit.drop_ins)}" if unit.drop_ins else ""
    )
