"""What is known of an engine's output, as frozen rules. They are read by `pd_units.engines.loading`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pd_units.engines.patterns import Pattern
from pd_units.errors import Fault
from pd_units.evidence import Cause, Strength


@dataclass(frozen=True, slots=True)
class Phase:
    """A stage of a start. `silence_s` is the longest honest time (s) without progress in it; `whole` says
    that no rank is behind it any more, `fills_memory` that memory fills up in it."""

    name: str
    text: str
    order: int
    silence_s: float
    begin: tuple[Pattern, ...]
    bars: tuple[Pattern, ...] = ()
    anonymous_bars: bool = False
    what: str = ""
    whole: bool = False
    fills_memory: bool = False


@dataclass(frozen=True, slots=True)
class CapacityRule:
    """A number to keep: group `value` (or `other`), plus group `more` where there is one."""

    key: str
    pattern: Pattern
    unless: Pattern | None
    pick: str


@dataclass(frozen=True, slots=True)
class WarningRule:
    """Something worth saying about a start that may be good."""

    name: str
    patterns: tuple[Pattern, ...]
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class FailureRule:
    """A text, how much it proves, and the cause it names; `cause` None: placed by frames and phase.

    `survives_ready`: still a failure where the ready line follows it. `deliberate`: a requested stop prints
    it too. `self_kill`: the engine kills itself after it, so that SIGKILL proves nothing more. `last_word`:
    a failure where nothing moves after it.
    """

    name: str
    patterns: tuple[Pattern, ...]
    strength: Strength
    cause: Cause | None
    rank: int
    unless: Pattern | None = None
    only_exception: bool = False
    survives_ready: bool = False
    deliberate: bool = False
    self_kill: bool = False
    last_word: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class ExceptionRule:
    """A cause for an exception whose text no failure rule knows, by its type, its frames, its phase."""

    name: str
    cause: Cause
    rank: int
    types: Pattern | None
    frames: Pattern | None
    last_frame: Pattern | None
    phases: frozenset[str]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an out-of-memory belongs: by its text, by its innermost telling frame, by the phase."""

    text: tuple[tuple[Pattern, Cause], ...]
    frames: tuple[tuple[Pattern, Cause], ...]
    phases: Mapping[str, Cause]
    otherwise: Cause


@dataclass(frozen=True, slots=True)
class IgnoredImport:
    """An import that was ignored (group `module`), and the later refusal of a model (group `archs`)."""

    pattern: Pattern
    unsupported: Pattern


@dataclass(frozen=True, slots=True)
class Rules:
    """All that is known of one engine's output, ready to match. `faults`: what was left out, and why."""

    engine: str
    identity: tuple[Pattern, ...]
    weak_identity: tuple[Pattern, ...]
    foreign: tuple[Pattern, ...]
    usual: tuple[str, ...]
    launch: tuple[Pattern, ...]
    ready: tuple[Pattern, ...]
    workers: tuple[Pattern, ...]
    phases: tuple[Phase, ...]
    capacity: tuple[CapacityRule, ...]
    warnings: tuple[WarningRule, ...]
    benign: tuple[Pattern, ...]
    recoveries: tuple[Pattern, ...]
    failures: tuple[FailureRule, ...]
    exceptions: tuple[ExceptionRule, ...]
    placement: Placement | None
    ignored_import: IgnoredImport | None
    advice: Mapping[Cause, str] = field(default_factory=dict)
    summary: Mapping[Cause, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def words(self, cause: Cause) -> str:
        """The cause in a few words."""
        return self.summary.get(cause, cause.value.replace("-", " "))

    def phase(self, name: str | None) -> Phase | None:
        """The phase of that name, None if there is none."""
        return next((phase for phase in self.phases if phase.name == name), None)
