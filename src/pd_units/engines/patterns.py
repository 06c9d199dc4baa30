"""Regular expressions that may come from an operator: bounded in cost, and sorted out by fixed text.

A pattern is accepted if every match must contain a fixed text (its literals, digits excluded, because lines
are remembered by their shape without digits), and if the worst line cannot make it run for long.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pd_units.logtext import HEAD, TAIL

_parser: Any = importlib.import_module("re._parser")
_UNBOUNDED = HEAD + TAIL
_MOST_STEPS = 2**27
_SHORTEST_LITERAL = 3
_MOST_SPELLINGS = 24


class PatternError(ValueError):
    """A pattern that is refused; the message says why."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled expression, the texts of which every match contains at least one, and whether other digits
    in a text can make it match or not."""

    regex: re.Pattern[str]
    literals: tuple[str, ...]
    sees_digits: bool = True

    def search(self, text: str) -> re.Match[str] | None:
        """The first match in `text`, tried only where a literal stands in it."""
        for literal in self.literals:
            if literal in text:
                return self.regex.search(text)
        return None


@lru_cache(maxsize=4096)
def compile_pattern(source: str) -> Pattern:
    """`source` as a Pattern. Raises PatternError for bad syntax, no literal, or unbounded cost."""
    try:
        tree = _parser.parse(source)
        regex = re.compile(source)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"not a regular expression: {error}") from None
    if regex.flags & re.IGNORECASE:
        raise PatternError("case-insensitive patterns are not supported: spell the cases, as in [Ee]rror")
    _refuse_costly(tree)
    literals = _required(tree)
    if not literals:
        raise PatternError(
            "every match must contain a fixed text of at least three characters other than digits"
        )
    return Pattern(regex, tuple(sorted(literals)), _sees_digits(tree))


def _sees_digits(tree: Any) -> bool:
    """True where the pattern names digits, or counts characters, so that another number could matter."""
    for op, argument in tree:
        name = _name(op)
        if (name == "LITERAL" and chr(argument).isdigit()) or name in (
            "IN",
            "RANGE",
            "NOT_LITERAL",
            "CATEGORY",
        ):
            return True
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            if argument[1] != _parser.MAXREPEAT and argument[1] > 1:
                return True
            if _sees_digits(argument[2]):
                return True
        if name == "SUBPATTERN" and _sees_digits(argument[3]):
            return True
        if name == "BRANCH" and any(_sees_digits(branch) for branch in argument[1]):
            return True
        if name in ("ASSERT", "ASSERT_NOT") and _sees_digits(argument[1]):
            return True
    return False


def _name(op: Any) -> str:
    return str(op)


def _required(tree: Any) -> frozenset[str]:
    """The best set of literals one of which every match of `tree` contains; empty if there is none."""
    options: list[frozenset[str]] = []
    run = [""]

    def close() -> None:
        pieces = [max(re.split(r"[\d\n\r]", text), key=len) for text in run]
        if all(len(piece) >= _SHORTEST_LITERAL for piece in pieces):
            options.append(frozenset(pieces))
        run[:] = [""]

    for op, argument in tree:
        name = _name(op)
        if name == "AT":
            continue  # takes no text: what stands on both sides of it is adjacent
        spellings = _spellings(name, argument)
        if spellings and len(run) * len(spellings) <= _MOST_SPELLINGS:
            run[:] = [text + spelling for text in run for spelling in spellings]
            continue
        close()
        options.append(_required_of(name, argument))
    close()
    return max(options, key=_quality, default=frozenset())


def _spellings(name: str, argument: Any) -> list[str]:
    """The few fixed texts that one item of a pattern stands for; empty if they are many."""
    if name == "LITERAL":
        return [chr(argument)]
    if name == "IN" and len(argument) <= 3 and all(_name(op) == "LITERAL" for op, _ in argument):
        return [chr(value) for _, value in argument]
    if name == "SUBPATTERN":
        return _all_spellings(argument[3])
    if name == "BRANCH":
        branches = [_all_spellings(branch) for branch in argument[1]]
        return [text for branch in branches for text in branch] if all(branches) else []
    return []


def _all_spellings(tree: Any) -> list[str]:
    run = [""]
    for op, argument in tree:
        spellings = _spellings(_name(op), argument)
        if not spellings or len(run) * len(spellings) > _MOST_SPELLINGS:
            return []
        run = [text + spelling for text in run for spelling in spellings]
    return run


def _required_of(name: str, argument: Any) -> frozenset[str]:
    if name == "SUBPATTERN":
        return _required(argument[3])
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] >= 1:
        return _required(argument[2])
    if name == "BRANCH":
        found = [_required(branch) for branch in argument[1]]
        if all(found):
            return frozenset().union(*found)
    return frozenset()


def _quality(literals: frozenset[str]) -> tuple[int, int]:
    if not literals:
        return (0, 0)
    return (min(16, min(map(len, literals))), -len(literals))


def _refuse_costly(tree: Any) -> None:
    items = list(tree)
    if len(items) == 1 and _name(items[0][0]) == "BRANCH":
        for branch in items[0][1][1]:
            _refuse_costly(branch)
        return
    prefix = 0
    for op, _ in items:
        if _name(op) != "LITERAL":
            break
        prefix += 1
    anchored = bool(items) and _name(items[0][0]) == "AT" and _name(items[0][1]) == "AT_BEGINNING"
    starts = 1 if anchored else _UNBOUNDED // max(1, prefix)
    steps = _steps(tree, inside=False) * starts
    if steps > _MOST_STEPS:
        raise PatternError(
            "could run for too long on an unlucky line: "
            "bound its repeats, as in .{0,80}, or begin with fixed text"
        )


def _steps(tree: Any, *, inside: bool) -> int:
    """An upper bound of the ways in which `tree` can match at one place. Raises PatternError if nested."""
    total = 1
    items = list(tree)
    for index, (op, argument) in enumerate(items):
        name = _name(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            total *= _repeat_steps(argument, items[index + 1 :], inside=inside)
        elif name == "SUBPATTERN":
            total *= _steps(argument[3], inside=inside)
        elif name == "BRANCH":
            total *= sum(_steps(branch, inside=inside) for branch in argument[1])
        elif name in ("ASSERT", "ASSERT_NOT"):
            total *= _steps(argument[1], inside=inside)
        elif name == "GROUPREF":
            raise PatternError("back references are not supported")
        total = min(total, 2**62)
    return total


def _repeat_steps(argument: Any, following: list[Any], *, inside: bool) -> int:
    low, high, body = argument
    most = _UNBOUNDED if not isinstance(high, int) or high > _UNBOUNDED else int(high)
    if most <= 1:
        return most - int(low) + _steps(body, inside=inside)
    if inside and most > 64:
        raise PatternError("a repeat within a repeat can backtrack without end: bound or remove one of them")
    within = _steps(body, inside=most > 64)
    if most <= 64 and within > 1:
        return int(min(within**most, 2**62))
    return within if _disjoint(body, following) else most * within


def _disjoint(body: Any, following: list[Any]) -> bool:
    """True where what is repeated cannot match the fixed character that must follow: no way to go back."""
    if len(body) != 1 or not following or _name(following[0][0]) != "LITERAL":
        return False
    name, argument = _name(body[0][0]), body[0][1]
    character = chr(following[0][1])
    if name == "NOT_LITERAL":
        return bool(chr(argument) == character)
    if name == "LITERAL":
        return bool(chr(argument) != character)
    if name != "IN":
        return False
    return not _in_class(argument, character)


_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def _in_class(argument: Any, character: str) -> bool:
    negated, found = False, False
    for op, value in argument:
        name = _name(op)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            found = found or chr(value) == character
        elif name == "RANGE":
            found = found or value[0] <= ord(character) <= value[1]
        elif name == "CATEGORY":
            found = found or re.match(_CATEGORIES[str(value)], character) is not None
    return found != negated
