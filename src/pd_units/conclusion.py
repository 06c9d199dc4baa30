"""From a life's evidence to a verdict and a cause. Pure; nothing is matched here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

from pd_units.attribution import ignored_module_of, place_exception
from pd_units.engines.rules import FailureRule, Rules
from pd_units.evidence import NOT_RETRIED, Cause, Death, Diagnosis, Evidence, ExitStatus, Strength, Verdict
from pd_units.life import DYING, Hit, Life, Thrown
from pd_units.tracebacks import Origin

_NO_CAUSE = ("KeyboardInterrupt", "SystemExit", "EOFError", "CancelledError", "BrokenPipeError")
_SOON_S = 10
_RANK_SIGNAL, _RANK_ABORT, _RANK_KILL, _RANK_CODE = 75, 84, 87, 97
_MOST_EVIDENCE = 6


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible cause, with the evidence for it; the smallest rank, then the earliest, wins."""

    cause: Cause
    rank: int
    at: int
    evidence: Evidence


def warmup_failed(life: Life) -> bool:
    """A failure that the ready line does not heal was seen: a failed warm-up or bind."""
    return any(isinstance(hit.rule, FailureRule) and hit.rule.survives_ready for hit in life.hits.values())


def decisive_cause(life: Life) -> Cause | None:
    """The cause of the decisive text seen, None without one."""
    hits = [hit for hit in _current(life) if hit.strength is Strength.DECISIVE]
    if life.oom_killed:
        return Cause.KILLED_BY_KERNEL
    if not hits:
        return None
    best = min(_candidates(life, after=life.is_ready), key=lambda one: (one.rank, one.at), default=None)
    return best.cause if best else min(hits, key=lambda hit: hit.rank).cause


def has_symptom(life: Life) -> bool:
    """Something died without naming a cause."""
    return any(hit.strength is Strength.SYMPTOM for hit in _current(life)) or any(
        thrown.raised.origin in DYING for thrown in _current_thrown(life)
    )


def start_succeeded(life: Life) -> bool:
    """The ready line was seen, and nothing before it that it does not heal."""
    if not life.is_ready or warmup_failed(life):
        return False
    return all(hit.strength is Strength.SUSPICIOUS or hit.after_ready for hit in life.hits.values())


def conclude(
    life: Life,
    rules: Rules,
    *,
    exit_status: ExitStatus | None,
    alive: bool | None,
    stalled: str | None,
    lives: int,
) -> Diagnosis:
    """The diagnosis of `life`; the arguments are those of `Classifier.diagnose`."""
    ended = exit_status or life.exit
    if _ready(life):
        return _ready_diagnosis(life, rules, ended, lives)
    reason = _failed(life, ended, alive, stalled)
    if reason:
        return _failed_diagnosis(life, rules, ended, stalled, lives)
    if not life.is_ours and not life.exit:
        return _diagnosis(life, rules, Verdict.UNKNOWN, Cause.UNKNOWN, (), lives, "not this engine's output")
    note = "stopped on request before it was ready" if life.stop_at is not None or ended is not None else ""
    return _diagnosis(life, rules, Verdict.STARTING, Cause.NONE, (), lives, note)


def _ready(life: Life) -> bool:
    if life.is_ready:
        return start_succeeded(life)
    return 0 < life.workers_declared <= life.workers_up and not warmup_failed(life)


def _failed(life: Life, ended: ExitStatus | None, alive: bool | None, stalled: str | None) -> bool:
    if not life.is_ours and ended is None and alive is not False:
        return False
    if any(hit.strength is not Strength.SUSPICIOUS for hit in life.hits.values()):
        return True
    if any(thrown.raised.origin in DYING for thrown in life.thrown):
        return True
    if life.child_exits or life.oom_killed or stalled is not None:
        return True
    if ended is not None:
        return not (ended.asked_for or life.stop_at is not None)
    if alive is not None:
        return not alive and life.stop_at is None
    return life.thrown_at is not None and life.thrown_at > life.progress_at


def _current(life: Life) -> Iterator[Hit]:
    return (hit for hit in life.hits.values() if hit.after_ready == life.is_ready or _survives(hit))


def _survives(hit: Hit) -> bool:
    return isinstance(hit.rule, FailureRule) and hit.rule.survives_ready


def _current_thrown(life: Life) -> Iterator[Thrown]:
    return (thrown for thrown in life.thrown if thrown.after_ready == life.is_ready)


