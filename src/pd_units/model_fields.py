"""Typed access to parsed TOML that collects faults with their key paths, in place of raising at the first."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from pd_units.durations import parse_duration
from pd_units.errors import Fault

#: Longest string the kernel passes as one argument or variable, in bytes (MAX_ARG_STRLEN less its NUL).
TEXT_MAX: Final = 128 * 1024 - 1

#: Highest number of a GPU or NUMA node: systemd's NUMAMask= takes no more nodes than the kernel has (1024).
INDEX_MAX: Final = 1023

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MISSING: Final = object()
_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")


def join_key(path: str, key: str) -> str:
    """Key path of `key` inside `path`, quoted where TOML wants quotes."""
    part = key if _BARE_KEY.fullmatch(key) else '"' + key.encode("unicode_escape").decode() + '"'
    return f"{path}.{part}" if path else part


def kind_of(value: object) -> str:
    """What a TOML value is, in words for a message."""
    names: dict[type, str] = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    names |= {list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")


def text_problem(value: str) -> str | None:
    """Why a string cannot stand in a unit file or an argument vector, or None.

    systemd ends a line at a newline, a carriage return or a NUL and takes no text that is not UTF-8 in
    its own, narrower sense (no non-characters); other control characters are never meant.
    """
    for char in value:
        code = ord(char)
        if char in "\n\r":
            return "holds a newline, which would start a new directive in the unit"
        if code == 0:
            return "holds a NUL character"
        if (code < 0x20 and char != "\t") or code == 0x7F:
            return f"holds a control character (U+{code:04X})"
        if 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE or 0xD800 <= code <= 0xDFFF:
            return f"holds a character that systemd refuses (U+{code:04X})"
    if len(value.encode()) > TEXT_MAX:
        return f"is longer than the kernel passes in one string ({TEXT_MAX} bytes)"
    return None


def require_small_integers(value: object, where: str = "") -> None:
    """Raises: ValueError for a whole number of more than 64 bits, which TOML has not (and int() may)."""
    if isinstance(value, dict):
        for key, each in value.items():
            require_small_integers(each, join_key(where, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            require_small_integers(each, f"{where}[{number}]")
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{where} has more than 64 bits")


class Faults:
    """Every fault found so far. `placement`: the fault is a clash of GPUs or ports, not a wrong file."""

    def __init__(self) -> None:
        self._found: list[tuple[Fault, bool]] = []

    def add(self, where: str, what: str, hint: str = "", *, placement: bool = False) -> None:
        self._found.append((Fault(where, what, hint), placement))

    @property
    def all(self) -> tuple[Fault, ...]:
        return tuple(fault for fault, _ in self._found)

    @property
    def placement_only(self) -> bool:
        return bool(self._found) and all(placement for _, placement in self._found)

    def __bool__(self) -> bool:
        return bool(self._found)


class Table:
    """One TOML table: each key is asked for by the type wanted; `finish` reports what nobody asked for."""

    def __init__(self, data: Mapping[str, Any], path: str, faults: Faults) -> None:
        self.data = data
        self.path = path
        self.faults = faults
        self._asked: list[str] = []

    def where(self, key: str) -> str:
        return join_key(self.path, key)

    def has(self, key: str) -> bool:
        return key in self.data

    def value(self, key: str) -> object:
        """The raw value, or a mark of its absence; notes that the key is known."""
        self._asked.append(key)
        return self.data.get(key, _MISSING)

    def fault(self, key: str, what: str, hint: str = "") -> None:
        self.faults.add(self.where(key), what, hint)

    def _typed(self, key: str, kind: type[_T], wanted: str, *, required: bool = False) -> _T | None:
        """The value if it is of that type, else None and a fault (where it is there, or required)."""
        value = self.value(key)
        if value is _MISSING:
            if required:
                self.fault(key, "is missing", f"{wanted} is wanted")
            return None
        if type(value) is not kind:  # exact: a TOML boolean is a Python int too
            self.fault(key, f"must be {wanted}, not {kind_of(value)}")
            return None
        return value

    def text(
        self, key: str, *, required: bool = False, check: Callable[[str], str | None] | None = None
    ) -> str | None:
        """A non-empty string that can stand in a unit; `check` answers with a further problem."""
        value = self._typed(key, str, "a string", required=required)
        if value is None:
            return None
        problem = "is empty" if not value else text_problem(value) or (check(value) if check else None)
        if problem:
            self.fault(key, problem)
            return None
        return str(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._typed(key, bool, "true or false")
        return default if value is None else bool(value)

    def integer(self, key: str, low: int, high: int, *, what: str, required: bool = False) -> int | None:
        value = self._typed(key, int, what, required=required)
        if value is None:
            return None
        if not low <= value <= high:
            self.fault(key, f"must be {what}, not {value}")
            return None
        return int(value)

    def port(self, key: str, *, required: bool = False) -> int | None:
        return self.integer(key, 1, 65535, what="a port (1 to 65535)", required=required)

    def choice(self, key: str, kind: type[_E], default: _E) -> _E:
        value = self._typed(key, str, "a string")
        if value is None:
            return default
        try:
            return kind(value)
        except ValueError:
            self.fault(key, f"{value!r} is not one of {', '.join(kind)}", nearest(value, list(kind)))
            return default

    def duration(self, key: str, default: float) -> tuple[float, bool]:
        """(seconds, whether the file says so)."""
        value = self.value(key)
        if value is _MISSING:
            return default, False
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            self.fault(key, f'must be a time span such as "30min", or seconds, not {kind_of(value)}')
            return default, False
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fault(key, str(error), 'write for example "30min", "1h 30min" or "90s"')
            return default, False
        if not 1 <= seconds <= 30 * 86400:
            self.fault(key, "must be between 1s and 30 days")
            return default, False
        return seconds, True

    def texts(self, key: str, check: Callable[[str], str | None]) -> tuple[str, ...]:
        """A list of strings, each once, each passed by `check`."""
        values = self._typed(key, list, "a list of strings")
        good: list[str] = []
        for number, value in enumerate(values or ()):
            where = f"{self.where(key)}[{number}]"
            if type(value) is not str:
                self.faults.add(where, f"must be a string, not {kind_of(value)}")
                continue
            problem = ("is empty" if not value else None) or text_problem(value) or check(value)
            if problem is None and value in good:
                problem = f"{value} is there twice"
            if problem:
                self.faults.add(where, problem)
            else:
                good.append(value)
        return tuple(good)

    def integers(self, key: str, *, what: str, plural: str, required: bool) -> tuple[int, ...]:
        """A non-empty list of distinct whole numbers from 0; () and a fault if it is not."""
        values = self._typed(key, list, f"a list of {plural}", required=required)
        if values is None:
            return ()
        if not values:
            self.fault(key, "is an empty list", f"name at least one {what}")
        good: list[int] = []
        for number, value in enumerate(values):
            where = f"{self.where(key)}[{number}]"
            if type(value) is not int or not 0 <= value <= INDEX_MAX:
                shown = value if type(value) is int else kind_of(value)
                self.faults.add(where, f"must be a {what} (0 to {INDEX_MAX}), not {shown}")
            elif value in good:
                self.faults.add(where, f"{what} {value} is there twice", placement=True)
            else:
                good.append(value)
        return tuple(good)

    def variables(self, key: str) -> dict[str, str]:
        """A table of environment variables; whole numbers are taken as their decimal text."""
        found: dict[str, str] = {}
        table = self.table(key)
        for name, value in table.data.items() if table else ():
            where = join_key(self.where(key), name)
            problem, hint = variable_problem(name, value)
            if problem:
                self.faults.add(where, problem, hint)
            else:
                found[name] = str(value)
        return found

    def table(self, key: str, *, required: bool = False) -> Table | None:
        value = self._typed(key, dict, "a table", required=required)
        return None if value is None else Table(value, self.where(key), self.faults)

    def tables(self, key: str) -> list[Table]:
        """The tables of `[[key]]`."""
        value = self.value(key)
        if value is _MISSING:
            return []
        if isinstance(value, dict):
            self.fault(key, "must be a list of tables", f"write [[{key}]], one table an instance")
            return []
        if not isinstance(value, list):
            self.fault(key, f"must be a list of tables ([[{key}]]), not {kind_of(value)}")
            return []
        if not value:
            self.fault(key, "is an empty list", "leave the key out, or name at least one instance")
        found = []
        for number, item in enumerate(value):
            if type(item) is dict:
                found.append(Table(item, f"{key}[{number}]", self.faults))
            else:
                self.faults.add(f"{key}[{number}]", f"must be a table, not {kind_of(item)}")
        return found

    def finish(self, hints: Mapping[str, str] | None = None) -> None:
        """Reports every key that nobody asked for, with what may have been meant."""
        for key in self.data:
            if key not in self._asked:
                hint = (hints or {}).get(key) or nearest(key, self._asked)
                self.fault(key, "is not a key that pd-units knows", hint)


def variable_problem(name: str, value: object) -> tuple[str | None, str]:
    """(problem, hint) of one environment variable."""
    if not _VARIABLE.fullmatch(name):
        return "is not a variable name", "letters, digits and _, not starting with a digit"
    if type(value) is bool:
        return "must be a string, not a boolean", 'write "1" or "0", or the word that the program wants'
    if type(value) is int:
        return None, ""
    if type(value) is not str:
        return f"must be a string, not {kind_of(value)}", f'write {name} = "..."'
    return text_problem(value), ""


def nearest(word: str, known: Iterable[str]) -> str:
    """ "did you mean ...?" for a misspelt word, or nothing."""
    lowered = word.lower().replace("-", "_")
    by_form = {each.lower().replace("-", "_"): each for each in known}
    match = difflib.get_close_matches(lowered, by_form, n=1, cutoff=0.6)
    return f"did you mean {by_form[match[0]]}?" if match else ""
