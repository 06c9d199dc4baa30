"""What engine and router options are called in which version, as data: `<program>_options.toml`.

A program that is not in the data, or a version that is not known, is taken for the newest one known.
Options that no version has pass through with a warning: forks have options of their own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pd_units.errors import Fault
from pd_units.model_fields import join_key, nearest
from pd_units.model_types import ArgValue
from pd_units.resources import read_engine_data

Version = tuple[int, ...]
_FOREVER: Version = (9999,)


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `after`: the newest version known to lack it from before, () = none; `until`: the first
    known to lack it again. Versions between those that were looked at are given the benefit of the doubt."""

    name: str
    after: Version
    until: Version

    def known_to(self, version: Version) -> bool:
        return (not self.after or self.after < version) and version < self.until


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of a program over its versions.

    `aliases`: other spellings that every version takes, to the one rendered. `renames`: groups of names
    of one option at different times. `removed`: what to do in place of an option that is gone. `refused`:
    why an option cannot be used under pd-units, and what to do.
    """

    program: str
    oldest: Version
    newest: Version
    options: Mapping[str, Option]
    aliases: Mapping[str, str]
    renames: tuple[tuple[str, ...], ...]
    removed: Mapping[str, str]
    refused: Mapping[str, str]

    def spelling(self, name: str, version: Version) -> str:
        """The name of an option in that version; the name itself where the version has none."""
        name = self.aliases.get(name, name)
        option = self.options.get(name)
        if option is None or option.known_to(version):
            return name
        group = next((each for each in self.renames if name in each), ())
        return next((each for each in group if self.options[each].known_to(version)), name)


def parse_version(text: str) -> Version:
    """Comparable form of "0.5.10.post1"; what follows the first part without a number is left out."""
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:4])


def format_version(version: Version) -> str:
    return ".".join(map(str, version))


def span_of(name: str, text: str) -> Option:
    """Option with the versions of "AFTER UNTIL", the form of the data files."""
    after, _, until = text.partition(" ")
    return Option(name, parse_version(after), parse_version(until) if until else _FOREVER)


@cache
def load_table(program: str) -> OptionTable:
    """Table of "sglang" or "sglang-router"."""
    data: dict[str, Any] = tomllib.loads(read_engine_data(f"{program.replace('-', '_')}_options.toml"))
    options = {}
    for name, span in data["options"].items():
        options[name] = span_of(name, span)
    return OptionTable(
        program=program,
        oldest=parse_version(data["oldest"]),
        newest=parse_version(data["newest"]),
        options=options,
        aliases=data.get("aliases", {}),
        renames=tuple(map(tuple, data.get("renames", []))),
        removed=data.get("removed", {}),
        refused=data.get("refused", {}),
    )


class Program:
    """A program in the version in use: spells options, and collects what is wrong with them."""

    def __init__(self, table: OptionTable, version: str | None) -> None:
        self.table = table
        found = parse_version(version) if version else ()
        # a checkout without tags calls itself 0.0.0.dev0 or the like: that says nothing
        self.version_known = found >= table.oldest
        self.version = found if self.version_known else table.newest
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []

    @classmethod
    def engine(cls, version: str | None) -> Program:
        return cls(load_table("sglang"), version)

    @classmethod
    def router(cls, version: str | None) -> Program:
        return cls(load_table("sglang-router"), version)

    @property
    def label(self) -> str:
        return f"{self.table.program} {format_version(self.version)}"

    def has(self, name: str) -> bool:
        """Whether the version in use has that option."""
        option = self.table.options.get(name)
        return option is not None and option.known_to(self.version)

    def resolve(self, tables: Iterable[tuple[str, Mapping[str, ArgValue]]]) -> dict[str, ArgValue]:
        """Options of several `args` tables under the names of the version in use.

        `tables` are (key path, args), the most specific first: an option of an earlier one wins. The
        result has the order of the last table, then of those before it.
        """
        found: dict[str, ArgValue] = {}
        for path, args in reversed(list(tables)):
            here: dict[str, str] = {}
            for name, value in args.items():
                spelling = self._resolve_one(join_key(path, name), name)
                if spelling in here:
                    what = f"is the same option as {here[spelling]}"
                    self.faults.append(Fault(join_key(path, name), what, "write it once"))
                here[spelling] = name
                found[spelling] = value
        return found

    def _resolve_one(self, where: str, name: str) -> str:
        table = self.table
        canonical = table.aliases.get(name, name)
        option = table.options.get(canonical)
        if option is None:
            hint = nearest(canonical, table.options)
            what = f"is not an option of {self.label} as pd-units knows it; passed on as it is"
            self.warnings.append(Fault(where, what, hint))
            return canonical
        spelling = table.spelling(name, self.version)
        if self.has(spelling):
            if spelling != canonical:
                self.warnings.append(Fault(where, f"is called {spelling} in {self.label}", "rendered so"))
            elif not self.version_known and any(canonical in group for group in table.renames):
                what = f"has another name in other versions; taken as for {self.label}, the newest known"
                self.warnings.append(Fault(where, what, "the engine's version could not be read"))
            return spelling
        self._missing(where, canonical, option)
        return spelling

    def _missing(self, where: str, name: str, option: Option) -> None:
        """An option that other versions have: certain only where the version is known."""
        if self.version <= option.after:
            what = f"is an option of {self.table.program} after {format_version(option.after)}"
        else:
            what = f"is gone since {self.table.program} {format_version(option.until)}"
        what += f"; in use is {format_version(self.version)}"
        fault = Fault(where, what, self.table.removed.get(name, ""))
        (self.faults if self.version_known else self.warnings).append(fault)
