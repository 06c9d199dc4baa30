"""Tells lines that mean nothing from the rest, fast: an index of texts by four of their characters.

Hundreds of fixed texts are looked for in every line. Each is filed under its rarest run of four characters; a
line's own runs are met with those keys in one set operation, and only texts filed under a common key are
then really looked for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
_Gram = tuple[str, ...]
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz .,:-")


class TextIndex(Generic[T]):
    """What stands behind each of many texts. Immutable after construction."""

    def __init__(self, entries: Mapping[str, tuple[T, ...]], usual: Iterable[str] = ()) -> None:
        """`entries`: what is filed under each text. `usual`: lines whose runs make poor keys."""
        common = {gram for line in usual for gram in _grams(line)}
        often = Counter(gram for text in entries for gram in set(_grams(text)))
        filed: defaultdict[_Gram, list[tuple[str, tuple[T, ...]]]] = defaultdict(list)
        self._short = tuple((text, found) for text, found in entries.items() if len(text) < 4)
        for text, found in entries.items():
            if len(text) >= 4:
                key = min(_grams(text), key=lambda gram: (gram in common, often[gram], -_rarity(gram), gram))
                filed[key].append((text, found))
        self._filed = {key: tuple(found) for key, found in filed.items()}
        self._keys = frozenset(self._filed)

    def may_stand_in(self, line: str) -> bool:
        """False where none of the texts stands in `line`; the quick question before `find_in`."""
        return not self._keys.isdisjoint(_grams(line)) or any(text in line for text, _ in self._short)

    def find_in(self, line: str) -> Iterator[T]:
        """What is filed under each text that stands in `line`."""
        for found in self._filed_in(line):
            yield from found
        for text, found in self._short:
            if text in line:
                yield from found

    def _filed_in(self, line: str) -> Iterator[tuple[T, ...]]:
        for key in self._keys.intersection(_grams(line)):
            for text, found in self._filed[key]:
                if text in line:
                    yield found


def _grams(text: str) -> Iterator[_Gram]:
    return zip(text, text[1:], text[2:], text[3:], strict=False)


def _rarity(gram: _Gram) -> int:
    """How unusual a run is in running text: capitals and signs count, blanks do not."""
    return 4 - sum(map(_PLAIN.__contains__, gram))
