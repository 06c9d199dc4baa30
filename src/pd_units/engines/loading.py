"""Reads an engine's TOML files, and an operator's additions to them, into frozen rules.

Shape of the files: docs/reference/rules.md. Everything is checked at once: a file that does not parse, an
unknown key, a pattern that is refused, each named with file, rule and line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pd_units.durations import parse_duration
from pd_units.engines.patterns import Pattern, PatternError, compile_pattern
from pd_units.engines.rules import (
    CapacityRule,
    ExceptionRule,
    FailureRule,
    IgnoredImport,
    Phase,
    Placement,
    Rules,
    WarningRule,
)
from pd_units.errors import DeploymentError, ExitCode, Fault
from pd_units.evidence import Cause, Strength

RULES_DIR = Path("/etc/pd-units/rules.d")
SCHEMA = 1
BY_PHASE = "by-phase"
_PICKS = ("last", "first", "sum")

_KEYS: Mapping[str, frozenset[str]] = {
    "phase": frozenset(
        {
            "name", "text", "silence", "begin", "bars", "anonymous_bars", "what", "whole", "fills_memory",
        }
    ),
    "capacity": frozenset({"key", "pattern", "unless", "pick"}),
    "warning": frozenset({"name", "patterns", "text", "advice"}),
    "benign": frozenset({"name", "patterns", "recovers"}),
    "failure": frozenset(
        {
            "name", "patterns", "strength", "cause", "rank", "unless", "only_exception",
            "survives_ready", "deliberate", "self_kill", "last_word",
        }
    ),
    "exception": frozenset({"name", "cause", "rank", "types", "frames", "last_frame", "phase"}),
    "identity": frozenset({"patterns", "weak", "foreign", "usual"}),
    "launch": frozenset({"patterns"}),
    "ready": frozenset({"patterns", "workers"}),
    "ignored_import": frozenset({"pattern", "unsupported"}),
    "out_of_memory": frozenset({"text", "frames", "phases", "otherwise"}),
    "advice": frozenset(cause.value for cause in Cause),
    "summary": frozenset(cause.value for cause in Cause),
}  # fmt: skip
_OPERATOR_TABLES = frozenset({"warning", "benign", "failure", "exception", "advice"})


class _File:
    """One TOML file while it is read: collects faults, each with file, rule and line."""

    def __init__(self, source: str, text: str, faults: list[Fault]) -> None:
        self.source, self.faults = source, faults
        self._lines = text.splitlines()
        self.data: dict[str, Any] = {}
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            faults.append(Fault(source, f"not TOML: {error}"))

    def fault(self, rule: str, needle: str, what: str, hint: str = "") -> None:
        """Note a fault of `rule`; `needle` is a text by which its line is found."""
        line = next((n for n, text in enumerate(self._lines, 1) if needle and needle in text), None)
        where = self.source + (f":{line}" if line else "") + (f" [{rule}]" if rule else "")
        self.faults.append(Fault(where, what, hint))

    def keys(self, kind: str, table: Mapping[str, Any], rule: str) -> None:
        for key in table:
            if key not in _KEYS[kind]:
                self.fault(rule, str(key), f"unknown key {key!r}", "known: " + ", ".join(sorted(_KEYS[kind])))

    def text(self, table: Mapping[str, Any], key: str, rule: str, default: str | None = None) -> str:
        value = table.get(key, default)
        if not isinstance(value, str):
            self.fault(rule, key, f"{key} must be a text" if key in table else f"{key} is missing")
            return ""
        return value

    def flag(self, table: Mapping[str, Any], key: str, rule: str) -> bool:
        value = table.get(key, False)
        if not isinstance(value, bool):
            self.fault(rule, key, f"{key} must be true or false")
        return bool(value)

    def texts(self, table: Mapping[str, Any], key: str, rule: str) -> tuple[str, ...]:
        values = table.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.fault(rule, key, f"{key} must be a list of texts")
            return ()
        return tuple(values)

    def patterns(
        self, table: Mapping[str, Any], key: str, rule: str, *, needed: bool = True
    ) -> tuple[Pattern, ...]:
        values = table.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.fault(rule, key, f"{key} must be a list of regular expressions")
            return ()
        if needed and not values:
            self.fault(rule, rule, f"{key} is missing or empty")
        return tuple(found for value in values if (found := self._compile(value, rule)) is not None)

    def pattern(self, table: Mapping[str, Any], key: str, rule: str) -> Pattern | None:
        if key not in table:
            return None
        value = table[key]
        if not isinstance(value, str):
            self.fault(rule, key, f"{key} must be a regular expression")
            return None
        return self._compile(value, rule)

    def _compile(self, value: str, rule: str) -> Pattern | None:
        try:
            return compile_pattern(value)
        except PatternError as error:
            needle = value if any(value in text for text in self._lines) else value.replace("\\", "\\\\")
            self.fault(rule, needle, f"pattern {value!r}: {error}")
            return None

    def cause(self, table: Mapping[str, Any], rule: str) -> Cause:
        value = self.text(table, "cause", rule)
        try:
            return Cause(value)
        except ValueError:
            if value:
                self.fault(rule, value, f"no such cause: {value!r}", "see docs/reference/causes.md")
            return Cause.UNKNOWN

    def rank(self, table: Mapping[str, Any], rule: str, default: int) -> int:
        value = table.get("rank", default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 99:
            self.fault(rule, "rank", "rank must be a number from 1 (most specific) to 99")
            return default
        return value

    def tables(self, kind: str) -> list[Mapping[str, Any]]:
        value = self.data.get(kind, [])
        if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
            self.fault("", kind, f"{kind} must be an array of tables: [[{kind}]]")
            return []
        return value

    def table(self, kind: str) -> Mapping[str, Any]:
        value = self.data.get(kind, {})
        if not isinstance(value, dict):
            self.fault("", kind, f"{kind} must be a table: [{kind}]")
            return {}
        self.keys(kind, value, kind)
        return value


def load_rules(engine: str = "sglang", extra_dirs: Sequence[Path] = (RULES_DIR,)) -> Rules:
    """The rules of `engine`, extended by every *.toml of `extra_dirs` that names it.

    Raises DeploymentError with exit code 11 and every fault at once; 10 for an unreadable file.
    """
    faults: list[Fault] = []
    base = _packaged(engine, faults)
    extra_files: list[_File] = []
    for path in _extra_files(extra_dirs):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DeploymentError(f"{path}: not readable: {error}", exit_code=ExitCode.UNREADABLE) from None
        extra = _File(str(path), text, faults)
        if extra.data.get("engine", engine) == engine:
            _check_extra(extra)
            extra_files.append(extra)
    rules = _build(engine, base, extra_files)
    if faults:
        raise DeploymentError("the diagnosis rules have faults", faults=faults)
    return rules


def _packaged(engine: str, faults: list[Fault]) -> list[_File]:
    """The engine's own files: `<engine>.toml`, and `<engine>_*.toml` for what belongs to it."""
    folder = resources.files("pd_units.engines")
    names = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name == f"{engine}.toml" or re.fullmatch(rf"{re.escape(engine)}_\w+\.toml", entry.name)
    )
    if f"{engine}.toml" not in names:
        raise DeploymentError(f"nothing is known of an engine {engine!r}")
    return [_File(name, folder.joinpath(name).read_text(encoding="utf-8"), faults) for name in names]


