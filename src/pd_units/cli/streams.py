"""The two streams of a verb, so that a reader who left, or a full disk, stops nothing under way."""

from __future__ import annotations

import contextlib
import io
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
    sys.stdout = _instead(sys.stdout, Answer)
    sys.stderr = _instead(sys.stderr, Prose)


def _instead(stream: TextIO, kind: type[io.TextIOWrapper]) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # closed by whoever started us, or a test's own
    return kind(stream.buffer, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)
