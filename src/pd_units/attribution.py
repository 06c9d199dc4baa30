"""Where a failure belongs whose text alone does not say: by frames, by phase, by what was ignored before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pd_units.engines.rules import ExceptionRule, Rules
from pd_units.evidence import Cause

_ARCH_TAIL = re.compile(
    r"(for(causallm|conditionalgeneration|sequenceclassification|maskedlm|blockdiffusion|embedding|rewardmodel|textencoding)\w*"
    r"|lmheadmodel|headmodel|model|lm)$"
)
_VERSION_TAIL = re.compile(r"v?\d+$")


def place_out_of_memory(rules: Rules, text: str, frames: Sequence[str], phase: str | None) -> Cause:
    """The cause of an out-of-memory: by its own text, the innermost telling frame, or the rank's phase."""
    placement = rules.placement
    if placement is None:
        return Cause.UNKNOWN
    for pattern, cause in placement.text:
        if pattern.search(text):
            return cause
    for frame in reversed(frames):
        for pattern, cause in placement.frames:
            if pattern.search(frame):
                return cause
    if phase is not None and phase in placement.phases:
        return placement.phases[phase]
    return placement.otherwise


def place_exception(
    rules: Iterable[ExceptionRule], name: str, frames: Sequence[str], phase: str | None
) -> ExceptionRule | None:
    """The first rule that fits an exception by type, frames and phase; None if none does."""
    whole = "\n".join(frames)
    last = frames[-1] if frames else ""
    for rule in rules:
        if rule.types is not None and not rule.types.search(name):
            continue
        if rule.frames is not None and not rule.frames.search(whole):
            continue
        if rule.last_frame is not None and not rule.last_frame.search(last):
            continue
        if rule.phases and phase not in rule.phases:
            continue
        return rule
    return None


def ignored_module_of(archs: str, ignored: Mapping[str, object]) -> str | None:
    """The ignored module that would have provided one of the architectures `archs`, None if none would."""
    wanted = {stem for name in re.findall(r"\w+", archs) for stem in _stems(name)}
    for module in ignored:
        if _stems(module) & wanted:
            return module
    return None


def _stems(name: str) -> set[str]:
    flat = name.lower().replace("_", "")
    for _ in range(3):
        flat = _ARCH_TAIL.sub("", flat)
    short = _VERSION_TAIL.sub("", flat)
    return {stem for stem in (flat, short) if len(stem) >= 4}
