"""One TOML file of rules while it is read: what is wrong with it is collected, each fault with its line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from pd_units.engines.patterns import Pattern, PatternError, compile_pattern
from pd_units.errors import Fault
from pd_units.evidence import Cause

KEYS: Mapping[str, frozenset[str]] = {
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


class RuleFile:
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
            if key not in KEYS[kind]:
                self.fault(rule, str(key), f"unknown key {key!r}", "known: " + ", ".join(sorted(KEYS[kind])))

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
