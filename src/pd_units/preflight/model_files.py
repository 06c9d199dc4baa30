"""A model on disk: is every file there that its own index names, and is each one whole?

Pure but for reading: `inspect_model` looks, `check_model` says it in words. A safetensors file tells its own
size in its header, so that a download that broke off is seen without reading the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pd_units.preflight.base import (
    Result,
    Subject,
    bad,
    gib,
    good,
    some,
    unreadable_for,
    warning,
)
from pd_units.preflight.drop_ins import overrides_of
from pd_units.preflight.system import check_overrides

_INDEXES = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "consolidated.safetensors.index.json",
)
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_DESCRIPTIONS = ("config.json", "params.json")
_LFS = b"version https://git-lfs.github.com"
_MAX_HEADER = 100 << 20  # safetensors refuses longer ones
_LOAD_FORMATS_WITHOUT_FILES = ("dummy",)


@dataclass(slots=True)
class ModelFiles:
    """What was found in a model's directory. Each problem is a sentence that names its file."""

    problems: list[str] = field(default_factory=list)
    weights: list[Path] = field(default_factory=list)
    size_bytes: int = 0
    architecture: str = ""


def inspect_model(directory: Path) -> ModelFiles:
    """Every file of a model's directory against what its configuration and index say."""
    found = ModelFiles()
    _description(directory, found)
    dangling = [path for path in _entries(directory) if path.is_symlink() and not path.exists()]
    found.problems += [
        f"{path.name} is a symlink to {path.readlink()}, which is not there" for path in dangling
    ]
    named, total_bytes = _index(directory, found)
    missing = [name for name in named if not os.path.lexists(directory / name)]
    if missing:
        found.problems.append(f"{len(missing)} of {len(named)} shards are missing: {some(missing)}")
    for path in _weights(directory, named):
        _weigh(path, found)
    if total_bytes and not missing and not dangling and found.size_bytes < total_bytes:
        found.problems.append(f"the shards hold {gib(found.size_bytes)}, the index says {gib(total_bytes)}")
    return found


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def _description(directory: Path, found: ModelFiles) -> None:
    """config.json, or what other formats have in its place."""
    if any(directory.glob("*.gguf")):
        return
    path = next((directory / name for name in _DESCRIPTIONS if (directory / name).exists()), None)
    if path is None:
        found.problems.append("config.json is not there")
        return
    value = _json(path, found)
    architectures = value.get("architectures") if value is not None else None
    if isinstance(architectures, list) and architectures:
        found.architecture = str(architectures[0])


def _json(path: Path, found: ModelFiles) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        found.problems.append(f"{path.name} is not JSON: {error or 'nested too deeply'}")
        return None
    if not isinstance(value, dict):
        found.problems.append(f"{path.name} is not a JSON object")
        return None
    return value


def _index(directory: Path, found: ModelFiles) -> tuple[list[str], int]:
    """(the files that the index names, the bytes that it says they hold together); ([], 0) without one."""
    path = next((directory / name for name in _INDEXES if (directory / name).exists()), None)
    value = _json(path, found) if path is not None else None
    if path is None or value is None:
        return [], 0
    shards = value.get("weight_map")
    if not isinstance(shards, dict):
        found.problems.append(f"{path.name} names no files")
        return [], 0
    metadata = value.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    names = sorted({str(name) for name in shards.values()})
    return [name for name in names if "/" not in name], int(total) if isinstance(total, int | float) else 0


def _weights(directory: Path, named: list[str]) -> Iterator[Path]:
    """The files that will be loaded: those of the index, else the first kind of weights that there is."""
    if named:
        yield from (path for name in named if (path := directory / name).exists())
        return
    for pattern in _WEIGHTS:
        files = [path for path in sorted(directory.glob(pattern)) if path.exists()]
        if files:
            yield from files
            return


def _weigh(path: Path, found: ModelFiles) -> None:
    found.weights.append(path)
    size = path.stat().st_size
    found.size_bytes += size
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if head.startswith(_LFS):
                found.problems.append(f"{path.name} is a Git LFS pointer, not the weights: git lfs pull")
            elif size == 0:
                found.problems.append(f"{path.name} is empty")
            elif path.suffix == ".safetensors":
                file.seek(0)
                problem = _safetensors_problem(file.read(8), file, size)
                if problem:
                    found.problems.append(f"{path.name} {problem}")
    except PermissionError:
        return
    except OSError as error:
        found.problems.append(f"{path.name} cannot be read: {error.strerror}")


