"""What a running main process was given when it started: kept by its watcher, for the life of the process.

`/run/pd-units/NAME/UNIT.received.json` holds the directives of the unit and its drop-ins as systemd had
loaded them when the process began, secrets masked. It tells whether a unit's process is that of the current
files, whatever became of the install that wrote them, and which drop-in has changed since.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pd_units.adapters.dropins import DropIn, find_drop_ins, unread_drop_ins
from pd_units.adapters.files import read_json, write_json
from pd_units.differences import digest_of, main_directives
from pd_units.errors import PdUnitsError
from pd_units.naming import Names
from pd_units.ports import UnitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What one invocation of a unit was started with.

    `fragment` is a digest of the unit file's own directives, "" if that file was replaced just then.
    `directives` are those in effect, drop-ins included; `drop_ins` their paths. `stale` says that files had
    changed on disk before and systemd had not read them, or changed just then: what the process was given is
    not known. `files` maps environment files to digests, for root only.
    """

    unit: str
    invocation_id: str
    fragment: str
    directives: Mapping[str, tuple[str, ...]]
    drop_ins: tuple[str, ...] = ()
    stale: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


def fragment_digest(text: str) -> str:
    """The digest by which a process is known as one of this unit file."""
    return digest_of(main_directives(text))


def note_received(names: Names, status: UnitStatus) -> None:
    """Keep what the process that has just started was given. Raises: HostError 32, OSError.

    Read from the files on disk, which are what systemd had loaded only if they are older than the process.
    """
    fragment = Path(status.fragment_path)
    text = fragment.read_text(encoding="utf-8", errors="surrogateescape")
    drop_ins = find_drop_ins(status.unit)
    replaced = _changed_since(fragment, status)
    unread = status.need_daemon_reload or bool(unread_drop_ins(status.drop_in_paths, drop_ins))
    changed = replaced or any(_changed_since(Path(each.path), status) for each in drop_ins)
    directives = main_directives(text, *(each.text or "" for each in drop_ins))
    received = Received(
        unit=status.unit,
        invocation_id=status.invocation_id,
        fragment="" if replaced else fragment_digest(text),
        directives=directives,
        drop_ins=tuple(each.path for each in drop_ins),
        stale=unread or changed,
    )
    record = asdict(received)
    files = {"invocation_id": status.invocation_id, "files": file_digests(directives)}
    write_json(_path(names, status.unit, "received-files"), files, mode=0o600)
    write_json(_path(names, status.unit, "received"), {key: record[key] for key in record if key != "files"})


def _changed_since(path: Path, status: UnitStatus) -> bool:
    """Whether a file was changed in the moment since the unit's process began. Raises: OSError.

    A time in the future is that of a clock which was set back: it says nothing.
    """
    now_s = time.time()
    began_s = now_s - time.monotonic() + status.exec_main_start_mono_us / 1e6
    return began_s < path.stat().st_ctime <= now_s


def try_note_received(names: Names, status: UnitStatus) -> str:
    """As `note_received`; what went wrong, "" if nothing. A watch must not fail for want of a record."""
    try:
        note_received(names, status)
    except (PdUnitsError, OSError) as error:
        return f"what it was started with is not recorded: {error}"
    return ""


def read_received(names: Names, unit: str, invocation_id: str) -> Received | None:
    """What this invocation of a unit was started with, None if that is not known."""
    value = read_json(_path(names, unit, "received"))
    if value is None or not invocation_id or value.get("invocation_id") != invocation_id:
        return None
    files = read_json(_path(names, unit, "received-files")) or {}
    digests = files.get("files", {}) if files.get("invocation_id") == invocation_id else {}
    try:
        return Received(
            unit=unit,
            invocation_id=invocation_id,
            fragment=str(value["fragment"]),
            directives={str(key): tuple(values) for key, values in value["directives"].items()},
            drop_ins=tuple(value.get("drop_ins", ())),
            stale=bool(value.get("stale", False)),
            files=dict(digests),
        )
    except (AttributeError, KeyError, TypeError):
        return None


def _path(names: Names, unit: str, kind: str) -> Path:
    return names.run_dir / f"{unit}.{kind}.json"


def file_digests(directives: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Digests of what the environment files of a unit assign; without those this user may not read."""
    digests = {}
    for value in directives.get("EnvironmentFile", ()):
        path = Path(value.removeprefix("-"))
        try:
            lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except FileNotFoundError:
            lines = []
        except (OSError, ValueError):
            continue  # also a pattern of names, which systemd allows
        assigned = [line.strip() for line in lines if line.strip() and line.strip()[0] not in "#;"]
        joined = "\n".join(assigned).encode(errors="surrogateescape")
        digests[value] = hashlib.sha256(joined).hexdigest()
    return digests


def texts_of(text: str, drop_ins: Iterable[DropIn]) -> tuple[str, ...]:
    """A unit's texts in the order in which they apply."""
    return (text, *(each.text for each in drop_ins if each.text is not None))
