"""One pass over a message for all rules of an engine: fixed texts first, expressions only behind them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeVar

from pd_units.engines.patterns import Pattern
from pd_units.engines.rules import CapacityRule, FailureRule, Phase, Rules, WarningRule
from pd_units.startphase import gates
from pd_units.tracebacks import LITERALS as TRACEBACK_LITERALS

_OWN_LITERALS = (
    "it/s", "s/it", "?it]", "erver_args", "ServerArgs(", ".service", "Starting ", "Started ", "Stopping ",
    "Stopped ", "SIGTERM received", "graceful shutdown", "Gracefully exiting", "exit code", "Exit code",
    "Killed", "killed", "Shutting down",
)  # fmt: skip
R = TypeVar("R")


@dataclass(slots=True)
class Found:
    """What matched in one message."""

    identity: bool = False
    launch: bool = False
    ready: bool = False
    benign: bool = False
    worker: bool = False
    phases: list[Phase] = field(default_factory=list)
    capacity: list[tuple[CapacityRule, re.Match[str]]] = field(default_factory=list)
    warnings: list[WarningRule] = field(default_factory=list)
    failures: list[FailureRule] = field(default_factory=list)


class Matcher:
    """All patterns of `rules`, indexed by their fixed texts. Immutable after construction."""

    def __init__(self, rules: Rules) -> None:
        index: defaultdict[str, list[tuple[Pattern, str, object]]] = defaultdict(list)

        def add(patterns: tuple[Pattern, ...], kind: str, rule: object = None) -> None:
            for pattern in patterns:
                for literal in pattern.literals:
                    index[literal].append((pattern, kind, rule))

        add(rules.identity, "identity")
        add(rules.launch, "launch")
        add(rules.ready, "ready")
        add(rules.workers, "worker")
        add(rules.benign, "benign")
        for phase in rules.phases:
            add(phase.begin, "phase", phase)
        for capacity in rules.capacity:
            add((capacity.pattern,), "capacity", capacity)
        for warning in rules.warnings:
            add(warning.patterns, "warning", warning)
        for failure in rules.failures:
            add(failure.patterns, "failure", failure)
        imports = rules.ignored_import
        if imports is not None:
            add((imports.pattern, imports.unsupported), "import")
        self._index = tuple((literal, tuple(entries)) for literal, entries in index.items())
        self.gates = gates([*index, *TRACEBACK_LITERALS, *_OWN_LITERALS])
        """A message without any of these texts means nothing to any rule."""

    def interesting(self, text: str) -> bool:
        """True where some rule may have something to say about `text`."""
        return any(gate in text for gate in self.gates)

    def match(self, text: str) -> Found:
        """Everything that matches in `text`, which must be short (`logtext.shorten`)."""
        found = Found()
        tried: set[int] = set()
        for literal, entries in self._index:
            if literal not in text:
                continue
            for pattern, kind, rule in entries:
                if id(pattern) in tried:
                    continue
                tried.add(id(pattern))
                match = pattern.regex.search(text)
                if match is not None:
                    _note(found, kind, rule, match, text)
        return found


def _note(found: Found, kind: str, rule: object, match: re.Match[str], text: str) -> None:
    if kind == "failure" and isinstance(rule, FailureRule):
        if rule not in found.failures and (rule.unless is None or not rule.unless.search(text)):
            found.failures.append(rule)
    elif kind == "phase" and isinstance(rule, Phase):
        found.phases.append(rule)
    elif kind == "capacity" and isinstance(rule, CapacityRule):
        found.capacity.append((rule, match))
    elif kind == "warning" and isinstance(rule, WarningRule):
        if rule not in found.warnings:
            found.warnings.append(rule)
    elif kind in ("identity", "launch", "ready", "benign", "worker"):
        setattr(found, kind, True)
