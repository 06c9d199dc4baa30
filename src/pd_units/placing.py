"""Puts a generation's files onto the host: everything is written beside its place first, then moved into it.

What can run out (space, inodes, rights) runs out before anything has changed. From the operation record on,
whatever breaks off is named by the next command, and finished or undone by it or by the next boot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pd_units.adapters.files import (
    StagedFiles,
    directory_faults,
    let_everybody_look,
    read_json,
    remove,
    sweep,
    sync_directory,
    write_json,
)
from pd_units.changes import Kind, is_own_service
from pd_units.errors import ExitCode, HostError, PdUnitsError, TemplateError
from pd_units.generations import (
    drop_generation,
    generations_dir,
    note_left,
    numbers,
    write_generation,
)
from pd_units.goal import Goal
from pd_units.index import deployment_path, index_path, index_text, index_to_json, retired_path
from pd_units.manifest import (
    Operation,
    Phase,
    begin_operation,
    digest,
    end_operation,
    manifest_path,
    manifest_text,
    operation_path,
    operation_text,
    read_manifest,
    read_operation,
)
from pd_units.naming import Names
from pd_units.ports import ActiveState, Clock, Manager
from pd_units.stopping import stop_unit

Say = Callable[[str], None]
Guard = Callable[[Goal], AbstractContextManager[None]]
# What systemd says of a unit that it could not read.
_REJECTED = ("bad-setting", "error")
_OF_OUTCOMES = ("outcome.json", "failed-units.json")


def require_safe(names: Names) -> None:
    """Raises: HostError 32 where a directory that we work in could be changed by others."""
    folders = (
        names.unit_dir,
        names.state_dir.parent,
        names.state_dir,
        generations_dir(names),
        names.lock.parent,
        names.run_dir,
    )
    faults = directory_faults(dict.fromkeys(folders))
    if faults:
        raise HostError(
            "directories of pd-units are not safe: what lies in them is run as root; nothing was changed",
            faults=faults,
        )
    for folder in (names.state_dir.parent, names.state_dir):
        let_everybody_look(folder)


class Placer:
    """Places the files of one goal, and has systemd read them."""

    def __init__(self, manager: Manager, clock: Clock, say: Say, guard: Guard) -> None:
        self._manager, self._clock, self._say, self._guard = manager, clock, say, guard

    def place(self, goal: Goal) -> None:
        """Write, enable, reload. Raises: TemplateError 21, HostError 30 to 33."""
        require_safe(goal.names)
        with StagedFiles() as staged, StagedFiles() as later:
            with self._guard(goal):  # until it is written down what the deployment is about to take
                self._sweep(goal)
                self._place_shared(goal)
                self._begin(goal, staged, later)
            self._retire(goal)
            self._settle(goal)
            # Before the new manifest, which no longer names them: broken off here, they are known as ours.
            self._remove(goal)
            for unit in goal.changes.units(Kind.WRITE):
                self._say(f"writing {goal.names.unit_dir / unit}")
            staged.commit()
            self._load(goal)
            later.commit()

    def _sweep(self, goal: Goal) -> None:
        """Remove what killed processes left halfway."""
        names = goal.names
        shared = {unit.name for unit in goal.shared}
        sweep(names.unit_dir, lambda name: names.owns(name) or name in shared)
        sweep(names.state_dir, lambda _name: True)
        sweep(names.state_dir.parent, lambda name: name == names.shared_manifest.name)
        for number in numbers(names):
            sweep(generations_dir(names) / str(number), lambda name: name in _OF_OUTCOMES)

    def _place_shared(self, goal: Goal) -> None:
        """The files that all deployments share, before anything of this one: with them in place, a boot can
        finish whatever breaks off from now on."""
        written = set(goal.changes.units(Kind.WRITE))
        # another deployment's uninstall may have taken some away since they were looked at
        gone = {unit.name for unit in goal.shared if not (goal.names.unit_dir / unit.name).exists()}
        new = [unit for unit in goal.shared if unit.name in written | gone]
        manifest = goal.names.shared_manifest
        noted = _manifest_or_none(manifest)
        common = {**noted, **{unit.name: digest(unit.text) for unit in goal.shared}}
        with StagedFiles() as staged:
            for unit in new:
                before = None if unit.name in gone else goal.state.shared[unit.name].text
                staged.add_checked(goal.names.unit_dir / unit.name, unit.text, before=before)
            if common != noted:
                staged.add(manifest, manifest_text(common))
            staged.commit()
        own = [unit.name for unit in goal.shared if is_own_service(unit)]
        enabled = [unit for unit in own if unit in goal.changes.units(Kind.ENABLE) or unit in gone]
        if enabled:
            self._manager.enable(enabled)

    def _begin(self, goal: Goal, staged: StagedFiles, later: StagedFiles) -> None:
        """Write everything beside its place, and the record that an operation has begun.

        `later` is the record for when systemd has read the files: a disk may be full by then.

        Where that fails, nothing has changed, and nothing is left of it.
        """
        names, pending = goal.names, read_operation(goal.names)
        new = goal.makes_generation
        try:
            if new:
                told = [c for c in goal.changes.changes if c.kind is not Kind.KEEP]
                reasons = [f"{change.kind} {change.unit}: {change.reason}" for change in told]
                write_generation(
                    names, goal.index, goal.text, goal.rendered, reasons, wall=self._clock.wall()
                )
            self._stage(goal, staged)
            staged.check()
            operation = self._operation(goal, pending)
            later.add(operation_path(names), operation_text(replace(operation, phase=Phase.UNITS)))
            begin_operation(names, operation)
            note_left(names, goal.leaves, back_to=goal.index.generation, at=operation.began)
        except BaseException as error:
            with contextlib.suppress(PdUnitsError):
                if pending is None:
                    end_operation(names)
            if new and pending is None:
                drop_generation(names, goal.index.generation)
            if isinstance(error, HostError) and pending is None:
                raise _unchanged(error) from error
            raise

    def _stage(self, goal: Goal, staged: StagedFiles) -> None:
        names, written = goal.names, set(goal.changes.units(Kind.WRITE))
        for unit in goal.rendered:
            if unit.name in written:
                before = goal.state.units[unit.name].text
                staged.add_checked(names.unit_dir / unit.name, unit.text, before=before)
        digests = {unit.name: digest(unit.text) for unit in goal.rendered}
        staged.add(manifest_path(names), manifest_text({**_still_there(goal), **digests}))
        staged.add(deployment_path(names), goal.text, mode=0o600)
        staged.add(index_path(names), index_text(goal.index))

    def _operation(self, goal: Goal, pending: Operation | None) -> Operation:
        restart = {unit: _invocation(goal, unit) for unit in goal.changes.units(Kind.RESTART)}
        return Operation(
            kind=goal.kind,
            generation=goal.index.generation,
            began=self._clock.wall(),
            restart={**(pending.restart if pending is not None else {}), **restart},
            digests={unit.name: digest(unit.text) for unit in goal.rendered},
            index=index_to_json(goal.index),
        )

    def _retire(self, goal: Goal) -> None:
        stopped = goal.changes.units(Kind.RETIRE)
        disabled = [unit for unit in goal.changes.units(Kind.DISABLE) if unit in goal.state.retired]
        units = (*stopped, *disabled)
        if not units:
            return
        path = retired_path(goal.names)
        before = read_json(path) or {}
        for unit in units:
            status = goal.state.retired[unit]
            was = {
                "active": status.active_state is ActiveState.ACTIVE,
                "enabled": status.unit_file_state == "enabled",
                # a link to a file elsewhere goes when it is disabled
                "path": str(Path(status.fragment_path).resolve()) if status.fragment_path else "",
            }
            before.setdefault(unit, was)  # an interrupted install may have stopped it already
        write_json(path, before)
        for unit in stopped:
            self._say(f"retiring {unit}")
            stop_unit(self._manager, self._clock, unit)
            self._manager.disable([unit])

    def unretire(self, goal: Goal) -> None:
        """On the way back: what the generation that is left had retired, and this one does not.

        After that generation's units have gone: they may have its GPUs and ports.
        """
        if goal.kind != "rollback":
            return
        path = retired_path(goal.names)
        retired = read_json(path) or {}
        for unit in [name for name in retired if name not in goal.state.retired]:
            bring_back(unit, retired.pop(unit), self._manager, self._say)
            write_json(path, retired)

    def _settle(self, goal: Goal) -> None:
        """Stop what is removed, and what fails or waits for an automatic restart: that would run the new
        file by itself, halfway through. What is not to be started is left to its automatic restart."""
        changes = goal.changes
        for unit in changes.units(Kind.STOP):
            self._say(f"stopping {unit}: no longer declared")
            stop_unit(self._manager, self._clock, unit)
        written = set(changes.units(Kind.WRITE)) & set(changes.units(Kind.START, Kind.RESTART))
        for name, installed in goal.state.units.items():
            status = installed.status
            if name in written and status is not None and status.sub_state.startswith("auto-restart"):
                self._say(f"stopping {name}: its automatic restart would run the new file by itself")
                stop_unit(self._manager, self._clock, name)
        if changes.units(Kind.DISABLE):
            self._manager.disable(list(changes.units(Kind.DISABLE)))

    def _remove(self, goal: Goal) -> None:
        for unit in goal.changes.units(Kind.REMOVE):
            self._say(f"removing {goal.names.unit_dir / unit}")
            remove(goal.names.unit_dir / unit)

    def _load(self, goal: Goal) -> None:
        """Enable, reload, and see that systemd took every unit."""
        own = {unit.name for unit in goal.shared}
        enabled = [unit for unit in goal.changes.units(Kind.ENABLE) if unit not in own]
        if enabled:
            self._manager.enable(enabled)
            wants = ("multi-user.target.wants", f"{goal.names.target}.wants")
            for folder in (goal.names.unit_dir, *(goal.names.unit_dir / name for name in wants)):
                with contextlib.suppress(OSError):
                    sync_directory(folder)  # systemd leaves its links to the kernel's leisure
        if not goal.changes.of(Kind.RELOAD):
            return
        self._manager.reload()
        for unit in goal.rendered:
            status = self._manager.unit(unit.name)
            if status.load_state in _REJECTED:
                drop_ins = ", ".join(each.path for each in goal.state.units[unit.name].drop_ins)
                raise TemplateError(
                    f"systemd rejects {unit.name}",
                    detail=f"LoadState={status.load_state}"
                    + (f"; its drop-ins: {drop_ins}" if drop_ins else ""),
                    hint=f"systemd-analyze verify {unit.name} says why",
                    exit_code=ExitCode.UNIT_REJECTED,
                )


def bring_back(unit: str, before: object, manager: Manager, say: Say) -> None:
    """Enable and start again what was enabled and ran before it was retired; what cannot be is said.

    `before` is what the kept file says of it.
    """
    if not isinstance(before, Mapping):
        say(f"{unit} is not restored: how it was is damaged in retired.json")
        return
    path = str(before.get("path") or "")
    known = manager.unit(unit).exists
    was_up = before.get("enabled") or before.get("active")
    if not known and not (was_up and path and Path(path).exists()):
        say(f"{unit} is not restored: its unit file is gone")
        return
    say(f"restoring {unit}")
    try:
        if before.get("enabled") or not known:
            manager.enable([unit if known else path])
            manager.reload()
        if before.get("active"):
            manager.start(unit)
    except PdUnitsError as error:
        say(f"{unit} is not restored: {error.brief}" + (f": {error.detail}" if error.detail else ""))


def _invocation(goal: Goal, unit: str) -> str:
    status = goal.state.units[unit].status
    return status.invocation_id if status is not None else ""


def _still_there(goal: Goal) -> dict[str, str]:
    """Digests of units that are no longer declared and still run: the next install knows them by these."""
    gone = goal.changes.units(Kind.REMOVE)
    kept = {name: unit.text for name, unit in goal.state.obsolete.items() if name not in gone}
    known = _manifest_or_none(manifest_path(goal.names))
    return {name: known.get(name, digest(text or "")) for name, text in kept.items()}


def _manifest_or_none(path: Path) -> dict[str, str]:
    """A manifest that is about to be written anew; a damaged one counts as empty: `--adopt` was said."""
    with contextlib.suppress(HostError):
        return read_manifest(path)
    return {}


def _unchanged(error: HostError) -> HostError:
    return HostError(
        f"{error.brief}; nothing was changed",
        detail=error.detail,
        hint=error.hint,
        faults=error.faults,
        exit_code=error.exit_code,
    )
