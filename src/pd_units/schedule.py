"""In which order units are stopped and started, so that a change disturbs no more than it must.

With a pair to spare, instances are restarted one at a time, each waited for, and the router stays up. With
one pair only, requests cannot be served meanwhile: the router is drained first, and starts last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pd_units.changes import Change, ChangeSet, InstalledState, Kind
from pd_units.naming import Role
from pd_units.ports import ActiveState
from pd_units.render import RenderedUnit

# Decode before prefill: a prefill that serves an older decode is what the pair's protocol allows for longer.
_ORDER = (Role.DECODE, Role.PREFILL, Role.STANDALONE)


class Do(StrEnum):
    """What a step does."""

    STOP = "stop"
    START = "start"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Step:
    """Units treated at once. With `wait`, the next step begins only when they are ready."""

    do: Do
    units: tuple[str, ...]
    wait: bool = False


def drained_router(changes: ChangeSet, rendered: Sequence[RenderedUnit], state: InstalledState) -> ChangeSet:
    """The changes, with the running router's restart added where backends restart and no pair is left."""
    router = next((unit.name for unit in rendered if unit.role is Role.ROUTER), None)
    restarted = _restarted(changes, rendered)
    if router is None or not restarted or router in changes.units(Kind.START, Kind.RESTART):
        return changes
    if not _runs(state, router) or rolling(changes, rendered, state):
        return changes
    reason = f"drained while {', '.join(sorted(restarted))} restarts: no other pair serves"
    kept = tuple(c for c in changes.changes if not (c.unit == router and c.kind is Kind.KEEP))
    return ChangeSet((*kept, Change(router, Kind.RESTART, reason)))


def rolling(changes: ChangeSet, rendered: Sequence[RenderedUnit], state: InstalledState) -> bool:
    """Whether every role that restarts keeps an instance that runs while another one restarts."""
    restarted = _restarted(changes, rendered)
    roles = {unit.role for unit in rendered if unit.name in restarted}
    running = [unit for unit in rendered if _active(state, unit.name)]
    return bool(roles) and all(sum(unit.role is role for unit in running) >= 2 for role in roles)


def schedule(
    changes: ChangeSet, rendered: Sequence[RenderedUnit], state: InstalledState, *, force: bool = False
) -> tuple[Step, ...]:
    """The steps of the starts and restarts in `changes`; `force` restarts everything at once."""
    starts = changes.units(Kind.START)
    router = next((unit.name for unit in rendered if unit.role is Role.ROUTER), None)
    restarts = [unit for unit in changes.units(Kind.RESTART) if unit != router]
    steps: list[Step] = []
    if not force and rolling(changes, rendered, state):
        roles: Mapping[str, Role | None] = {unit.name: unit.role for unit in rendered}
        ordered = sorted(restarts, key=lambda name: _rank(roles.get(name)))
        steps += [Step(Do.RESTART, (unit,), wait=True) for unit in ordered]
        if router in changes.units(Kind.RESTART):
            steps.append(Step(Do.RESTART, (str(router),)))
    else:
        drain = router is not None and router in changes.units(Kind.RESTART)
        if drain and restarts:
            steps.append(Step(Do.STOP, (str(router),)))
        if restarts:
            steps.append(Step(Do.RESTART, tuple(restarts)))
        if drain:
            steps.append(Step(Do.START if restarts else Do.RESTART, (str(router),)))
    if starts:
        steps.insert(0, Step(Do.START, tuple(starts)))
    return tuple(steps)


def _rank(role: Role | None) -> int:
    return _ORDER.index(role) if role in _ORDER else len(_ORDER)


def _restarted(changes: ChangeSet, rendered: Sequence[RenderedUnit]) -> set[str]:
    backends = {unit.name for unit in rendered if unit.role is not Role.ROUTER}
    return set(changes.units(Kind.RESTART)) & backends


def _runs(state: InstalledState, name: str) -> bool:
    status = state.units[name].status
    return status is not None and status.active_state in (ActiveState.ACTIVE, ActiveState.ACTIVATING)


def _active(state: InstalledState, name: str) -> bool:
    status = state.units[name].status if name in state.units else None
    return status is not None and status.active_state is ActiveState.ACTIVE
