"""Which files are ours: their names and hashes, and the operation under way.

`manifest.json` of a deployment maps unit names to SHA-256 digests of what was written. `operation.json`
exists while an install is at work; it is written before the first change and names the units whose processes
may still be old, so that the next command can tell and finish.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pd_units.adapters.files import read_json, remove, write_json
from pd_units.naming import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An install that has begun.

    `restart` maps each unit that is to be restarted to its invocation before that: while it still has that
    one, its process is the old one. `digests` are those of the new files.
    """

    kind: str
    generation: int
    began: float
    restart: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


def digest(text: str) -> str:
    """SHA-256 of a file's text, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: Path) -> dict[str, str]:
    """Unit names and digests; empty if there is no manifest."""
    value = read_json(path) or {}
    files = value.get("files", {})
    return {str(name): str(sha) for name, sha in files.items()} if isinstance(files, dict) else {}


def write_manifest(path: Path, files: Mapping[str, str]) -> None:
    """Replace a manifest. Raises: HostError 32."""
    write_json(path, {"files": dict(sorted(files.items()))})


def manifest_path(names: Names) -> Path:
    """Where a deployment's manifest lies."""
    return names.state_dir / "manifest.json"


def operation_path(names: Names) -> Path:
    """Where a deployment's operation record lies."""
    return names.state_dir / "operation.json"


def read_operation(names: Names) -> Operation | None:
    """The operation that was begun and not ended, None if there is none."""
    value = read_json(operation_path(names))
    if value is None:
        return None
    return Operation(
        kind=str(value.get("kind", "install")),
        generation=int(value.get("generation", 0)),
        began=float(value.get("began", 0)),
        restart=dict(value.get("restart", {})),
        digests=dict(value.get("digests", {})),
    )


def begin_operation(names: Names, operation: Operation) -> None:
    """Record that an operation begins. Raises: HostError 32."""
    write_json(operation_path(names), asdict(operation))


def end_operation(names: Names) -> None:
    """Record that it is over."""
    remove(operation_path(names))
