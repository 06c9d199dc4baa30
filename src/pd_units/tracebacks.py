"""Follows Python tracebacks through a log, one message at a time.

Frames and the source lines quoted below them are never evidence. The exception at the end is, and where it
came from: a scheduler that said so, the main program, a spawned process, a thread, or code that logged it.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from pd_units.logtext import Message

_START = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s{0,12}File "(?P<file>[^"]{1,400})", line \d{1,7}(?:,? in (?P<name>.{1,120}))?')
_INLINE_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line \d{1,7}, in (?P<name>[\w<>]{1,120})')
_NAMED = r"[A-Za-z_][\w.]{0,160}"
_EXCEPTION = re.compile(
    rf"(?:{_NAMED}\.)?[A-Z_a-z]\w{{0,80}}"
    r"(?:Error|Exception|Interrupt|Exit|Timeout|TimedOut|Failed|Failure|Expired|Exhausted|NotFound|Unsupported|OutOfResources|Refused)"
    r"(?:\b: |:?$|:(?=[A-Z]))"
)
_BARE_NAME = re.compile(rf"(?P<name>{_NAMED})(?:: .{{0,4000}})?$")
_MARKS = re.compile(r"\s*[~^]{1,400}\s*$|\s*\.\.\.<\d+ lines>\.\.\.")
_CHAINED = ("During handling of the above exception", "direct cause of the following exception")
_MAIN_FRAME = re.compile(
    r"runpy\b|launch_server\.py|launch_router\.py|/bin/|^<stdin>$|^<string>$|sglang/cli/|/serve\.py$|__main__\.py"
)
_SPAWN_FRAME = re.compile(r"^<string>$|multiprocessing/(process|spawn|forkserver|popen\w*)\.py")
_THREAD_FRAME = re.compile(r"/threading\.py$|concurrent/futures/thread\.py|asyncio/")
_WORKER_NAME = re.compile(
    r"^(?:run_(?:scheduler|detokenizer|data_parallel_controller|tp_server|moe_\w+)\w*|start_(?:router|controller|detokenizer)_process)$"
)
_MAIN_NAME = re.compile(
    r"^(?:prepare_server_args|_launch_subprocesses|launch_server|run_server|_launch_engine|launch_router|launch_engine)$"
)
_PROMPT = re.compile(r"(?:\?|\[[yY]/[nN]\]:?|>>>) ?$")
_MOST_FRAMES = 40

LITERALS = (
    _START, 'File "', "Error", "Exception", *_CHAINED, "Logging error", "Process-", "Interrupt", "SystemExit",
    "Timeout", "Failed", "NotFound", "Unsupported", "OutOfResources", "Refused", "Expired",
)  # fmt: skip
"""Every message that matters here contains one of these."""


class Origin(StrEnum):
    """Who died, or did not, of an exception."""

    WORKER = "worker"  # a scheduler or helper that reported its own death
    MAIN = "main"  # the main program: nothing catches it any more
    PROCESS = "process"  # a spawned process
    THREAD = "thread"  # one thread; the process lives on
    LOGGED = "logged"  # caught and logged, a request, an ignored one
    PLAIN = "plain"  # cannot be told


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as it was printed: its line, its origin, the frames outermost first."""

    text: str
    name: str
    origin: Origin
    tag: str
    frames: tuple[str, ...]

    @property
    def innermost(self) -> str:
        """The innermost frame, "" if none was printed."""
        return self.frames[-1] if self.frames else ""


@dataclass(frozen=True, slots=True)
class Quoted:
    """A line that belongs to a traceback and proves nothing: a frame, quoted source, a marker."""


_QUOTED = Quoted()


