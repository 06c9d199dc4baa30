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
# A gap between two answers that is longer than this breaks the span.
HTTP_GAP_S = 60.0
# After a generic symptom ("received sigquit"), its cause may still come from another rank.
SETTLE_SYMPTOM_S = 8.0
# After a decisive text, a more specific one may follow within the same traceback.
SETTLE_DECISIVE_S = 1.0
# After the process ended, its last lines may still be on their way to the journal. The recorder of ends waits
# for those, and names the cause; this is only for a phase or a cause that is nearly there.
SETTLE_EXIT_S = 0.05


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
    CHILDREN = "children"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSeen:
    """What the journal of this life says so far.

    `ticks` grows with every real progress. `cause` is set while a decisive failure text stands, `symptom`
    while something is known to have died. `allowed_silence_s` is how long the present phase may be silent.
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
    """An answer of the server to a question for its health.

    `status` is None if there was none. `own` says whether the listening socket belongs to this life.
    `counts` is False for an answer that may say "not yet" but not "ready" (`/ready`). `generated`: the answer
    itself proves that the engine generates, or that there is no way to ask it that.
    """

    invocation_id: str
    status: int | None
    own: bool
    counts: bool = True
    generated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """The main process of this life is gone."""

    invocation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDefunct:
    """A child of the main process is dead, and the main process does not take note of it."""

    invocation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationChanged:
    """The unit has another invocation now."""

    invocation_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed."""


Event = LogSeen | HealthAnswered | ProcessEnded | ChildDefunct | InvocationChanged | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWatch:
    """The watch over one life.

    `timeout_s` bounds the whole start; with `extend_s`, real progress may go on for that much longer.
    `no_progress_s` bounds the time without progress; it is a floor below the phases' own allowances, unless
    `no_progress_declared` makes it the bound of every phase. `silent_log`: the engine's log level hides all
    progress, so that only a declared bound can count.
    """

    invocation_id: str
    started_at: float
    timeout_s: float
    no_progress_s: float
    no_progress_declared: bool = False
    extend_s: float = 0.0
    silent_log: bool = False
    log: LogSeen | None = None
    progress_at: float = 0.0
    ready_line_at: float | None = None
    healthy_since: float | None = None
    healthy_at: float | None = None
    said_not_yet: bool = False
    ended_at: float | None = None
    symptom_at: float | None = None
    decisive_at: float | None = None
    defunct_at: float | None = None
    state: State = State.WAITING
    source: Source | None = None
    cause: str = "none"

    @property
    def ended(self) -> bool:
        """Whether the verdict is final."""
        return self.state is not State.WAITING

    @property
    def last_progress_at(self) -> float:
        """When the start last moved."""
        return max(self.progress_at, self.started_at)

    @property
    def deadline_at(self) -> float:
        """When the whole start runs out of time, unless it is extended."""
        return self.started_at + self.timeout_s

    @property
    def stalls_at(self) -> float:
        """When the start counts as stuck, if nothing moves until then."""
        if self.no_progress_declared or self.log is None:
            return self.last_progress_at + self.no_progress_s
        return self.last_progress_at + max(self.no_progress_s, self.log.allowed_silence_s)

    @property
    def needs_generation(self) -> bool:
        """Whether only a generation is missing for HTTP alone to confirm.

        A server that was never seen to say "not yet" may be one that says 200 from its first moment on
        (engines before 0.4.10 do): its 200 alone proves nothing.
        """
        return not self.said_not_yet and self.ready_line_at is None and self.healthy_for_s >= HTTP_ALONE_S

    @property
    def healthy_for_s(self) -> float:
        """The span of unbroken 200, from the first answer to the last."""
        if self.healthy_since is None or self.healthy_at is None:
            return 0.0
        return self.healthy_at - self.healthy_since


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
    elif isinstance(event, ChildDefunct) and watch.defunct_at is None:
        watch = replace(watch, defunct_at=now)
    return _decide(watch, now)


def _log_seen(watch: UnitWatch, event: LogSeen, now: float) -> UnitWatch:
    before = watch.log or LogSeen(invocation_id=watch.invocation_id)
    first_ready = event.ready_line and watch.ready_line_at is None
    decisive = event.cause is not None or event.warmup_failed
    return replace(
        watch,
        log=event,
        ready_line_at=now if first_ready else watch.ready_line_at,
        progress_at=now if first_ready or event.ticks > before.ticks else watch.progress_at,
        # The log may take back what it said: "falling back to ..." after a traceback.
        symptom_at=_since(watch.symptom_at, event.symptom, now),
        decisive_at=_since(watch.decisive_at, decisive, now),
    )


def _since(before: float | None, is_so: bool, now: float) -> float | None:
    if not is_so:
        return None
    return now if before is None else before


def _health_answered(watch: UnitWatch, event: HealthAnswered, now: float) -> UnitWatch:
    if event.own and event.status is not None and event.status >= 500:
        watch = replace(watch, said_not_yet=True)
    if not event.counts:
        return watch
    if event.status != 200 or not event.own:
        return replace(watch, healthy_since=None, healthy_at=None)
    unbroken = watch.healthy_at is not None and now - watch.healthy_at <= HTTP_GAP_S
    watch = replace(watch, healthy_since=watch.healthy_since if unbroken else now, healthy_at=now)
    if not _may_be_ready(watch):
        return watch
    if watch.ready_line_at is not None:
        return replace(watch, state=State.READY, source=Source.JOURNAL_AND_HTTP)
    if watch.healthy_for_s >= HTTP_ALONE_S and (watch.said_not_yet or event.generated):
        return replace(watch, state=State.READY, source=Source.HTTP_ALONE)
    return watch


def _may_be_ready(watch: UnitWatch) -> bool:
    log = watch.log
    failing = log is not None and (log.warmup_failed or log.cause is not None or log.symptom)
    return watch.ended_at is None and watch.defunct_at is None and not failing


def _decide(watch: UnitWatch, now: float) -> UnitWatch:
    if watch.ended:
        return watch
    if watch.ended_at is not None:
        settled = now - watch.ended_at >= SETTLE_EXIT_S
        return replace(watch, state=State.FAILED, source=Source.PROCESS) if settled else watch
    out_of_time = _out_of_time(watch, now)
    for since, settle_s, source in (
        (watch.decisive_at, SETTLE_DECISIVE_S, Source.JOURNAL),
        (watch.symptom_at, SETTLE_SYMPTOM_S, Source.JOURNAL),
        (watch.defunct_at, SETTLE_SYMPTOM_S, Source.CHILDREN),
    ):
        if since is not None and (out_of_time or now - since >= settle_s):
            return replace(watch, state=State.FAILED, source=source)
    if out_of_time:
        return replace(watch, state=State.TIMED_OUT, source=Source.CLOCK, cause=out_of_time)
    return watch


def _out_of_time(watch: UnitWatch, now: float) -> str:
    """Which clock ran out: "timeout", "no-progress", or "" for none."""
    if now >= watch.deadline_at:
        moving = now - watch.last_progress_at <= watch.no_progress_s
        if now >= watch.deadline_at + watch.extend_s or not moving:
            return "timeout"
    if now >= watch.stalls_at and (watch.no_progress_declared or not watch.silent_log):
        return "no-progress"
    return ""
