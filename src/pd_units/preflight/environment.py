"""Environment files: there, in systemd's syntax, root's alone if they hold secrets, and no pin in them."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from pd_units.plan import UnitPlan
from pd_units.plan_environment import is_loader_variable
from pd_units.preflight.base import Check, Result, Subject, bad, good, warning
from pd_units.secrecy import is_secret

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"(?P<key>\S[^=\n\r]*)(?P<equals>=?)")
_END = re.compile(r"[\n\r]|\Z")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_PIECE = re.compile(
    r"""[ \t]*(?:
    '(?P<single>[^']*)(?:'|\Z)
    | "(?P<double>(?:[^"\\]|\\.|\\\Z)*)(?:"|\Z)
    | (?P<plain>(?:[^\n\r\\]|\\.|\\\Z)+)
    )""",
    re.DOTALL | re.VERBOSE,
)
_PINS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_NAME_OF_CHECK = "environment-files"


def check_environment_files(subject: Subject) -> Result:
    """Environment files exist, are in systemd's syntax, keep secrets from other users, and undo no pin."""
    failed = False
    files = sorted({file for unit in subject.plan.units for file in unit.environment_files})
    for file in files:
        users = [unit for unit in subject.plan.units if file in unit.environment_files]
        path = Path(file.removeprefix("-"))
        try:
            results = list(_check_file(path, users, optional=file.startswith("-")))
        except PermissionError:
            results = [warning(_NAME_OF_CHECK, f"{path} is not seen by this user", "run preflight as root")]
        failed = failed or bool(results)
        yield from results
    yield from _rendered(subject)
    if not failed:
        yield good(_NAME_OF_CHECK, ", ".join(files) or "none declared")


def _check_file(path: Path, units: list[UnitPlan], *, optional: bool) -> Iterator[Check]:
    if not path.is_file():
        if not optional:
            advice = "write it, or take it from environment_files: the unit fails to start without it"
            what = "is a directory" if path.is_dir() else "does not exist"
            yield bad(_NAME_OF_CHECK, f"{path} {what}", advice)
        return
    try:
        data = path.read_bytes()
    except PermissionError:
        yield from _mode(path, secret=True)  # if it holds any, it keeps them well
        return
    text = data.decode("utf-8", errors="surrogateescape")
    secret = False
    for number, name, value in assignments(text):
        where = f"{path}:{number}"
        secret = secret or is_secret(name, value)
        yield from _check_line(where, name, value, units)
    if b"\\\r\n" in data:
        advice = f"sed -i 's/\\r$//' {path}: systemd does not join lines at a backslash before them"
        yield bad(_NAME_OF_CHECK, f"{path} has the line ends of Windows", advice)
    yield from _mode(path, secret=secret)


def _mode(path: Path, *, secret: bool) -> Iterator[Check]:
    info = path.stat()
    if secret and info.st_mode & 0o044:
        advice = f"chmod 600 {path}; chown root: {path} (systemd reads it as root)"
        yield warning(
            _NAME_OF_CHECK, f"{path} holds a secret, and its mode is {stat.S_IMODE(info.st_mode):04o}", advice
        )
    elif info.st_mode & 0o022 and info.st_uid == 0:
        yield warning(_NAME_OF_CHECK, f"{path} can be written by others than root", f"chmod go-w {path}")


def assignments(text: str) -> Iterable[tuple[int, str, str]]:
    """(line, name, value) of each assignment, as systemd reads them: a quote may span lines.

    What is no assignment of a variable has the name "", and its text for a value. Source: systemd.exec(5),
    parse_env_file_internal (basic/env-file.c).
    """
    line, counted, position = 1, 0, 0
    while match := _KEY.search(text, position):
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        key, position = match["key"].strip(), match.end()
        if key[0] in "#;":
            position = _end_of_line(text, position)
        elif not match["equals"]:
            yield line, "", key
        else:
            value, position = _value(text, position)
            yield (line, key, value) if _NAME.fullmatch(key) else (line, "", f"{key}={value}")


def _end_of_line(text: str, position: int) -> int:
    end = _END.search(text, position)
    return end.start() if end else len(text)


def _value(text: str, position: int) -> tuple[str, int]:
    """(value, where it ends) of what follows a `=`: pieces with and without quotes, up to the line's end."""
    pieces: list[str] = []
    while match := _PIECE.match(text, position):
        position = match.end()
        kind, piece = match.lastgroup, match[match.lastgroup or 0]
        if kind == "double":
            piece = re.sub(r'\\(["\\$`])|\\[\n\r]', r"\1", piece)
        elif kind == "plain":
            piece = re.sub(r"\\[\n\r]|\\(.)", r"\1", piece).rstrip()
        pieces.append(piece)
        if kind == "plain":
            break  # a quote has a meaning at the beginning only
    return "".join(pieces), _end_of_line(text, position)


def _check_line(where: str, name: str, value: str, units: list[UnitPlan]) -> Iterator[Check]:
    """Never the text itself: such files hold secrets."""
    if not name:
        if value.startswith(("export ", "export\t")):
            advice = "take the word export out: systemd reads NAME=value lines"
            yield bad(_NAME_OF_CHECK, f"{where} begins with export", advice)
        else:
            advice = "systemd reads NAME=value lines, and skips others without a word"
            yield warning(_NAME_OF_CHECK, f"{where} is no assignment", advice)
    elif _NOT_UTF8.search(value):
        advice = "write it in UTF-8: systemd refuses the whole file, and the unit fails to start"
        yield bad(_NAME_OF_CHECK, f"{where} sets {name} to what is not UTF-8 text", advice)
    elif name in _PINS and any(unit.gpus for unit in units):
        advice = "take it out: the deployment file's gpus decide, and this would win over them in silence"
        yield bad(_NAME_OF_CHECK, f"{where} sets {name}", advice)
    elif name in _ALLOCATOR and _expands(value) and any(_by_nixl(unit) for unit in units):
        yield from _expandable(where)
    elif is_loader_variable(name):
        advice = "the unit drops it, for its helpers run as root: put it into the deployment file"
        yield bad(_NAME_OF_CHECK, f"{where} sets {name}", advice)
    elif "$" in value and not is_secret(name, value):
        advice = "write the value out: systemd puts no variables in here"
        yield warning(_NAME_OF_CHECK, f"{where} sets {name} to a value with a $ in it", advice)


def _rendered(subject: Subject) -> Iterator[Check]:
    """The same fault in the deployment file's own environment."""
    for unit in subject.backends:
        for name, value in unit.environment:
            if name in _ALLOCATOR and _expands(value) and _by_nixl(unit):
                yield from _expandable(f"{name} of {unit.unit}")


def _expandable(where: str) -> Iterator[Check]:
    advice = "take it out: such memory registers with UCX, and KV cache then silently moves over TCP"
    yield warning(_NAME_OF_CHECK, f"{where}: expandable_segments with KV transfer by NIXL", advice)


def _expands(value: str) -> bool:
    return re.search(r"expandable_segments\s*:\s*true", value, re.I) is not None


def _by_nixl(unit: UnitPlan) -> bool:
    return ("--disaggregation-transfer-backend", "nixl") in unit.exec_start