class Tracebacks:
    """The traceback under way. Memory is bounded. A headless one begins in its middle: the log was cut."""

    def __init__(self) -> None:
        self.frames: deque[str] = deque(maxlen=_MOST_FRAMES)
        self.tag = ""
        self.open = False
        self._first = ""
        self._origin = Origin.PLAIN
        self._heading: Origin | None = None
        self._frame_at = -2
        self._chained = False
        self._headless = False

    def take(self, message: Message, at: int) -> Raised | Quoted | None:
        """What `message`, number `at` of the stream, is to a traceback; None if nothing."""
        body = message.body
        if _START in body:
            self._begin(message)
            return None
        frame = _FRAME.match(body)
        if frame is not None:
            if not self.open and ", in " in frame[0]:
                self._begin(message)
                self._headless = True
            self._add(frame, at)
            return _QUOTED
        if self._is_quoted(message, at):
            return _QUOTED
        self._note_heading(message)
        if any(text in body for text in _CHAINED):
            self._chained = True
            return _QUOTED
        return self._end(message)

    @staticmethod
    def sees(message: Message) -> bool:
        """True for a message that could mean something to a traceback, now or in another place."""
        return any(text in message.body for text in LITERALS)

    def _begin(self, message: Message) -> None:
        if not self._chained:
            headed = _START in message.body
            self._origin = self._heading or (self._origin_of(message) if headed else Origin.PLAIN)
            self.tag = message.tag
        self._chained, self._heading, self._headless = False, None, False
        self.open, self._first = True, ""
        self.frames.clear()
        if _START in message.body:
            for frame in _INLINE_FRAME.finditer(message.body):  # a collector has joined the lines
                self._add(frame, -2)

    @staticmethod
    def _origin_of(message: Message) -> Origin:
        before = message.body.split(_START)[0]
        if "hit an exception" in before:
            return Origin.WORKER
        if "init state" in before or "init_state" in before or "warmup error" in before:
            return Origin.WORKER
        if message.stamped:
            return Origin.WORKER if message.tag and not before.strip() else Origin.LOGGED
        asked = not before.strip(" :") or _PROMPT.search(before) is not None
        return Origin.PLAIN if asked else Origin.LOGGED

    def _add(self, frame: re.Match[str], at: int) -> None:
        self._frame_at = at
        entry = f"{frame['file']} in {(frame['name'] or '').strip()}"
        name = (frame["name"] or "").strip()
        if self._origin in (Origin.PLAIN, Origin.PROCESS):
            if _WORKER_NAME.match(name):
                self._origin = Origin.WORKER
            elif _MAIN_NAME.match(name):
                self._origin = Origin.MAIN
            elif not self._first and self.open and self._origin is Origin.PLAIN:
                self._origin = _origin_of_frame(frame["file"], name)
        self._first = self._first or frame["file"]
        self.frames.append(entry)

    def _is_quoted(self, message: Message, at: int) -> bool:
        if message.stamped:
            return False
        body = message.body
        if _MARKS.match(body):
            return True
        if not self.open:
            return False
        if at == self._frame_at + 1 and not _EXCEPTION.match(body):
            return not _bare(body)
        return body.startswith("    ")

    def _note_heading(self, message: Message) -> None:
        body = message.body
        if "xception in thread" in body:
            self._heading = Origin.THREAD
        elif "Process-" in body and body.startswith("Process "):
            self._heading = Origin.PROCESS
        elif (
            "Exception ignored in" in body
            or "--- Logging error ---" in body
            or "Exception in ASGI application" in body
            or "exception was never retrieved" in body
            or "Exception in callback" in body
            or "Exception on " in body
        ):
            self._heading = Origin.LOGGED

    def _end(self, message: Message) -> Raised | None:
        body = message.body.rstrip()
        match = _EXCEPTION.match(body)
        if match is not None:
            name = match.group(0).rstrip(": ")
        elif self.open and not self._headless and not message.stamped and _bare(body):
            name = body.split(":", 1)[0]
        else:
            self.open = self.open and not self._headless
            return None
        if not self.open and message.stamped and self.tag:
            return None
        frames = tuple(self.frames) if self.open else ()
        origin = self._origin if self.open else (Origin.LOGGED if message.stamped else Origin.PLAIN)
        tag = self.tag if self.open else message.tag
        self.open = False
        return Raised(body, name, origin, tag, frames)


def _bare(body: str) -> bool:
    """True for an exception line whose class has an unusual name: `tvm.Fatal: ...`, `Empty`."""
    match = _BARE_NAME.match(body.rstrip())
    if match is None:
        return False
    last = match["name"].rsplit(".", 1)[-1]
    return last[:1].isupper() and not last.isupper()


def _origin_of_frame(file: str, name: str) -> Origin:
    if file == "<string>" and name != "<module>":
        return Origin.PLAIN
    if _SPAWN_FRAME.search(file):
        return Origin.PROCESS
    if _THREAD_FRAME.search(file):
        return Origin.THREAD
    if _MAIN_FRAME.search(file) and (name in ("<module>", "_run_module_as_main", "main") or "runpy" in file):
        return Origin.MAIN
    return Origin.PLAIN
