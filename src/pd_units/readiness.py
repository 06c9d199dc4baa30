"""When is one life of a backend ready, failed, or out of time: a pure state machine.

`step(watch, event)` takes what was observed (journal, HTTP, process, clock) and gives the next state. A life
is named by its invocation ID: events of another life change nothing, and no order of events makes a life
ready that is dead or superseded. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

# `/health` alone confirms after this much unbroken 200, where the journal does not show the ready line.
HTTP_ALONE_S = 10.0
# After a generic symptom ("received sigquit"), its cause may still come from another rank.
SETTLE_SYMPTOM_S = 8.0
# After a decisive text, a more specific one may follow within the same traceback.
SETTLE_DECISIVE_S = 1.0
# After the process ended, its last lines may still be on their way to the journal.
SETTLE_EXIT_S = 0.4


class State(StrEnum):
    """The verdict on a life. All but WAITING are final."""

    WAITING = "waiting"
    READY = "ready"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    SUPERSEDED = "superseded"


class Source(StrEnum):
    """What a verdict rests on."""

    JOURNAL_AND_HTTP = "journal+http"
    HTTP_ALONE = "http"
    JOURNAL = "journal"
    PROCESS = "process"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSeen:
    """What the journal of this life says so far.

    `ticks` grows with every real progress. `cause` is set once a decisive failure text was seen.
    `allowed_silence_s` is how long the present phase may honestly be silent.
    """

    invocation_id: str
    ready_line: bool = False
    warmup_failed: bool = False
    cause: str | None = None
    symptom: bool = False
    ticks: int = 0
    allowed_silence_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthAnswered:
    """An answer of `/health` to a request sent at `asked_at`.

    `status` is None if there was none. `own` says whether the listening socket belongs to this life.
    """

    invocation_id: str
    status: int | None
    own: bool
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """The main process of this life is gone."""

    invocation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationChanged:
    """The unit has another invocation now."""

    invocation_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed."""


Event = LogSeen | HealthAnswered | ProcessEnded | InvocationChanged | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWatch:
    """The watch over one life.

    `timeout_s` bounds the whole start. `no_progress_s` bounds the time without progress; it is a floor
    below the phases' own allowances, unless `no_progress_declared` makes it the bound of every phase.
    """

    invocation_id: str
    started_at: float
    timeout_s: float
    no_progress_s: float
    no_progress_declared: bool = False
    log: LogSeen | None = None
    progress_at: float = 0.0
    ready_line_at: float | None = None
    healthy_since: float | None = None
    ended_at: float | None = None
    symptom_at: float | None = None
    decisive_at: float | None = None
    state: State = State.WAITING
    source: Source | None = None
    cause: str = "none"

    @property
    def ended(self) -> bool:
        """Whether the verdict is final."""
        return self.state is not State.WAITING

    @property
    def deadline_at(self) -> float:
        """When the whole start runs out of time."""
        return self.started_at + self.timeout_s

    @property
    def stalls_at(self) -> float:
        """When the start counts as stuck, if nothing moves until then."""
        last = max(self.progress_at, self.started_at)
        if self.no_progress_declared or self.log is None:
            return last + self.no_progress_s
        return last + max(self.no_progress_s, self.log.allowed_silence_s)


def step(watch: UnitWatch, event: Event, now: float) -> UnitWatch:
    """The watch after `event`, observed at `now`."""
    if watch.ended:
        return watch
    if isinstance(event, InvocationChanged):
        if event.invocation_id == watch.invocation_id:
            return watch
        return replace(watch, state=State.SUPERSEDED, source=Source.PROCESS)
    if not isinstance(event, Tick) and event.invocation_id != watch.invocation_id:
        return watch
    if isinstance(event, LogSeen):
        watch = _log_seen(watch, event, now)
    elif isinstance(event, HealthAnswered):
        watch = _health_answered(watch, event, now)
    elif isinstance(event, ProcessEnded) and watch.ended_at is None:
        watch = replace(watch, ended_at=now, healthy_since=None)
    return _decide(watch, now)


def _log_seen(watch: UnitWatch, event: LogSeen, now: float) -> UnitWatch:
    changes: dict[str, object] = {"log": event}
    before = watch.log or LogSeen(invocation_id=watch.invocation_id)
    if event.ticks > before.ticks:
        changes["progress_at"] = now
    if event.ready_line and watch.ready_line_at is None:
        changes["ready_line_at"] = now
        changes["progress_at"] = now
    if event.symptom and watch.symptom_at is None:
        changes["symptom_at"] = now
    if (event.cause or event.warmup_failed) and watch.decisive_at is None:
        changes["decisive_at"] = now
    return replace(watch, **changes)  # type: ignore[arg-type]


def _health_answered(watch: UnitWatch, event: HealthAnswered, now: float) -> UnitWatch:
    if event.status != 200 or not event.own:
        return replace(watch, healthy_since=None)
    watch = replace(watch, healthy_since=watch.healthy_since if watch.healthy_since is not None else now)
    if not _may_be_ready(watch):
        return watch
    if watch.ready_line_at is not None:
        return replace(watch, state=State.READY, source=Source.JOURNAL_AND_HTTP)
    if watch.healthy_since is not None and now - watch.healthy_since >= HTTP_ALONE_S:
        return replace(watch, state=State.READY, source=Source.HTTP_ALONE)
    return watch


def _may_be_ready(watch: UnitWatch) -> bool:
    log = watch.log
    failing = log is not None and (log.warmup_failed or log.cause is not None or log.symptom)
    return watch.ended_at is None and not failing


def _decide(watch: UnitWatch, now: float) -> UnitWatch:
    if watch.ended:
        return watch
    if watch.ended_at is not None:
        if now - watch.ended_at >= SETTLE_EXIT_S:
            return replace(watch, state=State.FAILED, source=Source.PROCESS)
        return watch
    if watch.decisive_at is not None and now - watch.decisive_at >= SETTLE_DECISIVE_S:
        return replace(watch, state=State.FAILED, source=Source.JOURNAL)
    if watch.symptom_at is not None and now - watch.symptom_at >= SETTLE_SYMPTOM_S:
        return replace(watch, state=State.FAILED, source=Source.JOURNAL)
    if now >= watch.deadline_at:
        return replace(watch, state=State.TIMED_OUT, source=Source.CLOCK, cause="timeout")
    if now >= watch.stalls_at:
        return replace(watch, state=State.TIMED_OUT, source=Source.CLOCK, cause="no-progress")
    return watch