# ---------------------------------------------------------------------------------------------- candidates
def _candidates(life: Life, *, after: bool) -> list[Candidate]:
    found: list[Candidate] = []
    for hit in life.hits.values():
        if hit.strength is Strength.SYMPTOM or (hit.after_ready != after and not _survives(hit)):
            continue
        found.append(Candidate(hit.cause, hit.rank, hit.at, _of_hit(hit)))
    found.extend(_from_imports(life, found))
    found.extend(_from_exceptions(life, after=after))
    found.extend(_from_children(life, after=after))
    if life.oom_killed:
        cause = Cause.KILLED_BY_KERNEL
        evidence = Evidence(life.exit_line, life.exit_text, Strength.DECISIVE, "pid-1", cause)
        found.append(Candidate(cause, 15, 0, evidence))
    if _killed_itself(life):
        found = [one for one in found if one.cause is not Cause.KILLED_BY_KERNEL or one.rank < _RANK_ABORT]
    return found


def _of_hit(hit: Hit) -> Evidence:
    return Evidence(hit.line, hit.text, hit.strength, hit.rule.name, hit.cause)


def _from_imports(life: Life, found: list[Candidate]) -> Iterator[Candidate]:
    imports = life.rules.ignored_import
    if imports is None or not life.ignored_imports:
        return
    for one in found:
        refused = imports.unsupported.search(one.evidence.text)
        module = ignored_module_of(refused["archs"], life.ignored_imports) if refused else None
        if module is not None:
            line, text = life.ignored_imports[module]
            evidence = Evidence(line, text, Strength.DECISIVE, "ignored-import", Cause.IMPORT_ERROR)
            yield Candidate(Cause.IMPORT_ERROR, one.rank - 1, one.at, evidence)
            return


def _from_exceptions(life: Life, *, after: bool) -> Iterator[Candidate]:
    for thrown in life.thrown:
        raised = thrown.raised
        if thrown.known or thrown.after_ready != after or raised.origin is Origin.LOGGED:
            continue
        if raised.name.rsplit(".", 1)[-1] in _NO_CAUSE:
            continue
        rule = place_exception(life.rules.exceptions, raised.name, raised.frames, thrown.phase)
        cause, rank, name = (rule.cause, rule.rank, rule.name) if rule else (Cause.UNKNOWN, 98, "exception")
        evidence = Evidence(thrown.line, raised.text[:400], Strength.SUSPICIOUS, name, cause)
        yield Candidate(cause, rank, thrown.at, evidence)


def _from_children(life: Life, *, after: bool) -> Iterator[Candidate]:
    for code, line, text, at in life.child_exits:
        if (life.ready_at is not None and at > life.ready_at) != after:
            continue
        status = ExitStatus.parse(str(code))
        placed = _by_signal(status.signal if status else None)
        if placed is None:
            continue
        cause, rank = placed
        if cause is Cause.KILLED_BY_KERNEL and (after or _died_at_once(life)):
            cause, rank = Cause.CHILD_DIED, _RANK_KILL
        yield Candidate(cause, rank, at, Evidence(line, text, Strength.DECISIVE, "child-exit", cause))


def _by_signal(number: int | None) -> tuple[Cause, int] | None:
    if number == signal.SIGSEGV:
        return Cause.SEGFAULT, _RANK_SIGNAL
    if number == signal.SIGBUS:
        return Cause.BUS_ERROR, _RANK_SIGNAL
    if number in (signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP):
        return Cause.CHILD_DIED, _RANK_ABORT
    if number == signal.SIGKILL:
        # the engine's report of a child, not its own end: a rank below _RANK_ABORT keeps it after a self-kill
        return Cause.KILLED_BY_KERNEL, _RANK_ABORT - 1
    return None


def _died_at_once(life: Life) -> bool:
    """The child was gone within seconds of the first weights: memory does not fill up so soon."""
    if life.loading_since_s is None or life.clock_s is None or not _killed_itself(life):
        return False
    return 0 <= life.clock_s - life.loading_since_s < _SOON_S


def _killed_itself(life: Life) -> bool:
    return any(isinstance(hit.rule, FailureRule) and hit.rule.self_kill for hit in life.hits.values())


