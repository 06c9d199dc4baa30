"""What single messages mean: each is weighed against the rules and becomes evidence of the current life."""

from __future__ import annotations

import re

from pd_units.attribution import place_out_of_memory
from pd_units.conclusion import has_symptom
from pd_units.engines.rules import FailureRule, Rules, WarningRule
from pd_units.life import Life
from pd_units.logtext import (
    Message,
    find_bar,
    is_access_line,
    is_client_settings,
    is_settings_tail,
    is_usage,
    parse_message,
    settings_start,
    shorten,
)
from pd_units.manager_lines import Manager, ManagerLine, of_the_host, parse_manager_line
from pd_units.matcher import Found, matcher_of
from pd_units.tracebacks import Origin, Quoted, Raised, Tracebacks

_SETTINGS_WAIT = 64
_OWN = "pd-units"
_LOGGED = 88
"""The best rank of a text of a last word that the engine only logged."""
_WEAK = range(90, 97)
"""The ranks of exceptions placed by frames and phase: a text of such a rank does not keep one from that."""
_INTERRUPTS = ("KeyboardInterrupt", "asyncio.exceptions.CancelledError")
_EXIT_CODE = re.compile(
    r"(?:died during initialization \(exit code: |crashed with exit code |subprocess exited with code "
    r"|^\S{1,60} exited with code )(?P<code>-?\d{1,3})\b|^[Ee]xit code: (?P<bare>-?\d{1,3})$"
)
_STOP = re.compile(
    r"SIGTERM received\.|Received (?:terminate|interrupt) signal|Received SIGTERM|Gracefully exiting\.\.\.|"
    r"starting graceful shutdown|INFO: {1,8}Shutting down|^\^C"
)
_CONTAINER = re.compile(r"(?:\x1b\[[0-9;]{1,8}m)?(?P<name>[\w.-]{1,80}[-_]\d{1,3}) {1,24}\| ")
_CONTAINER_EXIT = re.compile(r"(?P<name>\S{1,64}) exited with code \d")


