"""From what a journal or a file holds to single messages: pure text work, no knowledge of causes.

A stored line can be several messages: a progress bar redraws itself with carriage returns and ends without a
newline, so that the next message stands behind it. It can wear prefixes of journald, docker, Kubernetes,
compose, Ray and wrapper scripts, sometimes two stamps, and terminal colours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

HEAD, TAIL = 3072, 1024
"""Characters kept of the beginning and the end of an overlong message; rules see no more of it."""

_ANSI = re.compile(
    r"\x1b\[[0-9;?]{0,24}[ -/]?[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b[@-Z\\^_]"
    r"|#033\[[0-9;]{0,24}m"
)
_BARE_COLOUR = re.compile(r"\[(?:\d{1,2};){0,3}\d{0,2}m(?![\w-])")

_IDENT = r"(?P<ident>[^\s\[\]:]{1,64})"
_SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?"
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_TAG = r"(?P<tag>(?: [A-Z_]{2,12}\d{1,4}){0,8})"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r" {0,8}\d{1,7}\.\d\d (?=.)",  # seconds since the start, as a recorder writes them
        r" {1,400}(?=\[\d{4}-\d\d-\d\d )",  # what is left of a bar that was overwritten
        r"[A-Z][a-z]{2} \d{1,2}, \d{4} @ \d\d:\d\d:\d\d\.\d{3}\s{1,8}",
        rf"(?:DEFAULT|DEBUG|INFO|NOTICE|WARNING|ERROR|CRITICAL) (?={_ISO} )",
        rf"(?:[A-Z][a-z]{{2}} {_SYSLOG} \d{{4}})?\[\d{{1,5}},\d{{1,5}}\]<std(?:err|out)>: ?",
        r"\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ",
        r"\| (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) {1,8}\| (?:[\w.:<>-]{1,80} (?:\| |- ))?",
        rf"(?:{_SYSLOG}|{_ISO}) (?:\S{{1,64}} )??{_IDENT}\[(?P<pid>\d{{1,8}})\]: ",
        rf"{_SYSLOG} \S{{1,64}} {_IDENT}: ",
        rf"(?:\d{{13}}\t)?{_ISO}(?:[ \t]|$)",
        r"(?:stdout|stderr) [FP] ",
        r"\[?[\w.-]{1,64}\]? {0,24}\| ",
        r"(?:- )?[\w.]{1,64} - (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - ",
        r"\([\w.:]{1,64}(?:\([^()]{0,80}\))? pid=\d{1,8}(?:, ip=[\w.:]{1,64})?\) ",
        r"\[pod/[^\]]{1,200}\] ",
        r"\[[Rr]ank\d{1,4}\]: ?",
        r"\[[A-Z][\w .()-]{1,40}\](?: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d)? ",
        r"(?P<stamp>\[(?:\d{4}-\d\d-\d\d |\d\d-\d\d )?(?P<clock>\d\d:\d\d:\d\d)(?:[.,]\d{1,6})?"
        + _TAG
        + r"\]) ?",
        r"\[(?P<tag>(?:gpu_id|rank)=\d{1,4})\] ",
        r"(?P<tag>Rank \d{1,4}): ",
    )
)
_FIRST = re.compile(r"[\[ (|\w-]")

_ACCESS = re.compile(r'"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH|PRI) [^"]{0,2000} HTTP/[\d.]{1,4}"')
_ROUTER_ACCESS = re.compile(r"http_request\{method=")
_SETTINGS = re.compile(
    r"^server_args=(?!\w+[,)])|server_args=(?:ServerArgs\((?!\*)|\{(?!\*)|\.\.\.)|server_args: ?\{"
    r"|ServerArgs\([a-z_]{2,40}=['\"\d\[{NTF-]|(?P<client>Namespace\()[a-z_]{2,40}="
)
_PAIR = re.compile(r"""[(,{] ?'?[a-z][a-z0-9_]{2,60}'?(?:=|: )""")
_OPTION_HELP = re.compile(r"^ {4,}\[?--?[a-z]|^ {1,30}\[--|^usage: ")
_BAR = re.compile(
    r"(?P<percent>\d{1,3})%(?: Completed)? ?\|(?:[^|\r\n]{0,600}\|)? ?"
    r"(?P<done>[\d.]{1,9}[kMGT]?B?)/(?P<total>[\d.]{1,9}[kMGT]?B?) \[\d{1,4}:\d\d(?::\d\d)?<[^\]\r\n]{0,80}\]"
)


@dataclass(slots=True)
class Message:
    """One message: `body` without prefixes, its rank `tag` ("DP0 TP0", "" for the main process), whether
    the engine stamped it and at which second of the day, and the syslog identifier and PID of a prefix."""

    body: str
    tag: str = ""
    stamped: bool = False
    ident: str = ""
    pid: int | None = None
    clock_s: int | None = None


@dataclass(slots=True)
class Bar:
    """The last state of a progress bar: what it says it counts, and how far it is."""

    label: str
    done: int
    total: int


def plain(text: str) -> str:
    """`text` without terminal colours, also where a collector has eaten the escape character."""
    if "\x1b" in text or "#033" in text:
        text = _ANSI.sub("", text)
    elif "[0m" in text:
        text = _BARE_COLOUR.sub("", text)
    return text.replace("\x00", "") if "\x00" in text else text


def segments(text: str) -> Iterator[str]:
    """The pieces of one stored line: split at newlines and carriage returns, empty ones dropped."""
    if "\r" not in text and "\n" not in text:
        yield text
        return
    for piece in text.replace("\r", "\n").split("\n"):
        if piece:
            yield piece


def shorten(text: str) -> str:
    """`text`, or its head and tail where it is longer than the rules will look at."""
    if len(text) <= HEAD + TAIL:
        return text
    return text[:HEAD] + " ... " + text[-TAIL:]


def unwrap(text: str) -> str:
    """The text in a line of docker's json-file log; any other text as it is."""
    if not text.startswith('{"log":'):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        return text
    inner = found.get("log") if isinstance(found, dict) else None
    return inner.rstrip("\r\n") if isinstance(inner, str) else text


def parse_message(text: str) -> Message:
    """The message in one plain piece of text; prefixes are taken off one after another."""
    message = Message(text)
    position = 0
    for _ in range(8):
        match = _match_prefix(text, position)
        if match is None:
            break
        groups = match.groupdict()
        message.ident = groups.get("ident") or message.ident
        if groups.get("pid"):
            message.pid = int(groups["pid"])
        if "stamp" in groups:
            message.stamped = True
            hours, minutes, seconds = groups["clock"].split(":")
            message.clock_s = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
        if groups.get("tag"):
            message.tag = groups["tag"].strip()
        position = match.end()
    message.body = text[position:]
    return message


def _match_prefix(text: str, position: int) -> re.Match[str] | None:
    if position >= len(text) or not _FIRST.match(text, position):
        return None
    for prefix in _PREFIXES:
        match = prefix.match(text, position)
        if match is not None and match.end() > position:
            return match
    return None


def is_access_line(body: str) -> bool:
    """True for a line of an HTTP access log, whatever it was answered."""
    if "HTTP/" in body and _ACCESS.search(body) is not None:
        return True
    return "http_request{" in body and _ROUTER_ACCESS.search(body) is not None


def settings_start(body: str) -> int:
    """Where an echo of the engine's settings begins in `body`, -1 if there is none."""
    if "erver_args" not in body and "ServerArgs(" not in body and "Namespace(" not in body:
        return -1
    match = _SETTINGS.search(body)
    return match.start() if match else -1


def is_client_settings(body: str) -> bool:
    """True where the settings echoed in `body` are a client's, such as a benchmark's: no launch."""
    match = _SETTINGS.search(body)
    return match is not None and match["client"] is not None and "mem_fraction_static" not in body


def is_settings_tail(body: str, *, expected: bool) -> bool:
    """True where `body` is the rest of an echo of settings that journald cut in two.

    `expected` says that such an echo was seen unfinished: then fewer signs are enough.
    """
    needed = 4 if expected else 12
    return sum(1 for _ in islice(_PAIR.finditer(body), needed)) == needed


def is_usage(body: str) -> bool:
    """True for a line of argparse's usage text, which names every option."""
    return _OPTION_HELP.match(body) is not None


def find_bar(body: str) -> tuple[Bar, str] | None:
    """The last progress bar in `body`, and the text behind it; None without a bar."""
    if "%" not in body or not any(unit in body for unit in ("it]", "s/it", "/s]", "it/s")):
        return None
    last, before = None, 0
    for match in _BAR.finditer(body):
        before = last.end() if last else 0
        last = match
    if last is None:
        return None
    label = body[max(before, last.start() - 120) : last.start()].strip(" :|\t]")
    label = label.rsplit("]", 1)[-1].strip(" :")
    return Bar(label, _amount(last["done"]), _amount(last["total"])), body[last.end() :].strip()


def _amount(text: str) -> int:
    """A bar's count; sizes ("1.50G") in bytes."""
    digits = text.rstrip("B")
    scale = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.get(digits[-1:], 1)
    try:
        return int(float(digits.rstrip("kMGT")) * scale)
    except ValueError:
        return 0
