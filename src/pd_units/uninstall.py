"""Takes a deployment away: stopped in reverse order, disabled; only what is ours and unmodified goes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable

from pd_units.adapters.files import read_json, remove, sweep, write_error
from pd_units.changes import Change, ChangeSet, InstalledState, Kind, Ownership, is_own_service
from pd_units.errors import Fault, HostError
from pd_units.generations import leave_all, uninstalled_path
from pd_units.index import current_generation, index_path, installed_names
from pd_units.installed import read_installed
from pd_units.manifest import (
    Operation,
    begin_operation,
    end_operation,
    manifest_path,
    operation_path,
    read_manifest,
    read_operation,
)
from pd_units.naming import SLICE, Names
from pd_units.placing import require_safe, retired_path
from pd_units.ports import Clock, Manager
from pd_units.shared import shared_units
from pd_units.stopping import stop_unit


def plan_uninstall(names: Names, manager: Manager) -> tuple[InstalledState, ChangeSet]:
    """What would be stopped, disabled and removed. Raises: HostError 32 for files changed by hand."""
    shared = shared_units()
    state = read_installed(names, (), shared, (), manager)
    faults = [
        Fault(
            str(names.unit_dir / unit.name),
            "the file was changed by hand since pd-units wrote it",
            "move the change elsewhere, or remove the file yourself",
        )
        for unit in state.obsolete.values()
        if unit.ownership is not Ownership.OURS
    ]
    if faults:
        raise HostError("some unit files are not as pd-units wrote them; nothing was changed", faults=faults)
    order = sorted(state.obsolete.values(), key=lambda unit: not unit.name.endswith("-router.service"))
    changes = []
    for unit in (*order, state.target):
        status = unit.status
        if status is not None and not status.is_down:
            changes.append(Change(unit.name, Kind.STOP, "uninstalled"))
    changes += [Change(u.name, Kind.DISABLE, "uninstalled") for u in (*order, state.target) if u.enabled]
    last = set(installed_names()) <= {names.deployment}
    common = [unit for unit in state.shared.values() if last and unit.ownership is Ownership.OURS]
    own = {unit.name for unit in shared if is_own_service(unit)}
    reason = "no deployment is left"
    changes += [
        Change(unit.name, Kind.DISABLE, reason) for unit in common if unit.name in own and unit.enabled
    ]
    changes += [Change(unit.name, Kind.REMOVE, "uninstalled") for unit in order]
    changes += [Change(unit.name, Kind.REMOVE, reason) for unit in common]
    if order or common:
        changes.append(Change("-", Kind.RELOAD, "unit files change"))
    return state, ChangeSet(tuple(changes))


def uninstall(
    names: Names,
    changes: ChangeSet,
    manager: Manager,
    clock: Clock,
    say: Callable[[str], None],
    *,
    purge: bool,
    restore_retired: bool,
) -> None:
    """Carry the changes out, and with `restore_retired` bring back what the deployment had replaced.

    What one that broke off was told holds on. Raises: HostError 30 to 33; running it again goes on where it
    broke off.
    """
    require_safe(names)
    pending = read_operation(names)
    said = pending.options if pending is not None and pending.kind == "uninstall" else {}
    purge = purge or said.get("purge", False)
    restore_retired = restore_retired or said.get("restore_retired", False)
    _begin(names, pending, clock, purge=purge, restore_retired=restore_retired)
    units = tuple(dict.fromkeys((*changes.units(Kind.STOP), *changes.units(Kind.REMOVE))))
    for unit in changes.units(Kind.STOP):
        say(f"stopping {unit}")
        stop_unit(manager, clock, unit)
    disabled = list(changes.units(Kind.DISABLE))
    if disabled:
        manager.disable(disabled)
    for unit in changes.units(Kind.REMOVE):
        say(f"removing {names.unit_dir / unit}")
        remove(names.unit_dir / unit)
    sweep(names.unit_dir, names.owns)
    if not set(installed_names()) - {names.deployment}:
        sweep_shared(names)
    if changes.of(Kind.RELOAD):
        manager.reload()
    for unit in units:
        manager.reset_failed(unit)
    if SLICE in units:
        stop_unit(manager, clock, SLICE)
    if restore_retired:
        _restore(names, manager, say)
    _forget(names, purge=purge)


def shared_left(names: Names) -> bool:
    """Whether a file that all deployments share is there: a killed first install may leave but one."""
    places = ((names.unit_dir / unit.name, unit.text) for unit in shared_units())
    return names.shared_manifest.exists() or any(
        path.is_file() and path.read_text(errors="replace") == text for path, text in places
    )


def sweep_shared(names: Names) -> None:
    """Remove what a killed first install left on its way to the files that all deployments share.

    Raises: HostError 32.
    """
    shared = {unit.name for unit in shared_units()}
    sweep(names.unit_dir, lambda name: name in shared)
    sweep(names.shared_manifest.parent, lambda name: name == names.shared_manifest.name)
    with contextlib.suppress(OSError):
        names.shared_manifest.parent.rmdir()  # only if nothing is left in it


def _begin(
    names: Names, pending: Operation | None, clock: Clock, *, purge: bool, restore_retired: bool
) -> None:
    digests = {**(pending.digests if pending is not None else {}), **read_manifest(manifest_path(names))}
    operation = Operation(
        kind="uninstall",
        generation=current_generation(names.deployment),
        began=clock.wall(),
        digests=digests,
        index=read_json(index_path(names)) or (pending.index if pending is not None else None),
        options={"purge": purge, "restore_retired": restore_retired},
    )
    begin_operation(names, operation)


def _restore(names: Names, manager: Manager, say: Callable[[str], None]) -> None:
    """Enable and start again what was enabled and ran before it was retired."""
    for unit, before in (read_json(retired_path(names)) or {}).items():
        if not manager.unit(unit).exists:
            say(f"{unit} is not restored: its unit file is gone")
            continue
        say(f"restoring {unit}")
        if before.get("enabled"):
            manager.enable([unit])
            manager.reload()
        if before.get("active"):
            manager.start(unit)


def _forget(names: Names, *, purge: bool) -> None:
    """Remove what is kept of it, the operation record last.

    The history stays unless it is to be purged; nothing goes back to it by itself.
    """
    history = ("generations", "starts", uninstalled_path(names).name)
    keep = {operation_path(names).name, *(() if purge else history)}
    try:
        shutil.rmtree(names.run_dir, ignore_errors=True)
        for place in (index_path(names), manifest_path(names), *names.state_dir.iterdir()):
            if place.name in keep:
                continue
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
        if not installed_names():
            names.shared_manifest.unlink(missing_ok=True)
        leave_all(names)
        end_operation(names)
        for folder in (names.state_dir, names.state_dir.parent, names.run_dir.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()  # only if nothing is left in it
    except OSError as error:
        raise write_error(names.state_dir, error) from error
