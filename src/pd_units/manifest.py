"""Which files are ours: their names and hashes, and the operation under way.

`manifest.json` of a deployment maps unit names to SHA-256 digests of what was written. `operation.json`
exists while an install, a rollback, a restart or an uninstall is at work; it is written before the first
change and removed after the last, so that the next command, or the next boot, can tell what was begun, and
finish or undo it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pd_units import SCHEMA
from pd_units.adapters.files import read_json, remove, to_json_text, write_atomic, write_json
from pd_units.adapters.identity import is_alive, process_identity
from pd_units.errors import HostError
from pd_units.naming import STATE_ROOT, Names, under


class Phase(StrEnum):
    """How far an operation has come.

    Until systemd has read the files it is `files`; then `units`, while they are started and waited for.
    """

    FILES = "files"
    UNITS = "units"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation that has begun.

    `doer` is the process at work on it (adapters.identity). `restart` maps each unit that is to be restarted
    to its invocation before that: while it still has that one, its process is the old one. `digests` are
    those of the new files. `index` is the deployment's index as it is to be. `stopped_by` names the signal
    that ended it.
    """

    kind: str
    generation: int
    began: float
    phase: Phase = Phase.FILES
    doer: str = ""
    stopped_by: str = ""
    restart: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    index: Mapping[str, Any] | None = None
    options: Mapping[str, bool] = field(default_factory=dict)

    @property
    def at_work(self) -> bool:
        """Whether its process still runs: then it is not interrupted."""
        return not self.stopped_by and is_alive(self.doer)


def digest(text: str) -> str:
    """SHA-256 of a file's text, hexadecimal."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def read_manifest(path: Path) -> dict[str, str]:
    """Unit names and digests; empty if there is no manifest.

    Raises: HostError 32 if it is damaged, or was written by a newer pd-units.
    """
    if not path.exists():
        return {}
    value = read_json(path)
    files = value.get("files") if value is not None else None
    if value is None or not isinstance(files, dict):
        raise HostError(
            f"{path} is damaged",
            detail="it tells which unit files pd-units wrote, and as what",
            hint="compare them with `pd-units diff`; `pd-units install --adopt` then takes them for its own",
        )
    require_known_schema(value, path)
    return {str(name): str(sha) for name, sha in files.items()}


def require_known_schema(value: Mapping[str, Any], path: Path | str) -> None:
    """Raises: HostError 32 if `value` was written by a newer pd-units."""
    schema = value.get("schema", SCHEMA)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise HostError(
            f"{path} was written by a newer pd-units",
            detail=f"schema {schema}, this one knows {SCHEMA}",
            hint="upgrade pd-units",
        )


def manifest_text(files: Mapping[str, str]) -> str:
    """A manifest as it is kept."""
    return to_json_text({"schema": SCHEMA, "files": dict(sorted(files.items()))})


def manifest_path(names: Names) -> Path:
    """Where a deployment's manifest lies."""
    return names.state_dir / "manifest.json"


def operation_path(names: Names) -> Path:
    """Where a deployment's operation record lies."""
    return names.state_dir / "operation.json"


def read_operation(names: Names) -> Operation | None:
    """The operation that was begun and not ended, None if there is none.

    A record that cannot be understood is one of an unknown kind. Raises: HostError 32 if it is of a newer
    pd-units.
    """
    path = operation_path(names)
    if not path.exists():
        return None
    value = read_json(path)
    if value is None:
        return None if not path.exists() else Operation(kind="operation", generation=0, began=0.0)
    require_known_schema(value, path)
    try:
        index = value.get("index")
        return Operation(
            kind=str(value.get("kind", "install")),
            generation=int(value.get("generation", 0)),
            began=float(value.get("began", 0)),
            phase=Phase(value.get("phase", Phase.FILES)),
            doer=str(value.get("doer", "")),
            stopped_by=str(value.get("stopped_by", "")),
            restart=dict(value.get("restart", {})),
            digests=dict(value.get("digests", {})),
            index=dict(index) if index is not None else None,
            options=dict(value.get("options", {})),
        )
    except (TypeError, ValueError):
        return Operation(kind="operation", generation=0, began=0.0)


def operation_text(operation: Operation) -> str:
    """An operation that this process is at work on, as it is kept."""
    value = asdict(replace(operation, doer=process_identity(os.getpid())))
    return to_json_text({"schema": SCHEMA, **value})


def begin_operation(names: Names, operation: Operation) -> None:
    """Record that an operation begins, or how far it has come. Raises: HostError 32."""
    write_atomic(operation_path(names), operation_text(operation))


def note_stopped(names: Names, signal: str) -> None:
    """Record that whoever was at work on the operation was told to stop by `signal`. Raises: HostError 32."""
    operation = read_operation(names)
    if operation is not None:
        value = asdict(replace(operation, stopped_by=signal))
        write_json(operation_path(names), {"schema": SCHEMA, **value})


def end_operation(names: Names) -> None:
    """Record that it is over. Raises: HostError 32."""
    remove(operation_path(names))


def interrupted_names(root: Path = Path("/")) -> tuple[str, ...]:
    """The deployments with an operation that has not ended, sorted."""
    return tuple(sorted(path.parent.name for path in under(root, STATE_ROOT).glob("*/operation.json")))


def what_next(name: str, kind: str, generation: int, options: Mapping[str, bool] | None = None) -> str:
    """How to finish or undo an operation that broke off, for an operator. `options` of it hold on."""
    said = [f"--{option.replace('_', '-')}" for option, on in (options or {}).items() if on]
    if said:
        return f"`pd-units {kind} {name}` finishes it, with {' and '.join(said)} as it was begun"
    if kind in ("uninstall", "restart", "rollback"):
        return f"`pd-units {kind} {name}` finishes it"
    back = (
        f"`pd-units rollback {name}` goes back"
        if _replaced_one(name, generation)
        else f"`pd-units uninstall {name}` undoes it"
    )
    return f"`pd-units install {name}` finishes it, {back}"


def _replaced_one(name: str, generation: int) -> bool:
    """Whether something was installed before it; not so after an uninstall, whatever its number."""
    kept = read_json(Names(name).state_dir / "generations" / str(generation) / "outcome.json") or {}
    return bool(kept.get("replaces", generation > 1))


def operation_words(name: str, operation: Operation) -> str:
    """What there is to say of an operation that has not ended."""
    article = "An" if operation.kind[0] in "aeiou" else "A"
    of = f" of generation {operation.generation}" if operation.generation else ""
    if operation.at_work:
        return f"{article} {operation.kind}{of} is at work."
    by = f" by {operation.stopped_by}" if operation.stopped_by else ""
    where = (
        "its files may not all be in place" if operation.phase is Phase.FILES else "its files are in place"
    )
    todo = what_next(name, operation.kind, operation.generation, operation.options)
    return f"{article} {operation.kind}{of} was interrupted{by}; {where}: {todo}."
