"""Tells lines that mean nothing from the rest, fast: an index of texts by four of their characters.

Hundreds of fixed texts are looked for in every line. Each is filed under runs of four of its characters, its
rarest ones; a line's own runs are met with those keys in one set operation, and only texts filed under a
common key are then really looked for. Of a line only every second run is taken: a text is filed under two
runs that follow each other, and wherever it stands, one of them is met.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
_Gram = tuple[str, ...]
_SHORTEST = 5
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz .,:-")


class TextIndex(Generic[T]):
    """What stands behind each of many texts. Immutable after construction."""

    def __init__(self, entries: Mapping[str, tuple[T, ...]], usual: Iterable[str] = ()) -> None:
        """`entries`: what is filed under each text. `usual`: lines whose runs make poor keys."""
        common = {gram for line in usual for gram in _grams(line)}
        often = Counter(gram for text in entries for gram in set(_grams(text)))
        filed: defaultdict[_Gram, list[tuple[str, tuple[T, ...]]]] = defaultdict(list)
        self._short = tuple((text, found) for text, found in entries.items() if len(text) < _SHORTEST)
        self._short_texts = tuple(text for text, _ in self._short)
        self._short_ascii = tuple(filter(str.isascii, self._short_texts))

        price = {gram: (gram in common) * 4096 + often[gram] * 8 - _rarity(gram) for gram in often}
        for text, found in entries.items():
            if len(text) >= _SHORTEST:
                grams = tuple(_grams(text))
                best = min(itertools.pairwise(grams), key=lambda run: price[run[0]] + price[run[1]])
                for key in set(best):
                    filed[key].append((text, found))
        self._filed = {key: tuple(found) for key, found in filed.items()}
        self._keys = frozenset(self._filed)

    def may_stand_in(self, line: str) -> bool:
        """False where none of the texts stands in `line`; the quick question before `find_in`."""
        if not self._keys.isdisjoint(_some_grams(line)):
            return True
        texts = self._short_ascii if line.isascii() else self._short_texts
        for text in texts:  # noqa: SIM110  (any() takes twice the time)
            if text in line:
                return True
        return False

    def find_in(self, line: str) -> Iterator[T]:
        """What is filed under each text that stands in `line`."""
        for found in self._filed_in(line):
            yield from found
        for text, found in self._short:
            if text in line:
                yield from found

    def _filed_in(self, line: str) -> Iterator[tuple[T, ...]]:
        for key in self._keys.intersection(_some_grams(line)):
            for text, found in self._filed[key]:
                if text in line:
                    yield found


def _grams(text: str) -> Iterator[_Gram]:
    return zip(text, text[1:], text[2:], text[3:], strict=False)


def _some_grams(line: str) -> Iterator[_Gram]:
    return zip(line[::2], line[1::2], line[2::2], line[3::2], strict=False)


def _rarity(gram: _Gram) -> int:
    """How unusual a run is in running text: capitals and signs count, blanks do not."""
    return 4 - sum(map(_PLAIN.__contains__, gram))
