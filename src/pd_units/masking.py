"""Hides the values of secrets in unit files and command lines, word by word as systemd splits them.

A secret is what `validate` calls one (secrecy.is_secret): by the name of a variable or option, or by its
own looks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from pd_units.secrecy import is_secret
from pd_units.unitfile import split_words

HIDDEN: Final = "***"
CHANGED: Final = " (changed)"

# A word in its spelling. A quote that is not closed ends with the line; a backslash there joins the next one.
_WORD = re.compile(
    r"""(?:[^\s"'\\]|\\[^\n]|\\\Z|"(?:[^"\\\n]|\\.|\\\Z)*(?:"|(?=\n)|\Z)|'(?:[^'\\\n]|\\.|\\\Z)*(?:'|(?=\n)|\Z))+""",
    re.DOTALL,
)
_NEW_LINE = re.compile(r"(?<!\\)\n")
_NAME = re.compile(r"[\w.-]+")
# The one directive that holds a secret behind a colon, and is not split.
_CREDENTIAL = re.compile(r"^(\s*SetCredential\s*=[^:\n]*:)((?:[^\n\\]|\\.|\\\Z)+)", re.DOTALL | re.MULTILINE)

#: (name, value) of a secret -> what stands in its place.
Hide = Callable[[str, str], str]


def mask(text: str) -> str:
    """A text (a unit file, a value, a command line) with the values of its secrets hidden."""
    return _mask(text, lambda _name, _value: HIDDEN)


def mask_variable(assignment: str) -> str:
    """One NAME=VALUE that is unquoted already."""
    return _mask_word(assignment, assignment, lambda _name, _value: HIDDEN)


def mask_both(old: str, new: str) -> tuple[str, str]:
    """Both texts masked; in the new one a secret that is another than in the old one is marked as changed."""
    before: dict[str, list[str]] = {}

    def note(name: str, value: str) -> str:
        before.setdefault(name, []).append(value)
        return HIDDEN

    masked = _mask(old, note)
    return masked, _mask(new, lambda name, value: HIDDEN + _mark(before, name, value))


def _mark(before: Mapping[str, list[str]], name: str, value: str) -> str:
    return CHANGED if name in before and value not in before[name] else ""


def _mask(text: str, hide: Hide) -> str:
    text = _CREDENTIAL.sub(lambda match: match[1] + hide("SetCredential", match[2]), text)
    parts: list[str] = []
    option, position = "", 0
    for match in _WORD.finditer(text):
        gap = text[position : match.start()]
        word, position = _unquoted(match[0]), match.end()
        if _NEW_LINE.search(gap) or word.startswith("--"):
            option = ""
        if option and is_secret(option.lstrip("-"), word):
            parts += [gap, hide(option, word)]
            continue
        parts += [gap, _mask_word(match[0], word, hide)]
        if word.startswith("--") and "=" not in word:
            option = word
    return "".join(parts) + text[position:]


def _mask_word(spelling: str, word: str, hide: Hide) -> str:
    """A word, which may be NAME=VALUE, --option=value, or Directive=NAME=VALUE."""
    start = 0
    while (end := word.find("=", start)) >= 0:
        name, value = word[start:end], word[end + 1 :]
        if not _NAME.fullmatch(name):
            break
        if value != HIDDEN and is_secret(name.lstrip("-"), value):
            return word[: end + 1] + hide(name, value)
        start = end + 1
    return hide("", word) if is_secret("", word) else spelling


def _unquoted(spelling: str) -> str:
    try:
        return " ".join(split_words(spelling))
    except ValueError:  # systemd ignores it; the eyes of others do not
        return spelling.replace('"', "").replace("'", "")


def words_of(text: str) -> list[str]:
    """The words of a value, in their spelling."""
    return _WORD.findall(text)


def printable(text: str) -> str:
    """The text with each byte that was no UTF-8 (surrogateescape) written as an escape."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
