"""The two streams of a verb, so that a reader who left, or a full disk, stops nothing under way."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


class Prose(io.TextIOWrapper):
    """stderr: what cannot be written is left out. `pd-units install 2>&1 | head` installs all the same."""

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


class Answer(io.TextIOWrapper):
    """stdout: a reader who left has what it wanted. Any other fault is for the one who asked.

    Raises: OSError.
    """

    def write(self, text: str, /) -> int:
        with contextlib.suppress(BrokenPipeError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            super().flush()


def replace_streams() -> None:
    """Put them in place of Python's own; what the terminal's encoding lacks is written with backslashes."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free one, or a lock would lie there
    sys.stdout = _instead(sys.stdout, Answer, 1)
    sys.stderr = _instead(sys.stderr, Prose, 2)


def _instead(stream: TextIO | None, kind: type[io.TextIOWrapper], number: int) -> TextIO:
    if stream is None:  # closed by whoever started us
        return kind(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8", "backslashreplace")
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # a test's own
    return kind(stream.buffer, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)
