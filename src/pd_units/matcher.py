"""One pass over a message for all rules of an engine: fixed texts first, expressions only behind them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from pd_units.engines.patterns import Pattern
from pd_units.engines.rules import CapacityRule, FailureRule, Phase, Rules, WarningRule
from pd_units.gates import TextIndex
from pd_units.tracebacks import LITERALS as TRACEBACK_LITERALS

_OWN_LITERALS = (
    "it/s]", "s/it]", "?it]", "B/s]", "it/s, ", "erver_args", "ServerArgs(", ".service", "Starting ",
    "Started ", "Stopping ", "Stopped ", "SIGTERM received", "graceful shutdown", "Gracefully exiting",
    "exit code", "Exit code", "exited with code", "Received ", "Shutting down", "^C",
)  # fmt: skip
_IDENTITIES = frozenset({"identity", "weak"})
_FLAGS = frozenset(
    {"identity", "weak", "foreign", "launch", "ready", "benign", "recovery", "worker", "imports"}
)


@dataclass(slots=True)
class Found:
    """What matched in one message. `sure`: the same text with other numbers would match the same."""

    sure: bool = True
    identity: bool = False
    weak: bool = False
    foreign: bool = False
    launch: bool = False
    ready: bool = False
    benign: bool = False
    recovery: bool = False
    worker: bool = False
    imports: bool = False
    phases: list[Phase] = field(default_factory=list)
    capacity: list[tuple[CapacityRule, re.Match[str]]] = field(default_factory=list)
    warnings: list[WarningRule] = field(default_factory=list)
    failures: list[FailureRule] = field(default_factory=list)

    @property
    def uneventful(self) -> bool:
        """Nothing but warnings, or nothing at all: no need to look at such a text again."""
        events = self.launch or self.ready or self.recovery or self.worker or self.imports
        return self.sure and not (
            events or self.phases or self.capacity or (self.failures and not self.benign)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A pattern, what kind of rule it belongs to, that rule, and its place among all."""

    pattern: Pattern
    kind: str
    rule: object
    order: int


_OWN = _Entry(Pattern(re.compile("(?!)"), ()), "own", None, -1)
"""Stands for the texts that the code itself looks for."""


class Matcher:
    """All patterns of `rules`, indexed by their fixed texts. Immutable after construction."""

    def __init__(self, rules: Rules) -> None:
        entries = [_Entry(*each, order) for order, each in enumerate(_patterns(rules))]
        by_text: defaultdict[str, list[_Entry]] = defaultdict(list)
        for entry in entries:
            for literal in entry.pattern.literals:
                by_text[literal].append(entry)
        for text in (*TRACEBACK_LITERALS, *_OWN_LITERALS):
            by_text[text].append(_OWN)
        self._index = TextIndex({text: tuple(found) for text, found in by_text.items()}, rules.usual)

    def interesting(self, text: str, *, recognised: bool) -> bool:
        """True where some rule may have something to say about `text`; its identity, once known, has not."""
        if not self._index.may_stand_in(text):
            return False
        return any(not recognised or entry.kind not in _IDENTITIES for entry in self._index.find_in(text))

    def match(self, text: str) -> Found:
        """Everything that matches in `text`, which must be short (`logtext.shorten`)."""
        found = Found()
        for entry in sorted(set(self._index.find_in(text)), key=_order):
            if entry is _OWN:
                continue
            found.sure = found.sure and not entry.pattern.sees_digits
            match = entry.pattern.regex.search(text)
            if match is not None:
                _note(found, entry.kind, entry.rule, match, text)
        return found


_MADE: dict[int, tuple[Rules, Matcher]] = {}
_MOST_MADE = 4


def matcher_of(rules: Rules) -> Matcher:
    """The matcher of `rules`; made once, since it is immutable and its index takes some work."""
    made = _MADE.get(id(rules))
    if made is None or made[0] is not rules:
        if len(_MADE) >= _MOST_MADE:
            _MADE.clear()
        made = _MADE[id(rules)] = (rules, Matcher(rules))
    return made[1]


def _order(entry: _Entry) -> int:
    return entry.order


def _patterns(rules: Rules) -> Iterator[tuple[Pattern, str, object]]:
    flags = {
        "identity": rules.identity,
        "weak": rules.weak_identity,
        "foreign": rules.foreign,
        "launch": rules.launch,
        "ready": rules.ready,
        "worker": rules.workers,
        "benign": rules.benign,
        "recovery": rules.recoveries,
    }
    for kind, patterns in flags.items():
        for pattern in patterns:
            yield pattern, kind, None
    for phase in rules.phases:
        for pattern in phase.begin:
            yield pattern, "phase", phase
    for capacity in rules.capacity:
        yield capacity.pattern, "capacity", capacity
    for warning in rules.warnings:
        for pattern in warning.patterns:
            yield pattern, "warning", warning
    for failure in rules.failures:
        for pattern in failure.patterns:
            yield pattern, "failure", failure
    if rules.ignored_import is not None:
        yield rules.ignored_import.pattern, "imports", None
        yield rules.ignored_import.unsupported, "imports", None


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
    elif kind in _FLAGS:
        setattr(found, kind, True)
