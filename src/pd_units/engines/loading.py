"""Reads an engine's TOML files, and an operator's additions to them, into frozen rules.

Shape of the files: docs/reference/rules.md. Everything is checked at once: a file that does not parse, an
unknown key, a pattern that is refused, each named with file, rule and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from pd_units.durations import parse_duration
from pd_units.engines.patterns import Pattern
from pd_units.engines.rulefile import KEYS, RuleFile
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
_PICKS = ("last", "first")
_OPERATOR_TABLES = frozenset({"warning", "benign", "failure", "exception", "advice"})


def load_rules(
    engine: str = "sglang", extra_dirs: Sequence[Path] = (RULES_DIR,), *, strict: bool = False
) -> Rules:
    """The rules of `engine`, extended by every *.toml of `extra_dirs` that names it.

    A file with a fault is left out, and its faults are in `Rules.faults`: a mistake in a rule must not stop
    an engine from starting. With `strict` it raises DeploymentError, with every fault at once: exit code 11,
    or 10 for an unreadable file.
    """
    faults: list[Fault] = []
    base = _packaged(engine, faults)
    good: list[RuleFile] = []
    for path in _extra_files(extra_dirs):
        own: list[Fault] = []
        extra = _read_extra(path, own, strict=strict)
        if extra is not None and extra.data.get("engine", engine) == engine:
            _check_extra(extra)
            _build(engine, base, [extra])
            if not own:
                good.append(extra)
        faults.extend(own)
    rules = _build(engine, base, good)
    if faults and strict:
        raise DeploymentError("the diagnosis rules have faults", faults=faults)
    return replace(rules, faults=tuple(faults))


def _read_extra(path: Path, faults: list[Fault], *, strict: bool) -> RuleFile | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if strict:
            raise DeploymentError(f"{path}: not readable: {error}", exit_code=ExitCode.UNREADABLE) from None
        faults.append(Fault(str(path), f"not readable: {error}"))
        return None
    return RuleFile(str(path), text, faults)


def _packaged(engine: str, faults: list[Fault]) -> list[RuleFile]:
    """The engine's own files: `<engine>.toml`, and `<engine>_*.toml` for what belongs to it."""
    folder = resources.files("pd_units.engines")
    names = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name == f"{engine}.toml" or re.fullmatch(rf"{re.escape(engine)}_\w+\.toml", entry.name)
    )
    if f"{engine}.toml" not in names:
        raise DeploymentError(f"nothing is known of an engine {engine!r}")
    return [RuleFile(name, folder.joinpath(name).read_text(encoding="utf-8"), faults) for name in names]


def _extra_files(extra_dirs: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for directory in extra_dirs:
        if directory.is_dir():
            found.extend(sorted(directory.glob("*.toml")))
    return found


def _check_extra(file: RuleFile) -> None:
    if file.data and file.data.get("schema") != SCHEMA:
        file.fault("", "schema", f"schema = {SCHEMA} is missing")
    for key in file.data:
        if key not in _OPERATOR_TABLES | {"schema", "engine"}:
            file.fault("", key, f"unknown table {key!r}", "known: " + ", ".join(sorted(_OPERATOR_TABLES)))


def _build(engine: str, base: Sequence[RuleFile], extra: Sequence[RuleFile]) -> Rules:
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


def _by_cause(files: Sequence[RuleFile], table: str) -> Mapping[Cause, str]:
    return {
        Cause(cause): text
        for file in files
        for cause, text in file.table(table).items()
        if cause in KEYS[table] and isinstance(text, str)
    }


def _of_table(files: Sequence[RuleFile], table: str, key: str) -> tuple[Pattern, ...]:
    return tuple(
        pattern for file in files for pattern in file.patterns(file.table(table), key, table, needed=False)
    )


def _benign(files: Sequence[RuleFile], *, recovers: bool) -> tuple[Pattern, ...]:
    found: list[Pattern] = []
    for file in files:
        for table in file.tables("benign"):
            rule = f"benign {table.get('name', '')}".strip()
            file.keys("benign", table, rule)
            if file.flag(table, "recovers", rule) is recovers:
                found.extend(file.patterns(table, "patterns", rule))
    return tuple(found)


def _phase(file: RuleFile, number: int, table: Mapping[str, Any]) -> Phase:
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


def _silence(file: RuleFile, table: Mapping[str, Any], rule: str) -> float:
    try:
        return parse_duration(file.text(table, "silence", rule, "10min"))
    except ValueError as error:
        file.fault(rule, "silence", f"silence {error}")
        return 600.0


def _capacity(file: RuleFile, table: Mapping[str, Any]) -> CapacityRule | None:
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


def _warning(file: RuleFile, table: Mapping[str, Any]) -> WarningRule:
    name = file.text(table, "name", "warning")
    rule = f"warning {name}"
    file.keys("warning", table, rule)
    return WarningRule(
        name,
        file.patterns(table, "patterns", rule),
        file.text(table, "text", rule),
        file.text(table, "advice", rule),
    )


def _failure(file: RuleFile, table: Mapping[str, Any]) -> FailureRule:
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


def _exception(file: RuleFile, table: Mapping[str, Any]) -> ExceptionRule:
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


def _placement(file: RuleFile) -> Placement | None:
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


def _ignored_import(file: RuleFile) -> IgnoredImport | None:
    table = file.table("ignored_import")
    if not table:
        return None
    pattern = file.pattern(table, "pattern", "ignored_import")
    unsupported = file.pattern(table, "unsupported", "ignored_import")
    if pattern is None or unsupported is None:
        return None
    return IgnoredImport(pattern, unsupported)
