"""Where a start is: its phase, its progress bar, its capacity, its warnings.

Several ranks speak at once, each at its own pace. The phase shown is the furthest that any of them reached;
it goes back only when a rank goes back itself, as for a draft model's weights.
"""

from __future__ import annotations

import re

from pd_units.engines.rules import CapacityRule, Phase, Rules, WarningRule
from pd_units.evidence import Progress, Warning_
from pd_units.logtext import Bar

_MOST_TAGS = 512
_MOST_BARS = 64


class StartPhase:
    """The phase of one life. `ticks` grows by one at each real progress, never at mere output."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.current: Phase | None = None
        self.progress: Progress | None = None
        self.ticks = 0
        self.capacity: dict[str, int | float] = {}
        self._of_tag: dict[str, Phase] = {}
        self._bars: dict[tuple[str, int], int] = {}
        self._labels: dict[str, tuple[str, Phase | None]] = {}
        self._warnings: dict[str, Warning_] = {}

    @property
    def warnings(self) -> tuple[Warning_, ...]:
        """Each kind once, in the order of their first sight."""
        return tuple(self._warnings.values())

    def of(self, tag: str) -> Phase | None:
        """The phase of the rank `tag`, or the furthest one if that rank never spoke or none is behind it."""
        if self.current is not None and self.current.whole:
            return self.current
        return self._of_tag.get(tag, self.current)

    def enter(self, phase: Phase, tag: str) -> bool:
        """Note that a rank begins `phase`; True if the start as a whole moved."""
        own = self._of_tag.get(tag)
        if own is None and len(self._of_tag) >= _MOST_TAGS:
            return False
        self._of_tag[tag] = phase
        current = self.current
        goes_back = own is not None and current is not None and own.order >= current.order > phase.order
        if current is not None and phase.order <= current.order and not goes_back:
            return False
        self.current, self.progress = phase, None
        self.ticks += 1
        return True

    def move(self, bar: Bar, tag: str) -> bool:
        """Take a progress bar's state; True if it moved."""
        name, phase = self._of_label(bar.label)
        key = (name, bar.total)
        if phase is not None and phase is not self.current:
            self.enter(phase, tag)
        if phase is None or phase is self.current:
            of = phase or self.current
            what = of.what if of is not None else ""
            self.progress = Progress(bar.done, bar.total, what or name.lower())
        before = self._bars.get(key)
        if before is None and len(self._bars) >= _MOST_BARS:
            self._bars.clear()
        self._bars[key] = bar.done
        moved = bar.done > 0 if before is None else bar.done != before
        self.ticks += moved
        return moved

    def _of_label(self, label: str) -> tuple[str, Phase | None]:
        """A bar's name without its changing parts, and the phase it belongs to."""
        if label == "":
            current = self.current
            return "", current if current is not None and current.anonymous_bars else None
        known = self._labels.get(label)
        if known is None:
            if len(self._labels) >= _MOST_BARS:
                self._labels.clear()
            phases = (phase for phase in self._rules.phases if any(p.search(label + " ") for p in phase.bars))
            name = re.sub(r"\([^)]{0,80}\)", "", label).strip()[:60]
            known = self._labels[label] = (name, next(phases, None))
        return known

    def count(self, rule: CapacityRule, match: re.Match[str], text: str) -> bool:
        """Keep a capacity number; True if it is new."""
        if rule.unless is not None and rule.unless.search(text):
            return False
        groups = match.groupdict()
        number = groups.get("value") or groups.get("other")
        if number is None:
            return False
        value = _number(number)
        if groups.get("more"):
            value = round(value + _number(groups["more"]), 3)
        before = self.capacity.get(rule.key)
        if before is not None and rule.pick == "first":
            return False
        self.capacity[rule.key] = value
        self.ticks += before != value
        return before != value

    def warn(self, rule: WarningRule, line: int | None) -> None:
        """Count a warning, and keep its first line."""
        known = self._warnings.get(rule.name)
        first, count = (known.line, known.count) if known else (line, 0)
        self._warnings[rule.name] = Warning_(rule.name, rule.text, rule.advice, count + 1, first)


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)
