"""The lines that logs in tests are made of, and how they are read."""

from __future__ import annotations

from pd_units.diagnosis import Classifier, Diagnosis, load_rules

RULES = load_rules(extra_dirs=())
_PACKAGES = "/usr/local/lib/python3.12/dist-packages/"


def stamp(text: str, tag: str = "", clock: str = "03:04:05") -> str:
    """A line as the engine's logger writes it."""
    return f"[2026-01-02 {clock}{' ' + tag if tag else ''}] {text}"


def frame(place: str, name: str, code: str = "x()") -> list[str]:
    """A frame of a traceback, with its source line."""
    return [f'  File "{_PACKAGES}{place}", line 7, in {name}', f"    {code}"]


def read(*lines: str) -> Diagnosis:
    """What the lines prove, without a witness."""
    classifier = Classifier(RULES)
    classifier.feed_many(lines)
    return classifier.diagnose()