def _from_exit(life: Life, ended: ExitStatus | None) -> Candidate | None:
    if ended is None or ended.clean:
        return None
    text = life.exit_text or f"the process ended by {ended}"
    evidence = Evidence(life.exit_line, text, Strength.SUSPICIOUS, "exit-status")
    if ended.signal == signal.SIGKILL and _killed_itself(life):
        return None
    placed = _by_signal(ended.signal)
    if placed is not None:
        return Candidate(placed[0], placed[1] + 3, 2**60, evidence)
    by_code = {2: Cause.BAD_ARGUMENT, 3: Cause.PORT_IN_USE, 203: Cause.IMPORT_ERROR}
    cause = by_code.get(ended.code or 0)
    return Candidate(cause, _RANK_CODE, 2**60, evidence) if cause else None


# ------------------------------------------------------------------------------------------------- results
def _failed_diagnosis(
    life: Life, rules: Rules, ended: ExitStatus | None, stalled: str | None, lives: int
) -> Diagnosis:
    found = _candidates(life, after=False)
    by_exit = _from_exit(life, ended)
    if by_exit is not None:
        found.append(by_exit)
    if stalled is not None:
        cause = Cause.TIMEOUT if stalled == "timeout" else Cause.NO_PROGRESS
        clock = Evidence(None, f"the {stalled} clock ran out", Strength.DECISIVE, stalled, cause)
        found.append(Candidate(cause, 89, 2**60, clock))
    best = min(found, key=lambda one: (one.rank, one.at), default=None)
    cause = best.cause if best else Cause.UNKNOWN
    return _diagnosis(life, rules, Verdict.FAILED, cause, _evidence(life, best, found), lives, "")


def _ready_diagnosis(life: Life, rules: Rules, ended: ExitStatus | None, lives: int) -> Diagnosis:
    death = _death(life, ended)
    evidence = [Evidence(life.ready_line, life.ready_text, Strength.DECISIVE, "ready", Cause.NONE)]
    if life.ready_at is None:
        evidence = []
    note = ""
    if death is not None:
        evidence.append(Evidence(death.line, death.text, Strength.DECISIVE, "death", death.cause))
        note = "the start succeeded; the process died later"
    elif life.stop_at is not None:
        note = "the start succeeded; the process was stopped later, on request"
    cause = death.cause if death else Cause.NONE
    return _diagnosis(life, rules, Verdict.READY, cause, tuple(evidence), lives, note, death)


def _death(life: Life, ended: ExitStatus | None) -> Death | None:
    hits = [hit for hit in life.hits.values() if hit.after_ready and hit.strength is not Strength.SUSPICIOUS]
    thrown = [one for one in life.thrown if one.after_ready and one.raised.origin in DYING]
    children = [one for one in life.child_exits if life.ready_at is not None and one[3] > life.ready_at]
    bad_end = life.exit is not None and not life.exit.clean and life.stop_at is None
    if not (hits or thrown or children or bad_end or (life.oom_killed and life.stop_at is None)):
        return None
    found = _candidates(life, after=True)
    by_exit = _from_exit(life, life.exit if bad_end else None)
    if by_exit is not None:
        found.append(by_exit)
    best = min(found, key=lambda one: (one.rank, one.at), default=None)
    if best is not None:
        cause = best.cause
        return Death(cause, best.evidence.line, best.evidence.text)
    if hits:
        return Death(Cause.CHILD_DIED, hits[0].line, hits[0].text)
    return Death(Cause.UNKNOWN, life.exit_line, life.exit_text)


def _evidence(life: Life, best: Candidate | None, found: list[Candidate]) -> tuple[Evidence, ...]:
    chosen = [best.evidence] if best else []
    same = [one.evidence for one in found if best and one.cause is best.cause and one is not best]
    symptoms = [_of_hit(hit) for hit in life.hits.values() if hit.strength is Strength.SYMPTOM]
    for evidence in (*same, *symptoms):
        if all(evidence.line != other.line for other in chosen):
            chosen.append(evidence)
    return tuple(chosen[:_MOST_EVIDENCE])


def _diagnosis(
    life: Life,
    rules: Rules,
    verdict: Verdict,
    cause: Cause,
    evidence: tuple[Evidence, ...],
    lives: int,
    note: str,
    death: Death | None = None,
) -> Diagnosis:
    phase = life.phase.current
    return Diagnosis(
        verdict=verdict,
        cause=cause,
        phase="ready" if verdict is Verdict.READY else (phase.text if phase else None),
        progress=None if verdict is Verdict.READY else life.phase.progress,
        evidence=evidence,
        advice=rules.advice.get(cause, ""),
        warnings=life.phase.warnings,
        capacity=dict(life.phase.capacity),
        retryable=cause not in NOT_RETRIED,
        was_ready=life.is_ready,
        death=death,
        lives=lives,
        note=note,
    )