class Reading:
    """The current life, and how messages change it. `at` counts messages, `lives` the lives seen."""

    def __init__(self, rules: Rules, *, cut_lives: bool) -> None:
        self.rules = rules
        self.lives = 1
        self.at = 0
        self.life = Life(rules)
        self._cut_lives = cut_lives
        self._matcher = matcher_of(rules)
        self._tracebacks = Tracebacks()
        self._settings_at = 0
        self._pending_cut = False
        self._unit = ""
        self._containers: set[str] = set()

    def interesting(self, text: str) -> bool:
        """True where `text` may mean something to this life."""
        if self._tracebacks.open:  # what ends it can have any name
            return True
        return self._matcher.interesting(text, recognised=self.life.recognised)

    def take(self, piece: str, line: int, *, manager: bool) -> tuple[WarningRule, ...] | None:
        """Take one message; its warnings, where the same text with other numbers would say no more."""
        message = parse_message(piece)
        if self._is_of_another_container(piece, message):
            return ()
        if not self.life.is_ours and len(message.body) < len(piece):
            self._look_at_prefix(piece[: len(piece) - len(message.body)])
        if message.body.startswith(f"{_OWN}:") or message.ident.startswith(_OWN):
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
            self.life.note_clock(message.clock_s)
        bar = find_bar(message.body)
        if bar is not None:
            if not self.life.is_ours:
                self._look_at_bar(message.body)
            if self.life.phase.move(bar[0], message.tag):
                self.life.progress_at = self.at
                self.life.milestones += 1
            if not bar[1]:
                return None
            message = parse_message(bar[1])
        outcome = self._weigh(message, line)
        return None if bar is not None else outcome

    def _is_of_another_container(self, piece: str, message: Message) -> bool:
        """Compose puts the lines of all containers into one log; those of an engine say so themselves."""
        named = _CONTAINER.match(piece) if "| " in piece[:80] else None
        if named is None:
            gone = _CONTAINER_EXIT.match(message.body) if self._containers else None
            # older ones put the project's name before it there
            return gone is not None and not any(gone["name"].endswith(name) for name in self._containers)
        if named["name"] not in self._containers:
            if not self._matcher.match(shorten(message.body)).identity:
                return bool(self._containers)
            self._containers.add(named["name"])
        return False

    def _look_at_prefix(self, prefix: str) -> None:
        """A prefix can name the program, too: a logger's own, a container's, a pod's."""
        if self._matcher.match(shorten(prefix)).identity:
            self.life.resembles = True

    def _look_at_bar(self, body: str) -> None:
        """A silenced engine shows nothing but its bars."""
        found = self._matcher.match(shorten(body))
        self.life.recognised = found.identity
        self.life.resembles = self.life.resembles or found.weak

    def _weigh(self, message: Message, line: int) -> tuple[WarningRule, ...] | None:
        life = self.life
        raised = self._tracebacks.take(message, self.at)
        if isinstance(raised, Quoted):
            life.recognised = life.recognised or "sglang" in message.body or "sgl_kernel" in message.body
            return None
        window = shorten(message.body)
        found = self._matcher.match(window)
        if found.launch:
            self._launch(line)
            life = self.life
        life.recognised = life.recognised or found.identity
        life.resembles = life.resembles or found.weak
        life.foreign = life.foreign or found.foreign
        self._note_progress(message, found, window, line)
        self._note_exits(message.body, line)
        fatal = raised is not None and raised.origin is Origin.WORKER  # whatever else its text may hold
        if found.recovery and not fatal:
            life.recover(self.at)
        if fatal or not (found.benign or found.recovery):
            for rule in found.failures:
                self._note_failure(rule, raised, message, window, line)
            if raised is not None and raised.name in _INTERRUPTS:
                life.interrupt(self.at)
            elif raised is not None:
                life.throw(raised, line, self.at, any(rule.rank not in _WEAK for rule in found.failures))
        quiet = raised is None and found.uneventful and "xit" not in window and not _STOP.search(window)
        return tuple(found.warnings) if quiet and not self._tracebacks.sees(message) else None

    def _note_progress(self, message: Message, found: Found, window: str, line: int) -> None:
        life = self.life
        for phase in found.phases:
            moved = life.phase.enter(phase, message.tag)
            life.progress_at = self.at
            if phase.order > 1:
                life.milestones += 1
            if moved and phase.fills_memory and life.loading_since_s is None:
                life.loading_since_s = life.clock_s
            if phase.whole:
                life.serving_at = self.at
        for capacity, match in found.capacity:
            if life.phase.count(capacity, match, window):
                life.progress_at = self.at
        for warning in found.warnings:
            life.phase.warn(warning, line)
        imports = self.rules.ignored_import
        if imports is not None and "Ignore import" in window:
            ignored = imports.pattern.search(window)
            if ignored is not None:
                life.ignore_import(ignored["module"], line, window)
        if found.ready:
            life.become_ready(line, window, self.at)
        self._note_workers(found, window)

    def _note_workers(self, found: Found, window: str) -> None:
        for pattern in self.rules.workers if found.worker else ():
            match = pattern.search(window)
            if match is None:
                continue
            groups = match.groupdict()
            if groups.get("up"):
                self.life.workers_up += int(groups["up"])
            elif groups.get("urls") is not None:
                self.life.workers_declared = groups["urls"].count("://")

    def _note_failure(
        self, rule: FailureRule, raised: Raised | None, message: Message, window: str, line: int
    ) -> None:
        life = self.life
        if rule.only_exception and raised is None:
            return
        if rule.deliberate and life.stop_at is not None:
            return
        cause, placed = rule.cause, True
        if cause is None:
            frames = raised.frames if raised is not None else tuple(self._tracebacks.frames)
            tag = raised.tag if raised is not None else self._tracebacks.tag
            phase = life.phase.of(tag)
            cause = place_out_of_memory(self.rules, window, frames, phase.name if phase else None)
            placed = bool(frames) or phase is not None
        hit = life.hit(rule, cause, rule.strength, line, window, self.at)
        if not placed and hit.count == 1:
            hit.rank += 1  # one whose place is known says more
        logged = message.stamped and raised is None  # the engine said it, and went on
        if rule.last_word and logged and hit.count == 1:
            hit.rank = max(hit.rank, _LOGGED)
        if rule.last_word and not logged:
            life.thrown_at = self.at

    def _note_exits(self, body: str, line: int) -> None:
        life = self.life
        if life.stop_at is None and _STOP.search(body):
            life.stop_at = self.at
        match = _EXIT_CODE.search(body) if "xit" in body else None
        if match is not None and (match["bare"] is None or has_symptom(life)):
            life.child_exit(int(match["code"] or match["bare"]), line, body, self.at)

    # ------------------------------------------------------------------------------- lives and settings
    def _is_settings(self, message: Message, line: int) -> bool:
        life, body = self.life, message.body
        if settings_start(body) >= 0:
            if is_client_settings(body):
                return True
            if self._goes_backwards(message):
                return True
            self._launch(line, settings=True)
            life = self.life
            life.recognised = True
            life.settings_open = not body.rstrip().endswith((")", "}"))
            self._settings_at = self.at
            found = self._matcher.match(shorten(body)[:64])
            self._note_progress(message, found, "", line)
            return True
        if life.settings_open and self.at - self._settings_at > _SETTINGS_WAIT:
            life.settings_open = False
        if is_settings_tail(body, expected=life.settings_open and not message.stamped):
            life.settings_open = life.settings_open and not body.rstrip().endswith((")", "}"))
            return True
        return False

    def _goes_backwards(self, message: Message) -> bool:
        """The stamps only fall: a viewer wrote the newest line first, and this launch is the life's own."""
        before = self.life.clock_s
        falls = before is not None and message.clock_s is not None and message.clock_s < before
        return falls and self.life.falls > 0 and self.life.rises == 0

    def _launch(self, line: int, *, settings: bool = False) -> None:
        life = self.life
        if life.got_anywhere():
            self._cut(line)
        elif settings:
            life.forget_failures()
        if settings:
            self.life.settings_at = self.at

    def _cut(self, line: int) -> None:
        self._pending_cut = False
        if not self._cut_lives:
            return
        self.lives += 1
        self.life = Life(self.rules, first_line=line, resembles=self.life.is_ours)
        self._tracebacks = Tracebacks()

    def _manager_said(self, said: ManagerLine, body: str, line: int) -> None:
        life = self.life
        by_hand = said.said is Manager.OOM and said.unit.endswith(".scope")  # an engine in somebody's session
        if of_the_host(said.unit) and not by_hand:
            return
        if said.said in (Manager.STARTING, Manager.STARTED):
            self._manager_starts(said, line)
            return
        if said.unit and said.said is not Manager.STOPPED:
            self._unit = said.unit
        if said.said is Manager.STOPPING:
            if life.stop_at is None:
                life.stop_at = self.at
        elif said.said is Manager.OOM:
            life.oom_killed = True
            life.exit_line, life.exit_text = line, body
        elif said.said in (Manager.EXITED, Manager.SPAWN):
            life.exit, life.exit_line, life.exit_text = said.status, line, body
            life.over = True
        else:
            life.over = True

    def _manager_starts(self, said: ManagerLine, line: int) -> None:
        """PID 1 starts a unit: ours, perhaps, and then another life begins with the next line.

        "Started" without "Starting" is a launch; after "Starting" it is the end of the same start.
        """
        life = self.life
        ours = not self._unit or said.unit == self._unit
        if said.said is Manager.STARTING:
            if not life.touched():
                life.announced = True
            elif ours or life.over:
                self._pending_cut = True
        elif life.over or (life.touched() and not life.announced and not life.is_ready):
            self._pending_cut = True
        if self._pending_cut and self._unit and said.unit == self._unit:
            self._cut(line)
            self.life.announced = said.said is Manager.STARTING
