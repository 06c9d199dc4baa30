"""The way of text in: journal entries and lines of files become single messages, floods pass at once.

Most lines of a long log say nothing, again and again with other numbers. The shape of a line, its text
without digits, is remembered once it is known to say nothing, or nothing but a warning.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pd_units.engines.rules import Rules, WarningRule
from pd_units.logtext import plain, segments, unwrap
from pd_units.reading import Reading

_DIGITS = str.maketrans("", "", "0123456789")
_MOST_SHAPES = 4096
_LONGEST_SHAPE = 2000
_CHUNK_LINES = 2000
_LONGEST_CHUNK = 4_000_000
_UNSEEN = (None,)
_ODD = ("\r", '{"log":')
_BAR_ENDS = ("it/s]", "s/it]", "B/s]")


class Intake:
    """Splits what it is fed, and hands on what may mean something. Memory is bounded."""

    def __init__(self, rules: Rules, *, cut_lives: bool) -> None:
        self.reading = Reading(rules, cut_lives=cut_lives)
        self._quiet: dict[str, tuple[WarningRule, ...]] = {}
        self._quiet_of = 0
        self._count = 0

    def feed(self, text: str, number: int | None, manager: bool) -> None:
        """Take one entry; see `Classifier.feed`."""
        self._count += 1
        line = self._count if number is None else number
        text = unwrap(text)
        if manager or len(text) > _LONGEST_SHAPE or "\n" in text or "\r" in text:
            self._pieces(text, line, manager)
        else:
            self._line(text, text.translate(_DIGITS), line)

    def feed_many(self, lines: Iterable[str]) -> None:
        """Take many lines; see `Classifier.feed_many`."""
        iterator = iter(lines)
        while chunk := list(islice(iterator, _CHUNK_LINES)):
            self._chunk(chunk)

    def _chunk(self, chunk: list[str]) -> None:
        joined = "\n".join(chunk)
        broken = joined.count("\n") != len(chunk) - 1 or len(joined) > _LONGEST_CHUNK
        if broken or any(odd in joined for odd in _ODD):
            for text in chunk:
                self.feed(text, None, False)
            return
        self._renew()
        shapes = joined.translate(_DIGITS).split("\n")
        loud = {shape for shape in set(shapes) if self._quiet.get(shape, _UNSEEN)}
        if not loud:
            self._count += len(chunk)
            self.reading.at += len(chunk)
            return
        life = self._quiet_of
        for text, shape in zip(chunk, shapes, strict=True):
            self._count += 1
            if shape in loud or life != self.reading.lives:
                self._line(text, shape, self._count)
            else:
                self.reading.at += 1

    def _line(self, text: str, shape: str, line: int) -> None:
        """Take a single line, at once where a line of that shape is known to say nothing new."""
        self._renew()
        known = self._quiet.get(shape)
        if known is None and not self.reading.interesting(shape):
            known = self._remember(shape, ())
        self.reading.at += 1
        if known is not None:
            for rule in known:
                self.reading.life.phase.warn(rule, line)
            return
        outcome = self.reading.take(plain(text), line, manager=False)
        if outcome is not None:
            self._remember(shape, outcome)

    def _renew(self) -> None:
        """Forget all shapes when a new life begins: its identity is not known yet."""
        if self._quiet_of != self.reading.lives:
            self._quiet_of = self.reading.lives
            self._quiet.clear()

    def _remember(self, shape: str, warnings: tuple[WarningRule, ...]) -> tuple[WarningRule, ...]:
        if len(self._quiet) >= _MOST_SHAPES:
            self._quiet.clear()
        self._quiet[shape] = warnings
        return warnings

    def _pieces(self, text: str, line: int, manager: bool) -> None:
        """Take every message of an entry; of a bar that redraws itself only the last state."""
        waiting: str | None = None
        for piece in segments(plain(text)):
            self.reading.at += 1
            if piece.endswith(_BAR_ENDS):
                waiting = piece
                continue
            if waiting is not None:
                self.reading.take(waiting, line, manager=manager)
                waiting = None
            self.reading.take(piece, line, manager=manager)
        if waiting is not None:
            self.reading.take(waiting, line, manager=manager)
