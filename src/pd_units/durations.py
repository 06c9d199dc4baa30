"""Time spans as operators write them: "30min", "1h 30min", "90s", or a number of seconds."""

from __future__ import annotations

import math
import re
from typing import Final

_UNITS: Final = {
    unit: seconds
    for seconds, units in {
        0.001: ("ms", "msec"),
        1.0: ("", "s", "sec", "second", "seconds"),
        60.0: ("m", "min", "minute", "minutes"),
        3600.0: ("h", "hr", "hour", "hours"),
        86400.0: ("d", "day", "days"),
    }.items()
    for unit in units
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def parse_duration(text: str | float) -> float:
    """Seconds in a time span; a subset of systemd.time(7), so that the file reads as units do. A number
    is one of seconds already.

    Raises: ValueError, with a sentence for the operator.
    """
    if not isinstance(text, str):
        return _finite(text)
    position, total = 0, 0.0
    if not text.strip():
        raise ValueError("is empty")
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"is not a time span: {text!r}")
        total += float(match[1]) * _UNITS[match[2]]
        position = match.end()
    return _finite(total)


def _finite(number: float) -> float:
    try:
        seconds = float(number)
    except OverflowError:  # a whole number of hundreds of digits
        seconds = math.inf
    if not math.isfinite(seconds):
        raise ValueError("is no time span that ends")
    return seconds


def format_duration(seconds: float) -> str:
    """Short form of a time span, to the second: 5400 -> "1h 30min"."""
    left = round(seconds)
    parts = []
    for size, unit in ((3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"
