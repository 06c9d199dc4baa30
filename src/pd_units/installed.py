"""Reads what is on the host now: our unit files, whose they are, and the manager's view of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pd_units.changes import InstalledState, InstalledUnit, Ownership
from pd_units.errors import Fault, HostError
from pd_units.manifest import digest, manifest_path, read_manifest, read_operation
from pd_units.naming import UNIT_DIR, Names
from pd_units.ports import Manager
from pd_units.render import RenderedUnit


def read_installed(
    names: Names,
    rendered: Sequence[RenderedUnit],
    shared: Sequence[RenderedUnit],
    retires: Iterable[str],
    manager: Manager | None,
) -> InstalledState:
    """The state of everything that an install of `rendered` looks at. Without a manager, files only."""
    where, operation = names.unit_dir, read_operation(names)
    ours = read_manifest(manifest_path(names))
    begun = dict(operation.digests) if operation is not None else {}
    pending = dict(operation.restart) if operation is not None else {}
    units = {
        unit.name: _unit(where, unit.name, unit.text, ours, begun, manager, pending) for unit in rendered
    }
    common = read_manifest(names.shared_manifest)
    return InstalledState(
        units=units,
        target=_unit(where, names.target, None, {}, {}, manager, {}),
        shared={unit.name: _unit(where, unit.name, unit.text, common, {}, None, {}) for unit in shared},
        obsolete={
            name: _unit(where, name, None, ours, begun, manager, {})
            for name in {**ours, **begun}
            if name not in units and (where / name).exists()
        },
        retired={name: manager.unit(name) for name in retires} if manager is not None else {},
    )


def _unit(
    where: Path,
    name: str,
    wanted: str | None,
    ours: Mapping[str, str],
    begun: Mapping[str, str],
    manager: Manager | None,
    pending: Mapping[str, str],
) -> InstalledUnit:
    path = where / name
    text = _read(path)
    status = manager.unit(name) if manager is not None else None
    ownership = _ownership(path, text, wanted, {ours.get(name, ""), begun.get(name, "")})
    if ownership is Ownership.ABSENT and status is not None and _elsewhere(status.fragment_path):
        ownership = Ownership.FOREIGN
    if status is not None and status.load_state == "masked":
        ownership = Ownership.MASKED
    old = status is not None and status.invocation_id != "" and pending.get(name) == status.invocation_id
    return InstalledUnit(name=name, text=text, ownership=ownership, status=status, restart_pending=old)


def _elsewhere(fragment: str) -> bool:
    return bool(fragment) and Path(fragment).parent != UNIT_DIR and "@" not in fragment


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except (IsADirectoryError, PermissionError) as error:
        raise HostError(f"cannot read {path}", detail=error.strerror or str(error)) from error


def _ownership(path: Path, text: str | None, wanted: str | None, known: set[str]) -> Ownership:
    if path.is_symlink():
        return Ownership.MASKED if path.readlink() == Path("/dev/null") else Ownership.FOREIGN
    if text is None:
        return Ownership.ABSENT
    if text == wanted or digest(text) in known:
        return Ownership.OURS
    return Ownership.MODIFIED if known - {""} else Ownership.FOREIGN


def refuse_foreign(state: InstalledState, *, adopt: bool) -> None:
    """Refuse to overwrite what is not ours.

    Raises: HostError 32, with every such file; masked units are never adopted.
    """
    faults = []
    for unit in (*state.units.values(), *state.shared.values(), *state.obsolete.values()):
        path = str(UNIT_DIR / unit.name)
        if unit.ownership is Ownership.MASKED:
            faults.append(Fault(path, "the unit is masked", f"systemctl unmask {unit.name}"))
        elif unit.ownership is Ownership.FOREIGN and not adopt:
            where = unit.status.fragment_path if unit.status is not None and unit.text is None else path
            what = "a unit of this name is there and was not written by pd-units"
            faults.append(Fault(where or path, what, "--adopt replaces it"))
        elif unit.ownership is Ownership.MODIFIED and not adopt:
            what = "the file was changed by hand since pd-units wrote it"
            faults.append(
                Fault(path, what, "move the change to a drop-in (systemctl edit), or --adopt replaces it")
            )
    if faults:
        raise HostError("unit files are in the way; nothing was changed", faults=faults)
