"""The start of a backend in words: for `systemctl status`, the journal, and the report's evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pd_units.diagnosis import Classifier
from pd_units.readiness import Source, State, UnitWatch
from pd_units.supervise.probe import Answered

_NUMBERS = re.compile(r"\d+/\d+")


def status_line(log: Classifier, watch: UnitWatch, answered: Answered | None) -> str:
    """The start so far: "loading weights 23/46"."""
    if watch.state is State.READY:
        tokens = log.capacity.get("kv_tokens")
        how = " (by HTTP alone: the journal did not show the engine's ready line)"
        size = f", {tokens:,.0f} KV tokens" if tokens else ""
        return f"ready{size}" + (how if watch.source is Source.HTTP_ALONE else "")
    if watch.state is State.TIMED_OUT:
        return _timed_out(log, watch, answered)
    if watch.state is State.FAILED:
        if watch.source is Source.CHILDREN:
            return "failed: one of the engine's processes is dead, and its main process does not notice"
        return "failed while " + (log.phase or "starting")
    if watch.ready_line_at is not None:
        return f"waiting for /health to answer 200{_instead(answered)}"
    if watch.healthy_since is not None:
        return "/health answers 200, the ready line is not seen: HTTP alone confirms after 10 s"
    progress = log.progress
    return (log.phase or "starting") + (f" {progress.done}/{progress.total}" if progress else "")


def _timed_out(log: Classifier, watch: UnitWatch, answered: Answered | None) -> str:
    if watch.cause == "timeout":
        text = f"not ready within {watch.timeout_s + watch.extend_s:g} s"
    else:
        text = f"no progress within {watch.stalls_at - watch.last_progress_at:g} s"
    text += f", last phase: {log.phase or 'none seen'}"
    if watch.ready_line_at is not None:
        text += f"; the ready line came, but /health did not answer 200{_instead(answered)}"
    return text


def _instead(answered: Answered | None) -> str:
    if answered is None or (answered.status == 200 and answered.own):
        return ""
    if answered.status is None:
        return f" ({answered.error})" if answered.error else ""
    if not answered.own:
        return " (another process answers on that port)"
    return f" ({answered.status})"


def short_line(text: str) -> str:
    """The part of a status line whose change is worth a line in the journal: without a bar's numbers."""
    return _NUMBERS.sub("", text)


def ready_evidence(watch: UnitWatch, answered: Answered | None, losses: str) -> tuple[Mapping[str, str], ...]:
    """What a ready verdict rests on; () without one."""
    if watch.state is not State.READY:
        return ()
    took = f" in {answered.took_s:.2f} s" if answered is not None else ""
    if watch.source is Source.JOURNAL_AND_HTTP:
        missing = ({"text": f"lines may be missing: {losses}", "source": "journal"},) if losses else ()
        return (
            {"text": "the engine's ready line, in this invocation's journal", "source": "journal"},
            {"text": f"/health answered 200{took}, from this unit's own socket", "source": "http"},
            *missing,
        )
    why = losses or ("its log level hides it" if watch.silent_log else "it is not there")
    return (
        {"text": f"/health answered 200 for {watch.healthy_for_s:.1f} s without a break", "source": "http"},
        {"text": f"no ready line in the journal: {why}", "source": "journal"},
    )
