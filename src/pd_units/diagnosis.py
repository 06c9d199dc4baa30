"""Reads an engine's start-up output, line by line, and says what it proves.

`Classifier` takes what a journal or a file holds and remembers, in constant memory, what of it is evidence:
phase, progress, capacity, warnings, failure texts, deaths. `diagnose` concludes from that at any moment; it
is right or undecided at every prefix of a log. Nothing here knows an engine: that is data (engines/*.toml).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pd_units.conclusion import conclude, decisive_cause, has_symptom, start_succeeded, warmup_failed
from pd_units.engines.loading import load_rules
from pd_units.engines.rules import Rules
from pd_units.evidence import (
    NOT_RETRIED,
    Cause,
    Death,
    Diagnosis,
    Evidence,
    ExitStatus,
    Progress,
    Strength,
    Verdict,
    Warning_,
)
from pd_units.intake import Intake
from pd_units.life import Life

__all__ = [
    "NOT_RETRIED",
    "Cause",
    "Classifier",
    "Death",
    "Diagnosis",
    "Evidence",
    "ExitStatus",
    "Progress",
    "Rules",
    "Strength",
    "Verdict",
    "Warning_",
    "load_rules",
]


class Classifier:
    """Incremental and pure: one for each stream of messages.

    With `cut_lives` (a file, a whole journal) a new launch begins a new life and only the newest counts; a
    reader of one invocation says False. `role` says that the text surely is this engine's, so that a failure
    needs no other sign of it.
    """

    def __init__(self, rules: Rules, *, role: str | None = None, cut_lives: bool = True) -> None:
        self.rules = rules
        self.role = role
        self._intake = Intake(rules, cut_lives=cut_lives)

    def feed(self, text: str, number: int | None = None, *, manager: bool = False) -> None:
        """Take one journal entry or one line of a file; it may hold bars, colours, newlines.

        `number` is the line's number for evidence (default: counted). `manager`: PID 1 wrote it.
        """
        self._intake.feed(text, number, manager)

    def feed_many(self, lines: Iterable[str]) -> None:
        """Take many lines; the fast path for floods. The same result as `feed` for each of them."""
        self._intake.feed_many(lines)

    @property
    def _life(self) -> Life:
        return self._intake.reading.life

    @property
    def lives(self) -> int:
        """How many lives this text holds so far."""
        return self._intake.reading.lives

    # ------------------------------------------------------------------------------------- what is known
    @property
    def phase(self) -> str | None:
        """The phase in words for a status line ("loading weights"), None before the first sign."""
        current = self._life.phase.current
        return current.text if current else None

    @property
    def phase_name(self) -> str | None:
        """The phase's name in the rules ("loading")."""
        current = self._life.phase.current
        return current.name if current else None

    @property
    def progress(self) -> Progress | None:
        """The moving bar of the current phase, if there is one."""
        return self._life.phase.progress

    @property
    def status_text(self) -> str:
        """Phase and progress in one: "loading weights 23/46"; "" before the first sign."""
        progress = self.progress
        return f"{self.phase or ''} {progress or ''}".strip()

    @property
    def progress_ticks(self) -> int:
        """A count that grows by one at each real progress: a new phase, a moved bar, a new capacity line."""
        return self._life.phase.ticks

    @property
    def allowed_silence_s(self) -> float:
        """The longest honest time (s) without progress in the current phase."""
        current = self._life.phase.current or (self.rules.phases[0] if self.rules.phases else None)
        return current.silence_s if current else 600.0

    @property
    def was_ready(self) -> bool:
        """The ready line was seen in this life."""
        return self._life.is_ready

    @property
    def ready_line(self) -> bool:
        """The ready line was seen in this life, and no failed warm-up, bind or death before it."""
        return start_succeeded(self._life)

    @property
    def ready_line_number(self) -> int | None:
        """The number of the ready line."""
        return self._life.ready_line

    @property
    def warmup_failed(self) -> bool:
        """A text says that the engine's own warm-up, or its bind, failed."""
        return warmup_failed(self._life)

    @property
    def decisive(self) -> Cause | None:
        """The cause, where a decisive failure text was seen: this start, or this life, has failed, now."""
        return decisive_cause(self._life)

    @property
    def symptom(self) -> bool:
        """Something died and its cause may still come: wait a little, or until the processes are gone."""
        return has_symptom(self._life)

    @property
    def stop_requested(self) -> bool:
        """The output says that somebody asked the process to stop."""
        return self._life.stop_at is not None

    @property
    def capacity(self) -> Mapping[str, int | float]:
        """The numbers kept of this life (`kv_tokens`, `max_running_requests`, ...)."""
        return dict(self._life.phase.capacity)

    @property
    def warnings(self) -> tuple[Warning_, ...]:
        """The warnings of this life, each kind once."""
        return self._life.phase.warnings

    def diagnose(
        self, exit_status: ExitStatus | None = None, *, alive: bool | None = None, stalled: str | None = None
    ) -> Diagnosis:
        """What the newest life's text, and the witnesses given, prove.

        `exit_status`: how the process ended. `alive`: it is known to run, or to be gone. `stalled`:
        "timeout" or "no-progress", where a clock ran out.
        """
        life = self._life
        if self.role is not None:
            life.recognised = True
        return conclude(
            life, self.rules, exit_status=exit_status, alive=alive, stalled=stalled, lives=self.lives
        )