def _safetensors_problem(prefix: bytes, file: Any, size: int) -> str:
    """Why a safetensors file is not whole, "" if it is. Layout: u64 N, N bytes of JSON, then the tensors."""
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 0 < length <= _MAX_HEADER or 8 + length > size:
        return f"has no safetensors header in its {size:,} bytes: it was not downloaded to its end"
    try:
        header = json.loads(file.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        whole = 8 + length + max(ends, default=0)
        if not 0 < whole < 1 << 63:
            raise OverflowError
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return "has a damaged safetensors header: download it again"
    if size < whole:
        return f"has {size:,} of {whole:,} bytes: it was not downloaded to its end"
    return ""


def check_model(subject: Subject) -> Result:
    """The model is there, every shard of its index is whole, its users may read it, and it fits the GPUs."""
    model = subject.plan.deployment.engine.model
    path = Path(model)
    if not path.is_absolute():
        yield good("model", f"{model} is not a path: the engine looks it up in its hub or cache")
        return
    yield from check_overrides(overrides_of(subject), "model")
    try:
        if not path.exists():
            yield _missing(path)
            return
        found = inspect_model(path) if path.is_dir() else _single(path)
    except PermissionError as error:
        advice = "run preflight as root, or let everybody list the directory"
        yield warning("model", f"{error.filename} cannot be looked into by this user", advice)
        return
    for problem in found.problems:
        yield bad(
            "model", f"{model}: {problem}", "download it again (hf download, git lfs pull), or mend the link"
        )
    if not found.weights and not found.problems and not _needs_no_files(subject):
        yield warning("model", f"{model} holds no weights", "download them into it")
        return
    yield from _readable(subject, path, found)
    yield from _fits(subject, found)
    if not found.problems:
        files = f"{len(found.weights)} file{'s' if len(found.weights) != 1 else ''} of weights"
        weights = f"{files}, {gib(found.size_bytes)}" if found.weights else "no weights, and none are needed"
        what = f", {found.architecture}" if found.architecture else ""
        yield good("model", f"{model}: {weights}{what}")


def _missing(path: Path) -> Any:
    if path.is_symlink():
        evidence = f"{path} is a symlink to {path.readlink()}, which is not there"
    else:
        evidence = f"{path} does not exist ({next(p for p in path.parents if p.exists())} does)"
    return bad("model", evidence, "mend engine.model, or mount the file system")


def _single(path: Path) -> ModelFiles:
    found = ModelFiles()
    _weigh(path, found)
    return found


def _needs_no_files(subject: Subject) -> bool:
    return all(
        ("--load-format", name) in unit.exec_start
        for name in _LOAD_FORMATS_WITHOUT_FILES
        for unit in subject.backends
    )


def _readable(subject: Subject, path: Path, found: ModelFiles) -> Result:
    wanted = [path, *(path / name for name in _DESCRIPTIONS if (path / name).exists()), *found.weights]
    for user in sorted({unit.user for unit in subject.backends}):
        closed = unreadable_for(user, wanted)
        if closed:
            advice = f"chmod -R o+rX {path}, or chown it; every directory above needs x too"
            yield bad("model", f"{user} may not read {some(closed)}", advice)


def _fits(subject: Subject, found: ModelFiles) -> Result:
    """Weights larger than all GPUs of an instance together cannot be loaded, however they are split."""
    for unit in subject.backends:
        sizes = [gpu.memory_bytes for index in unit.gpus if (gpu := subject.topology.gpu(index)) is not None]
        if len(sizes) != len(unit.gpus) or None in sizes:
            continue
        room = sum(size for size in sizes if size is not None)
        if found.size_bytes > room:
            gpus = f"the {len(sizes)} GPUs of {unit.unit}"
            what = f"{gib(found.size_bytes)} of weights, and {gpus} have {gib(room)}"
            yield warning("model", what, "more GPUs, a quantised checkpoint, or CPU offload")
