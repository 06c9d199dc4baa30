"""Reads an engine's start-up output, line by line, and says what it proves.

`Classifier` takes what a journal or a file holds and remembers, in constant memory, what of it is evidence:
phase, progress, capacity, warnings, failure texts, deaths. `diagnose` concludes from that at any moment; it
is right or undecided at every prefix of a log. Nothing here knows an engine: that is data (engines/*.toml).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice

from pd_units.attribution import place_out_of_memory
from pd_units.conclusion import conclude, decisive_cause, has_symptom, warmup_failed
from pd_units.engines.rules import FailureRule, Rules, WarningRule, load_rules
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
from pd_units.life import Life
from pd_units.logtext import (
    Message,
    find_bar,
    is_access_line,
    is_settings_tail,
    is_usage,
    parse_message,
    plain,
    segments,
    settings_start,
    shorten,
    unwrap,
)
from pd_units.manager_lines import Manager, ManagerLine, parse_manager_line
from pd_units.matcher import Found, Matcher
from pd_units.tracebacks import Quoted, Raised, Tracebacks

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

_DIGITS = str.maketrans("", "", "0123456789")
_MOST_SHAPES = 4096
_LONGEST_SHAPE = 2000
_CHUNK_LINES = 2000
_LONGEST_CHUNK = 4_000_000
_UNSEEN = (None,)
_SETTINGS_WAIT = 64
_EXIT_CODE = re.compile(
    r"(?:died during initialization \(exit code: |crashed with exit code |subprocess exited with code |^\S{1,60} exited with code )"
    r"(?P<code>-?\d{1,3})\b|^[Ee]xit code: (?P<bare>-?\d{1,3})$"
)
_STOP = re.compile(
    r"SIGTERM received\.|Received (?:terminate|interrupt) signal|Received SIGTERM|Gracefully exiting\.\.\.|"
    r"starting graceful shutdown"
)


class Classifier:
    """Incremental and pure: one for each stream of messages.

    With `cut_lives` (a file, a whole journal) a new launch begins a new life and only the newest counts; a
    reader of one invocation says False. `role` says that the text surely is this engine's, so that a failure
    needs no other sign of it.
    """

    def __init__(self, rules: Rules, *, role: str | None = None, cut_lives: bool = True) -> None:
        self.rules = rules
        self.role = role
        self.lives = 1
        self._cut_lives = cut_lives
        self._matcher = Matcher(rules)
        self._quiet: dict[str, tuple[WarningRule, ...]] = {}
        self._count = 0
        self._at = 0
        self._settings_at = 0
        self._pending_cut = False
        self._unit = ""
        self._life = self._new_life(None)

    # ------------------------------------------------------------------------------------------- feeding
    def feed(self, text: str, number: int | None = None, *, manager: bool = False) -> None:
        """Take one journal entry or one line of a file; it may hold bars, colours, newlines.

        `number` is the line's number for evidence (default: counted). `manager`: PID 1 wrote it.
        """
        self._count += 1
        line = self._count if number is None else number
        if manager or len(text) > _LONGEST_SHAPE or "\n" in text or "\r" in text:
            self._pieces(text, line, manager)
        else:
            self._line(text, text.translate(_DIGITS), line)

    def feed_many(self, lines: Iterable[str]) -> None:
        """Take many lines; the fast path for floods. The same result as `feed` for each of them."""
        iterator = iter(lines)
        while chunk := list(islice(iterator, _CHUNK_LINES)):
            self._chunk(chunk)

    def _chunk(self, chunk: list[str]) -> None:
        joined = "\n".join(chunk)
        if joined.count("\n") != len(chunk) - 1 or "\r" in joined or len(joined) > _LONGEST_CHUNK:
            for text in chunk:
                self.feed(text)
            return
        shapes = joined.translate(_DIGITS).split("\n")
        loud = {shape for shape in set(shapes) if self._quiet.get(shape, _UNSEEN)}
        if not loud:
            self._count += len(chunk)
            self._at += len(chunk)
            return
        for text, shape in zip(chunk, shapes, strict=True):
            self._count += 1
            if shape in loud:
                self._line(text, shape, self._count)
            else:
                self._at += 1

    def _line(self, text: str, shape: str, line: int) -> None:
        """Take a single line, at once where a line of that shape is known to say nothing new."""
        known = self._quiet.get(shape)
        if known is None and not self._matcher.interesting(shape, recognised=self._life.recognised):
            known = self._remember(shape, ())
        if known is not None:
            self._at += 1
            for rule in known:
                self._life.phase.warn(rule, line)
            return
        self._at += 1
        outcome = self._take(plain(unwrap(text)), line, False)
        if outcome is not None:
            self._remember(shape, outcome)

    def _remember(self, shape: str, warnings: tuple[WarningRule, ...]) -> tuple[WarningRule, ...]:
        if len(self._quiet) >= _MOST_SHAPES:
            self._quiet.clear()
        self._quiet[shape] = warnings
        return warnings

    def _pieces(self, text: str, line: int, manager: bool) -> None:
        waiting: str | None = None
        for piece in segments(plain(unwrap(text))):
            self._at += 1
            if piece.endswith(("it/s]", "s/it]")):
                waiting = piece
                continue
            if waiting is not None:
                self._take(waiting, line, manager)
                waiting = None
            self._take(piece, line, manager)
        if waiting is not None:
            self._take(waiting, line, manager)

    # --------------------------------------------------------------------------------- one message's way
    def _take(self, piece: str, line: int, manager: bool) -> tuple[WarningRule, ...] | None:
        """Take one message; its warnings, where the same text with other numbers would say no more."""
        message = parse_message(piece)
        if message.body.startswith("pd-units:") or message.ident.startswith("pd-units"):
            return None
        surely = manager or message.ident in ("systemd", "init")
        if surely or ".service: " in message.body:
            said = parse_manager_line(message.body, surely=surely)
            if said is not None:
                self._manager_said(said, message.body, line)
            if said is not None or surely:
                return None
        if self._pending_cut:
            self._cut(line)
        if self._is_settings(message, line):
            return None
        if is_access_line(message.body) or is_usage(message.body):
            return ()
        if message.clock_s is not None:
            self._life.clock_s = message.clock_s
        bar = find_bar(message.body)
        if bar is not None:
            if self._life.phase.move(bar[0], message.tag):
                self._life.progress_at = self._at
                self._life.milestones += 1
            if not bar[1]:
                return None
            message = parse_message(bar[1])
        outcome = self._weigh(message, line)
        return None if bar is not None else outcome

    def _weigh(self, message: Message, line: int) -> tuple[WarningRule, ...] | None:
        life = self._life
        raised = self._tracebacks.take(message, self._at)
        if isinstance(raised, Quoted):
            life.recognised = life.recognised or "sglang" in message.body
            return None
        window = shorten(message.body)
        found = self._matcher.match(window)
        if found.launch:
            self._launch(line)
            life = self._life
        life.recognised = life.recognised or found.identity
        life.resembles = life.resembles or found.weak
        life.foreign = life.foreign or found.foreign
        self._note_progress(message, found, window, line)
        self._note_exits(message.body, line)
        if found.recovery:
            life.recover()
        if not (found.benign or found.recovery):
            for rule in found.failures:
                self._note_failure(rule, raised, window, line)
            if raised is not None:
                life.throw(raised, line, self._at, bool(found.failures))
        quiet = raised is None and found.uneventful and "xit" not in window and not _STOP.search(window)
        return tuple(found.warnings) if quiet and not self._tracebacks.sees(message) else None

    def _note_progress(self, message: Message, found: Found, window: str, line: int) -> None:
        life = self._life
        for phase in found.phases:
            moved = life.phase.enter(phase, message.tag)
            life.progress_at = self._at
            if phase.order > 1:
                life.milestones += 1
            if moved and phase.name == "loading" and life.loading_since_s is None:
                life.loading_since_s = life.clock_s
            if phase.name in ("serving", "warming"):
                life.serving_at = self._at
        for capacity, match in found.capacity:
            if life.phase.count(capacity, match, window):
                life.progress_at = self._at
        for warning in found.warnings:
            life.phase.warn(warning, line)
        imports = self.rules.ignored_import
        if imports is not None and "Ignore import" in window:
            ignored = imports.pattern.search(window)
            if ignored is not None:
                life.ignore_import(ignored["module"], line, window)
        if found.ready:
            life.become_ready(line, window, self._at)
        self._note_workers(found, window)

    def _note_workers(self, found: Found, window: str) -> None:
        for pattern in self.rules.workers if found.worker else ():
            match = pattern.search(window)
            if match is None:
                continue
            groups = match.groupdict()
            if groups.get("up"):
                self._life.workers_up += int(groups["up"])
            elif groups.get("urls") is not None:
                self._life.workers_declared = groups["urls"].count("://")

    def _note_failure(self, rule: FailureRule, raised: Raised | None, window: str, line: int) -> None:
        life = self._life
        if rule.only_exception and raised is None:
            return
        if rule.deliberate and life.stop_at is not None:
            return
        cause = rule.cause
        if cause is None:
            frames = raised.frames if raised is not None else tuple(self._tracebacks.frames)
            tag = raised.tag if raised is not None else self._tracebacks.tag
            phase = life.phase.of(tag)
            cause = place_out_of_memory(self.rules, window, frames, phase.name if phase else None)
        life.hit(rule, cause, rule.strength, line, window, self._at)

    def _note_exits(self, body: str, line: int) -> None:
        life = self._life
        if life.stop_at is None and _STOP.search(body):
            life.stop_at = self._at
        match = _EXIT_CODE.search(body) if "xit" in body else None
        if match is not None and (match["bare"] is None or has_symptom(life)):
            life.child_exit(int(match["code"] or match["bare"]), line, body, self._at)

    # --------------------------------------------------------------------------------- lives and settings
    def _is_settings(self, message: Message, line: int) -> bool:
        life, body = self._life, message.body
        if settings_start(body) >= 0:
            self._launch(line, settings=True)
            life = self._life
            life.recognised = True
            life.settings_open = not body.rstrip().endswith((")", "}"))
            self._settings_at = self._at
            found = self._matcher.match(shorten(body)[:64])
            self._note_progress(message, found, "", line)
            return True
        if life.settings_open and self._at - self._settings_at > _SETTINGS_WAIT:
            life.settings_open = False
        if is_settings_tail(body, expected=life.settings_open and not message.stamped):
            life.settings_open = life.settings_open and not body.rstrip().endswith((")", "}"))
            return True
        return False

    def _launch(self, line: int, *, settings: bool = False) -> None:
        life = self._life
        if life.got_anywhere() or (settings and life.settings_at is not None and life.milestones):
            self._cut(line)
        elif settings:
            life.forget_failures()
        if settings:
            self._life.settings_at = self._at

    def _cut(self, line: int) -> None:
        self._pending_cut = False
        if not self._cut_lives:
            return
        self.lives += 1
        self._life = self._new_life(line)

    def _new_life(self, line: int | None) -> Life:
        self._tracebacks = Tracebacks()
        self._quiet.clear()
        return Life(self.rules, first_line=line)

    def _manager_said(self, said: ManagerLine, body: str, line: int) -> None:
        life = self._life
        if said.said in (Manager.STARTING, Manager.STARTED):
            self._manager_starts(said, line)
            return
        if said.unit and said.said is not Manager.STOPPED:
            self._unit = said.unit
        if said.said is Manager.STOPPING:
            if life.stop_at is None:
                life.stop_at = self._at
        elif said.said is Manager.OOM:
            life.oom_killed = True
            life.exit_line, life.exit_text = line, body
        elif said.said in (Manager.EXITED, Manager.SPAWN):
            life.exit, life.exit_line, life.exit_text = said.status, line, body
            life.over = True
        else:
            life.over = True

    def _manager_starts(self, said: ManagerLine, line: int) -> None:
        life = self._life
        ours = not self._unit or said.unit == self._unit
        if said.said is Manager.STARTING:
            if life.touched() and (ours or life.over):
                self._pending_cut = True
        elif life.over:
            self._pending_cut = True
        if self._pending_cut and self._unit and said.unit == self._unit:
            self._cut(line)

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
        """The ready line was seen in this life, and no failed warm-up or bind."""
        return self._life.is_ready and not warmup_failed(self._life)

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