def _extra_files(extra_dirs: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for directory in extra_dirs:
        if directory.is_dir():
            found.extend(sorted(directory.glob("*.toml")))
    return found


def _check_extra(file: _File) -> None:
    if file.data and file.data.get("schema") != SCHEMA:
        file.fault("", "schema", f"schema = {SCHEMA} is missing")
    for key in file.data:
        if key not in _OPERATOR_TABLES | {"schema", "engine"}:
            file.fault("", key, f"unknown table {key!r}", "known: " + ", ".join(sorted(_OPERATOR_TABLES)))


def _build(engine: str, base: Sequence[_File], extra: Sequence[_File]) -> Rules:
    files = [*extra, *base]  # an operator's rules come first
    phases = [(file, table) for file in base for table in file.tables("phase")]
    return Rules(
        engine=engine,
        identity=_of_table(base, "identity", "patterns"),
        weak_identity=_of_table(base, "identity", "weak"),
        foreign=_of_table(base, "identity", "foreign"),
        usual=tuple(
            line for file in base for line in file.texts(file.table("identity"), "usual", "identity")
        ),
        launch=_of_table(base, "launch", "patterns"),
        ready=_of_table(base, "ready", "patterns"),
        workers=_of_table(base, "ready", "workers"),
        phases=tuple(_phase(file, number, table) for number, (file, table) in enumerate(phases)),
        capacity=tuple(
            rule for file in base for table in file.tables("capacity") if (rule := _capacity(file, table))
        ),
        warnings=tuple(_warning(file, table) for file in files for table in file.tables("warning")),
        benign=_benign(files, recovers=False),
        recoveries=_benign(files, recovers=True),
        failures=tuple(_failure(file, table) for file in files for table in file.tables("failure")),
        exceptions=tuple(_exception(file, table) for file in files for table in file.tables("exception")),
        placement=next(filter(None, map(_placement, base)), None),
        ignored_import=next(filter(None, map(_ignored_import, base)), None),
        advice=_by_cause([*base, *extra], "advice"),
        summary=_by_cause(base, "summary"),
    )


def _by_cause(files: Sequence[_File], table: str) -> Mapping[Cause, str]:
    return {
        Cause(cause): text
        for file in files
        for cause, text in file.table(table).items()
        if cause in _KEYS[table] and isinstance(text, str)
    }


def _of_table(files: Sequence[_File], table: str, key: str) -> tuple[Pattern, ...]:
    return tuple(
        pattern for file in files for pattern in file.patterns(file.table(table), key, table, needed=False)
    )


def _benign(files: Sequence[_File], *, recovers: bool) -> tuple[Pattern, ...]:
    found: list[Pattern] = []
    for file in files:
        for table in file.tables("benign"):
            rule = f"benign {table.get('name', '')}".strip()
            file.keys("benign", table, rule)
            if file.flag(table, "recovers", rule) is recovers:
                found.extend(file.patterns(table, "patterns", rule))
    return tuple(found)


def _phase(file: _File, number: int, table: Mapping[str, Any]) -> Phase:
    name = file.text(table, "name", "phase")
    rule = f"phase {name}"
    file.keys("phase", table, rule)
    return Phase(
        name=name,
        text=file.text(table, "text", rule),
        order=number,
        silence_s=_silence(file, table, rule),
        begin=file.patterns(table, "begin", rule, needed=False),
        bars=file.patterns(table, "bars", rule, needed=False),
        anonymous_bars=file.flag(table, "anonymous_bars", rule),
        what=file.text(table, "what", rule, ""),
        whole=file.flag(table, "whole", rule),
        fills_memory=file.flag(table, "fills_memory", rule),
    )


def _silence(file: _File, table: Mapping[str, Any], rule: str) -> float:
    try:
        return parse_duration(file.text(table, "silence", rule, "10min"))
    except ValueError as error:
        file.fault(rule, "silence", f"silence {error}")
        return 600.0


def _capacity(file: _File, table: Mapping[str, Any]) -> CapacityRule | None:
    key = file.text(table, "key", "capacity")
    rule = f"capacity {key}"
    file.keys("capacity", table, rule)
    pattern = file.pattern(table, "pattern", rule)
    pick = file.text(table, "pick", rule, "last")
    if pick not in _PICKS:
        file.fault(rule, pick, f"pick must be one of {', '.join(_PICKS)}")
    if pattern is None:
        return None
    return CapacityRule(key, pattern, file.pattern(table, "unless", rule), pick)


def _warning(file: _File, table: Mapping[str, Any]) -> WarningRule:
    name = file.text(table, "name", "warning")
    rule = f"warning {name}"
    file.keys("warning", table, rule)
    return WarningRule(
        name,
        file.patterns(table, "patterns", rule),
        file.text(table, "text", rule),
        file.text(table, "advice", rule),
    )


def _failure(file: _File, table: Mapping[str, Any]) -> FailureRule:
    name = file.text(table, "name", "failure")
    rule = f"failure {name}"
    file.keys("failure", table, rule)
    word = file.text(table, "strength", rule, Strength.SUSPICIOUS.value)
    if word not in (Strength.DECISIVE, Strength.SUSPICIOUS, Strength.SYMPTOM):
        file.fault(rule, word, "strength must be decisive, suspicious or symptom")
        word = Strength.SYMPTOM.value
    strength = Strength(word)
    cause: Cause | None = Cause.UNKNOWN
    if table.get("cause") == BY_PHASE:
        cause = None
    elif strength is not Strength.SYMPTOM:
        cause = file.cause(table, rule)
    return FailureRule(
        name=name,
        patterns=file.patterns(table, "patterns", rule),
        strength=strength,
        cause=cause,
        rank=file.rank(table, rule, 99 if strength is Strength.SYMPTOM else 5),
        unless=file.pattern(table, "unless", rule),
        only_exception=file.flag(table, "only_exception", rule),
        survives_ready=file.flag(table, "survives_ready", rule),
        deliberate=file.flag(table, "deliberate", rule),
        self_kill=file.flag(table, "self_kill", rule),
        last_word=file.flag(table, "last_word", rule),
        source=file.source,
    )


def _exception(file: _File, table: Mapping[str, Any]) -> ExceptionRule:
    name = file.text(table, "name", "exception")
    rule = f"exception {name}"
    file.keys("exception", table, rule)
    phases = table.get("phase", [])
    if not isinstance(phases, list):
        file.fault(rule, "phase", "phase must be a list of phases")
        phases = []
    return ExceptionRule(
        name=name,
        cause=file.cause(table, rule),
        rank=file.rank(table, rule, 90),
        types=file.pattern(table, "types", rule),
        frames=file.pattern(table, "frames", rule),
        last_frame=file.pattern(table, "last_frame", rule),
        phases=frozenset(str(phase) for phase in phases),
    )


def _placement(file: _File) -> Placement | None:
    table = file.table("out_of_memory")
    if not table:
        return None

    def pairs(key: str) -> tuple[tuple[Pattern, Cause], ...]:
        found = []
        for entry in table.get(key, []):
            pattern = file.pattern(entry, "pattern", "out_of_memory")
            if pattern is not None:
                found.append((pattern, file.cause(entry, "out_of_memory")))
        return tuple(found)

    phases = {str(name): Cause(cause) for name, cause in table.get("phases", {}).items()}
    return Placement(pairs("text"), pairs("frames"), phases, Cause(table.get("otherwise", "unknown")))


def _ignored_import(file: _File) -> IgnoredImport | None:
    table = file.table("ignored_import")
    if not table:
        return None
    pattern = file.pattern(table, "pattern", "ignored_import")
    unsupported = file.pattern(table, "unsupported", "ignored_import")
    if pattern is None or unsupported is None:
        return None
    return IgnoredImport(pattern, unsupported)
