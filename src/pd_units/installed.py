"""Reads what is on the host now: our unit files, whose they are, their drop-ins, and the manager's view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pd_units.adapters.dropins import find_drop_ins, unread_drop_ins
from pd_units.changes import InstalledState, InstalledUnit, Ownership, is_own_service
from pd_units.differences import main_directives
from pd_units.errors import Fault, HostError
from pd_units.generations import written_digests
from pd_units.manifest import (
    Operation,
    Phase,
    digest,
    manifest_path,
    read_manifest,
    read_operation,
)
from pd_units.naming import UNIT_DIR, Names
from pd_units.ports import Manager, UnitStatus
from pd_units.received import file_digests, read_received, texts_of
from pd_units.rendered import RenderedUnit


@dataclass(frozen=True, slots=True)
class _Known:
    """What pd-units wrote, by its own records: digests in the manifest, and of the operation under way."""

    ours: Mapping[str, str]
    operation: Operation | None
    written: Mapping[str, frozenset[str]]

    def digests(self, name: str) -> frozenset[str]:
        begun = self.operation.digests if self.operation is not None else {}
        both = {self.ours.get(name, ""), begun.get(name, "")} - {""}
        return frozenset(both) | self.written.get(name, frozenset())

    def names(self) -> tuple[str, ...]:
        begun = self.operation.digests if self.operation is not None else {}
        return tuple(dict.fromkeys((*self.ours, *begun)))


def read_installed(
    names: Names,
    rendered: Sequence[RenderedUnit],
    shared: Sequence[RenderedUnit],
    retires: Iterable[str],
    manager: Manager | None,
    *,
    adopt: bool = False,
) -> InstalledState:
    """The state of everything that an install of `rendered` looks at. Without a manager, files only.

    Raises: HostError 32 for a damaged manifest (not with `adopt`), or one of a newer pd-units.
    """
    operation = read_operation(names)
    known = _Known(_manifest(manifest_path(names), adopt=adopt), operation, _interrupted(names, operation))
    common = _Known(_manifest(names.shared_manifest, adopt=adopt), None, {})
    units = {unit.name: _unit(names, unit.name, unit.text, known, manager) for unit in rendered}
    return InstalledState(
        units=units,
        target=_unit(names, names.target, None, _Known({}, None, {}), manager),
        shared={
            unit.name: _unit(names, unit.name, unit.text, common, manager if is_own_service(unit) else None)
            for unit in shared
        },
        obsolete={
            name: _unit(names, name, None, known, manager)
            for name in known.names()
            if name not in units and _is_there(names.unit_dir / name)
        },
        retired={name: _status(manager, name) for name in retires} if manager is not None else {},
        unfinished=operation is not None and operation.phase is Phase.FILES,
    )


def _manifest(path: Path, *, adopt: bool) -> dict[str, str]:
    try:
        return read_manifest(path)
    except HostError:
        if adopt and path.exists():
            return {}
        raise


def _interrupted(names: Names, operation: Operation | None) -> dict[str, frozenset[str]]:
    """After an operation broke off, files of any generation of ours may be there."""
    return written_digests(names) if operation is not None else {}


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _unit(
    names: Names, name: str, wanted: str | None, known: _Known, manager: Manager | None
) -> InstalledUnit:
    path = names.unit_dir / name
    text = _read(path)
    status = _status(manager, name) if manager is not None else None
    ownership = _ownership(path, text, wanted, known.digests(name))
    if ownership is Ownership.ABSENT and status is not None and _elsewhere(status.fragment_path):
        ownership = Ownership.FOREIGN
    if status is not None and status.load_state == "masked":
        ownership = Ownership.MASKED
    invocation = status.invocation_id if status is not None else ""
    drop_ins = find_drop_ins(name, names.root)
    received = read_received(names, name, invocation)
    env_files = {}
    if received is not None:
        env_files = file_digests(main_directives(*texts_of(wanted or text or "", drop_ins)))
    pending = known.operation.restart if known.operation is not None else {}
    return InstalledUnit(
        name=name,
        text=text,
        ownership=ownership,
        status=status,
        drop_ins=drop_ins,
        received=received,
        env_files=env_files,
        drop_ins_unread=status is not None and bool(unread_drop_ins(status.drop_in_paths, drop_ins)),
        restart_pending=bool(invocation) and pending.get(name) == invocation,
    )


def _status(manager: Manager, name: str) -> UnitStatus:
    """The unit with its links of now: they may be gone since the last reload, by whomever."""
    return replace(manager.unit(name), unit_file_state=manager.unit_file_state(name))


def _elsewhere(fragment: str) -> bool:
    return bool(fragment) and Path(fragment).parent != UNIT_DIR and "@" not in fragment


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostError(
            f"cannot read {path}",
            detail=error.strerror or str(error),
            hint="something that is no unit file is in its place: move it away" if path.is_dir() else "",
        ) from error


def _ownership(path: Path, text: str | None, wanted: str | None, known: frozenset[str]) -> Ownership:
    if path.is_symlink():
        return Ownership.MASKED if path.readlink() == Path("/dev/null") else Ownership.FOREIGN
    if text is None:
        return Ownership.ABSENT
    if text == wanted or digest(text) in known:
        return Ownership.OURS
    return Ownership.MODIFIED if known else Ownership.FOREIGN


def refuse_foreign(state: InstalledState, *, adopt: bool) -> None:
    """Refuse to overwrite what is not ours.

    Raises: HostError 32, with every such file; masked units are never adopted.
    """
    faults = []
    if state.target.ownership is Ownership.MASKED:
        name = state.target.name
        faults.append(Fault(str(UNIT_DIR / name), "the target is masked", f"systemctl unmask {name}"))
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
