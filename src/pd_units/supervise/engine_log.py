"""The journal of one life, read into the classifier as it comes, with the times of its phases."""

from __future__ import annotations

from itertools import pairwise

from pd_units.adapters.journal import Life, LifeReader
from pd_units.diagnosis import Classifier, Rules, load_rules
from pd_units.errors import PdUnitsError
from pd_units.readiness import LogSeen
from pd_units.starts import PhaseLog
from pd_units.supervise.command import say

# The engine's milestones and its ready line are of the level "info".
_SILENT_LEVELS = ("warning", "warn", "error", "critical", "fatal")


def rules() -> Rules:
    """The rules of the diagnosis, without an operator's additions that have faults: those are named."""
    found = load_rules()
    for fault in found.faults:
        say(f"an addition to the rules is left out: {fault}")
    return found


def is_silent(argv: tuple[str, ...]) -> bool:
    """Whether an engine with this command line prints no milestone and no ready line."""
    for word, value in pairwise((*argv, "")):
        name, _, joined = word.partition("=")
        if name == "--log-level" and (joined or value).lower() in _SILENT_LEVELS:
            return True
    return False


class EngineLog:
    """Reads what is new and classifies it. A journal that cannot be opened is an empty one here.

    `began_s`: the start of the invocation, in seconds of CLOCK_MONOTONIC; phases count from there.
    """

    def __init__(self, life: Life, role: str, began_s: float) -> None:
        self.classifier = Classifier(rules(), role=role, cut_lives=False)
        self.phases = PhaseLog()
        self._life, self._began_s = life, began_s
        self.blind = True  # not one line of this life was seen, nor what PID 1 says of it
        self._reader: LifeReader | None = None
        try:
            self._reader = LifeReader(life)
        except PdUnitsError as error:
            say(f"without the journal: {error.brief}: {error.detail}")

    def read(self) -> bool:
        """Classify every line that is there now; whether there was any."""
        if self._reader is None:
            return False
        self._reader.refresh()
        if not self._reader.look():
            return False
        log, seen = self.classifier, False
        for line in self._reader.lines():
            log.feed(line.text, manager=line.of_manager)
            if log.phase_name is not None and log.phase_name != self._phase:
                at_s = self._reader.mono_us() / 1e6 - self._began_s
                self.phases.enter(log.phase_name, log.phase or "", at_s)
            seen = True
        self.blind = self.blind and not seen
        return seen

    @property
    def _phase(self) -> str | None:
        times = self.phases.times
        return times[-1].name if times else None

    def seen(self) -> LogSeen:
        """What the life's lines say so far, for the state machine."""
        log = self.classifier
        return LogSeen(
            invocation_id=self._life.invocation_id,
            ready_line=log.ready_line,
            warmup_failed=log.warmup_failed,
            cause=str(log.decisive) if log.decisive else None,
            symptom=log.symptom,
            ticks=log.progress_ticks,
            allowed_silence_s=log.allowed_silence_s,
        )

    @property
    def losses(self) -> str:
        """What of the log is known to be missing, in words; "" if nothing is."""
        reader = self._reader
        if reader is None:
            return "the journal cannot be read"
        if self.blind:
            return "it has no line of this start"
        if reader.dropped:
            return f"journald dropped {reader.dropped} of its lines (rate limit)"
        return "the journal has gaps (vacuumed or damaged)" if reader.gaps else ""
