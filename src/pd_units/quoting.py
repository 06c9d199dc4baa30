"""Values to unit-file syntax (systemd.syntax(7)), so that systemd reads back exactly what was meant.

Four spellings, because systemd unescapes in four ways:
- `quote_value`: directives taken as they stand (User=, Description=, EnvironmentFile=): `%` only.
- `quote_word`: Environment= assignments: words, C escapes, `%`.
- `quote_argument`: Exec*= arguments: words, C escapes, `%` and `$`.
- `quote_mount`: RequiresMountsFor=: words whose backslashes are literal (EXTRACT_RETAIN_ESCAPE), `%`.
All refuse what ends a line: a newline would start a directive of its own.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+@%$-]+")
_LINE_END = re.compile(r"[\n\r\0]")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\t": "\\t"}


def _refuse_line_end(text: str) -> None:
    if _LINE_END.search(text):
        raise ValueError(f"a newline or NUL in a value: {text[:60]!r}")


def quote_value(text: str) -> str:
    """`text` for a directive that is neither split nor unquoted.

    Raises: ValueError if it cannot be written: a line end, blanks at an end (systemd strips them), or a
    backslash at the end (it joins the next line).
    """
    _refuse_line_end(text)
    if text != text.strip() or text.endswith("\\"):
        raise ValueError(f"blanks or a backslash at the end of a value: {text[:60]!r}")
    return text.replace("%", "%%")


def _quote(text: str) -> str:
    """One word of a directive that is split, unquoted and C-unescaped."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + "".join(_ESCAPES.get(char) or _control(char) for char in text) + '"'


def _control(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def quote_word(text: str) -> str:
    """One word of Environment=: `$` stands for itself there, `%` does not.

    Raises: ValueError at a line end.
    """
    _refuse_line_end(text)
    return _quote(text.replace("%", "%%"))


def quote_argument(text: str) -> str:
    """One argument of an Exec*= line. A lone `;` comes out quoted, which is no command separator.

    Raises: ValueError at a line end.
    """
    _refuse_line_end(text)
    return _quote(text.replace("%", "%%").replace("$", "$$"))


def quote_program(text: str) -> str:
    """The path that starts an Exec*= line: `$` is not expanded in it (and is refused by the model).

    Raises: ValueError at a line end and at what systemd refuses in a path.
    """
    _refuse_line_end(text)
    if not text.startswith("/") or set(text) & set("\"'\\$"):
        raise ValueError(f"not the path of a program that systemd takes: {text[:60]!r}")
    return _quote(text.replace("%", "%%"))


def quote_mount(text: str) -> str:
    """One path of RequiresMountsFor=, where a backslash is a character like any other.

    Raises: ValueError at a line end.
    """
    _refuse_line_end(text)
    text = text.replace("%", "%%")
    if _PLAIN.fullmatch(text):
        return text
    apostrophe = "'" + '"' + "'" + '"' + "'"  # end the quoted part, one apostrophe in double quotes, go on
    return "'" + text.replace("'", apostrophe) + "'"
