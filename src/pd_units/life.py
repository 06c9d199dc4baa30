"""What is remembered of one life of a process: a bounded heap of evidence, nothing decided yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pd_units.engines.rules import ExceptionRule, FailureRule, Rules
from pd_units.evidence import Cause, ExitStatus, Strength
from pd_units.startphase import StartPhase
from pd_units.tracebacks import Origin, Raised

_KEPT_TEXT = 400
_KEPT_EXCEPTIONS = 24
_KEPT_IMPORTS = 512
_SOON = 60
DYING = (Origin.WORKER, Origin.MAIN, Origin.PROCESS)
"""Whose exception is a death."""


@dataclass(slots=True)
class Hit:
    """The first sight of a failure rule in this life, for one cause."""

    rule: FailureRule | ExceptionRule
    cause: Cause
    rank: int
    strength: Strength
    line: int | None
    text: str
    at: int
    count: int = 1
    after_ready: bool = False


@dataclass(slots=True)
class Thrown:
    """An exception that was printed, and whether a rule knows its text."""

    raised: Raised
    line: int | None
    at: int
    known: bool
    after_ready: bool
    phase: str | None


@dataclass(slots=True)
class Life:
    """One life. `at` counts messages; `line` numbers are the reader's."""

    rules: Rules
    first_line: int | None = None
    recognised: bool = False
    resembles: bool = False
    foreign: bool = False
    settings_at: int | None = None
    settings_open: bool = False
    ready_line: int | None = None
    ready_at: int | None = None
    ready_text: str = ""
    workers_declared: int = 0
    workers_up: int = 0
    stop_at: int | None = None
    over: bool = False
    announced: bool = False
    progress_at: int = 0
    milestones: int = 0
    exit: ExitStatus | None = None
    exit_line: int | None = None
    exit_text: str = ""
    oom_killed: bool = False
    child_exits: list[tuple[int, int | None, str, int]] = field(default_factory=list)
    hits: dict[tuple[str, Cause, bool], Hit] = field(default_factory=dict)
    thrown: list[Thrown] = field(default_factory=list)
    thrown_at: int | None = None
    ignored_imports: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    phase: StartPhase = field(init=False)
    loading_since_s: int | None = None
    clock_s: int | None = None
    falls: int = 0
    rises: int = 0
    serving_at: int | None = None

    def __post_init__(self) -> None:
        self.phase = StartPhase(self.rules)

    def note_clock(self, clock_s: int) -> None:
        """Note a stamp's second of the day, and whether time went on or back."""
        if self.clock_s is not None:
            self.rises += clock_s > self.clock_s
            self.falls += clock_s < self.clock_s
        self.clock_s = clock_s

    @property
    def is_ours(self) -> bool:
        """The text is the engine's: it says so, or resembles it and nothing says otherwise."""
        return self.recognised or (self.resembles and not self.foreign)

    @property
    def is_ready(self) -> bool:
        """The ready line was seen."""
        return self.ready_at is not None

    def hit(
        self,
        rule: FailureRule | ExceptionRule,
        cause: Cause,
        strength: Strength,
        line: int | None,
        text: str,
        at: int,
    ) -> Hit:
        """Note a match, once for each rule, cause, and side of the ready line."""
        key = (rule.name, cause, self.is_ready)
        known = self.hits.get(key)
        if known is not None:
            known.count += 1
            return known
        hit = Hit(rule, cause, rule.rank, strength, line, text[:_KEPT_TEXT], at, 1, self.is_ready)
        self.hits[key] = hit
        return hit

    def throw(self, raised: Raised, line: int | None, at: int, known: bool) -> None:
        """Note an exception; only the first ones are kept, but the last one's place always."""
        if raised.origin not in (Origin.LOGGED, Origin.THREAD):
            self.thrown_at = at
        if len(self.thrown) < _KEPT_EXCEPTIONS:
            phase = None if self.is_ready else self.phase.of(raised.tag)  # a death while serving has no stage
            self.thrown.append(Thrown(raised, line, at, known, self.is_ready, phase.name if phase else None))

    def ignore_import(self, module: str, line: int | None, text: str) -> None:
        """Note an import that the engine chose to ignore."""
        if len(self.ignored_imports) < _KEPT_IMPORTS:
            self.ignored_imports.setdefault(module, (line, text[:_KEPT_TEXT]))

    def become_ready(self, line: int | None, text: str, at: int) -> None:
        """Note the ready line. Deaths seen before the HTTP server of this line came up are another life's."""
        if self.is_ready:
            return
        serving_at = self.serving_at
        if serving_at is not None and all(hit.at < serving_at for hit in self._deadly()):
            self.forget_failures(keep_surviving=True)
        self.ready_line, self.ready_text, self.ready_at = line, text[:_KEPT_TEXT], at

    def child_exit(self, code: int, line: int | None, text: str, at: int) -> None:
        """Note the exit code of a child; -15 is somebody's wish to stop."""
        if code == -15 and self.stop_at is None and not self.oom_killed:
            self.stop_at = at
        if code not in (0, -15) and len(self.child_exits) < _KEPT_EXCEPTIONS:
            self.child_exits.append((code, line, text[:_KEPT_TEXT], at))

    def forget_failures(self, *, keep_surviving: bool = False) -> None:
        """Drop evidence of failure: the process went on."""
        self.hits = {
            key: hit
            for key, hit in self.hits.items()
            if keep_surviving and isinstance(hit.rule, FailureRule) and hit.rule.survives_ready
        }
        self.thrown.clear()
        self.child_exits.clear()
        self.thrown_at = None

    def interrupt(self, at: int) -> None:
        """Somebody pressed Ctrl-C: what died of that is no failure."""
        if self.stop_at is None:
            self.stop_at = at
        self.hits = {
            key: hit
            for key, hit in self.hits.items()
            if not (isinstance(hit.rule, FailureRule) and hit.rule.deliberate and hit.at > at - _SOON)
        }

    def recover(self, at: int) -> None:
        """Drop the exception just before, if it was not a death: the program says that it went on without."""
        if not self.thrown or self.thrown[-1].raised.origin in DYING or at - self.thrown[-1].at > _SOON:
            return
        last = self.thrown.pop()
        self.thrown_at = None
        self.hits = {
            key: hit
            for key, hit in self.hits.items()
            if hit.at != last.at or hit.strength is not Strength.SUSPICIOUS
        }

    def touched(self) -> bool:
        """Anything at all was seen of the process."""
        return bool(self.is_ours or self.hits or self.thrown or self.exit)

    def got_anywhere(self) -> bool:
        """This life went beyond its first lines, or ended: another launch is another life."""
        return bool(
            self.over
            or self.is_ready
            or self.milestones
            or any(True for _ in self._deadly())
            or any(thrown.raised.origin in DYING for thrown in self.thrown)
        )

    def _deadly(self) -> Iterator[Hit]:
        return (hit for hit in self.hits.values() if hit.strength is not Strength.SUSPICIOUS)
