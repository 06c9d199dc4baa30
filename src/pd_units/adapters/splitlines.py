"""Puts lines together again that journald has split (LineMax=), so that no pattern is cut in two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pd_units.ports import JournalLine

_LONGEST = 4 << 20
_PATIENCE_S = 1.0


@dataclass(slots=True)
class _Open:
    text: str
    since: float


class SplitLines:
    """The open lines, by stream. Of text with carriage returns (a progress bar) only what follows the last
    one waits for its end: a bar may go on for minutes without a newline, and it is progress."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    @property
    def waiting(self) -> bool:
        """Whether any line waits for its end."""
        return bool(self._open)

    def take(self, stream: str, text: str, split: bool, now: float) -> str | None:
        """Take an entry's text; what may be given of its line now. `split`: its line goes on in the next."""
        before = self._open.pop(stream, None)
        if before is not None:
            text = before.text + text
        if not split or len(text) > _LONGEST:
            return text
        head, separator, rest = text.rpartition("\r")
        since = before.since if before is not None and not separator else now
        self._open[stream] = _Open(rest, since)
        return head or None

    def overdue(self, now: float, *, everything: bool) -> Iterator[JournalLine]:
        """Give the lines that have waited for their end too long, as they are."""
        for stream, line in list(self._open.items()):
            if everything or now - line.since >= _PATIENCE_S:
                del self._open[stream]
                if line.text:
                    yield JournalLine(line.text, 0, 0)
