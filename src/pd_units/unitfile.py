"""Parses unit files as systemd does: order and repeats kept, an empty value resets a list.

Follows systemd.syntax(7), config_parse (shared/conf-parser.c) and extract_first_word
(basic/extract-word.c) of systemd 252.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_BLANKS = " \t"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SIMPLE_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "s": " ",
}
_NUMBER_ESCAPES = {"x": (2, 16), "u": (4, 16), "U": (8, 16)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One assignment. `line` counts from 1."""

    section: str
    key: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that systemd skips with a warning, and why. `ends`: it reads no further in the file."""

    line: int
    why: str
    ends: bool = False


@dataclass(frozen=True, slots=True)
class UnitFile:
    """Assignments of a unit file, in order."""

    entries: tuple[Entry, ...]

    def values(self, section: str, key: str) -> tuple[str, ...]:
        """Values in effect of a list directive: those after the last empty one."""
        found: list[str] = []
        for entry in self.entries:
            if (entry.section, entry.key) == (section, key):
                found = [*found, entry.value] if entry.value else []
        return tuple(found)

    def last(self, section: str, key: str) -> str | None:
        """The value in effect of a directive that holds one; None if it is not set."""
        values = self.values(section, key)
        return values[-1] if values else None

    def keys(self, section: str) -> tuple[str, ...]:
        """Keys of a section, each once, in order of first use."""
        return tuple(dict.fromkeys(entry.key for entry in self.entries if entry.section == section))

    @property
    def environment(self) -> dict[str, str]:
        """What Environment= gives a process: later assignments win, `%%` is undone."""
        found: dict[str, str] = {}
        for value in self.values("Service", "Environment"):
            for word in split_words(value):
                name, _, text = word.replace("%%", "%").partition("=")
                found[name] = text
        return found


@dataclass(frozen=True, slots=True)
class Command:
    """One command of an Exec*= line: its prefix characters, and the argv that the process gets.

    Variables (`$NAME`, `${NAME}`) and specifiers other than `%%` are left as they are written.
    """

    prefix: str
    argv: tuple[str, ...]


def parse_unit(text: str) -> UnitFile:
    """Assignments in `text`.

    Raises: ValueError with the line, where systemd would skip a line with a warning.
    """
    unit, skipped = read_unit(text)
    for each in skipped:
        raise ValueError(f"line {each.line}: {each.why}")
    return unit


def read_unit(text: str) -> tuple[UnitFile, tuple[Skipped, ...]]:
    """Assignments in `text` as systemd takes them, and what it skips.

    Bytes that are not UTF-8 are surrogates (surrogateescape). At these, and at a broken section header,
    systemd stops reading the file; it keeps what came before in a drop-in, and refuses a unit file.
    """
    entries: list[Entry] = []
    skipped: list[Skipped] = []
    section = ""
    for number, line in _logical_lines(text):
        if _SURROGATE.search(line):
            skipped.append(Skipped(number, "it is not UTF-8 text", ends=True))
            break
        if line.startswith("["):
            if not line.endswith("]"):
                skipped.append(Skipped(number, "it is no section header: ] is missing", ends=True))
                break
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        if not section:
            skipped.append(Skipped(number, "it is outside of any section"))
        elif not equals:
            skipped.append(Skipped(number, "there is no = in it"))
        elif not key.strip():
            skipped.append(Skipped(number, "there is no name before its ="))
        else:
            entries.append(Entry(section, key.rstrip(), value.strip(), number))
    return UnitFile(tuple(entries)), tuple(skipped)


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """(first line number, stripped text) of each line but empty ones and comments, continued ones joined."""
    joined, start = "", 0
    lines = text.split("\n")
    for number, raw in enumerate(lines, 1):
        line = raw.lstrip(_BLANKS)
        if line.startswith(("#", ";")):
            continue  # also between joined lines
        start = start or number
        joined += line
        if _continues(joined) and number < len(lines):
            joined = joined[:-1] + " "
            continue
        if joined.strip():
            yield start, joined.strip()
        joined, start = "", 0


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def split_words(value: str) -> tuple[str, ...]:
    """Words of a value, unquoted and C-unescaped (EXTRACT_UNQUOTE|EXTRACT_CUNESCAPE).

    Raises: ValueError at an unbalanced quote or an unknown escape, where systemd ignores the directive.
    """
    return tuple(word for word, _ in _words(value))


def parse_command(value: str) -> tuple[Command, ...]:
    """Commands of an Exec*= value; several where a lone, unquoted `;` separates them.

    Raises: ValueError as split_words.
    """
    commands: list[Command] = []
    prefix, argv = "", list[str]()
    for word, raw in _words(value):
        if raw == ";":
            commands.append(Command(prefix, tuple(argv)))
            prefix, argv = "", []
            continue
        if not argv:
            path = word.lstrip("-@:+!|")
            prefix, word = word[: len(word) - len(path)], path
            argv.append(word.replace("%%", "%"))
            continue
        argv.append(";" if raw == "\\;" else word.replace("%%", "%").replace("$$", "$"))
    return (*commands, Command(prefix, tuple(argv)))


def _words(value: str) -> Iterable[tuple[str, str]]:
    """(word, its spelling) pairs."""
    position, length = 0, len(value)
    while True:
        while position < length and value[position] in _BLANKS + "\n\r":
            position += 1
        if position >= length:
            return
        begin, word, quote = position, list[str](), ""
        while position < length:
            char = value[position]
            if char == "\\":
                if value[begin : position + 2] == "\\;":  # only Exec lines know it, and only as a whole word
                    text, position = "\\;", position + 2
                else:
                    text, position = _unescape(value, position)
                word.append(text)
                continue
            if quote:
                position += 1
                if char == quote:
                    quote = ""
                else:
                    word.append(char)
                continue
            if char in _BLANKS + "\n\r":
                break
            position += 1
            if char in "\"'":
                quote = char
            else:
                word.append(char)
        if quote:
            raise ValueError(f"a quote that is not closed: {value[begin : begin + 60]!r}")
        yield "".join(word), value[begin:position]


def _unescape(value: str, position: int) -> tuple[str, int]:
    """(text, next position) of the escape at `position`. Runs of \\x and octal escapes are UTF-8 bytes."""
    raw = bytearray()
    while value[position : position + 1] == "\\":
        kind = value[position + 1 : position + 2]
        if kind in _NUMBER_ESCAPES:
            size, base = _NUMBER_ESCAPES[kind]
            digits = value[position + 2 : position + 2 + size]
            after = position + 2 + size
        elif kind.isdecimal() and kind:
            size, base, digits, after = 3, 8, value[position + 1 : position + 4], position + 4
        elif kind in _SIMPLE_ESCAPES and kind:
            raw += _SIMPLE_ESCAPES[kind].encode()
            position += 2
            continue
        else:
            raise ValueError(f"an escape that systemd does not know: {value[position : position + 10]!r}")
        try:
            if len(digits) != size:
                raise ValueError
            number = int(digits, base)
        except ValueError:
            raise ValueError(f"a broken escape: {value[position : position + 10]!r}") from None
        if number == 0:
            raise ValueError("a NUL character")
        raw += bytes([number]) if kind not in "uU" and number < 256 else chr(number).encode()
        position = after
    return raw.decode(errors="surrogateescape"), position
