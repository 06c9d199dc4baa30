"""In which order units are stopped and started, so that a change disturbs no more than it must.

With an instance to spare in each role that restarts, they are restarted one at a time, each waited for, and
the router stays up. Without, requests cannot be served meanwhile: the router is drained first, and starts
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from pd_units.changes import Change, ChangeSet, InstalledState, Kind
from pd_units.differences import main_directives
from pd_units.index import Index, IndexUnit
from pd_units.naming import Role, stem
from pd_units.plan_argv import url_of
from pd_units.ports import ActiveState
from pd_units.received import texts_of
from pd_units.rendered import RenderedUnit
from pd_units.unitfile import parse_command

# Decode before prefill: a prefill that serves an older decode is what the pair's protocol allows for longer.
_ORDER = (Role.DECODE, Role.PREFILL, Role.STANDALONE)


class Do(StrEnum):
    """What a step does."""

    STOP = "stop"
    START = "start"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Step:
    """Units treated at once.

    With `wait`, the next step begins only when they are ready, and with `routed` when the router sends them
    requests. `spares` are the units of which one must serve before this step may begin.
    """

    do: Do
    units: tuple[str, ...]
    wait: bool = False
    spares: tuple[str, ...] = ()
    routed: bool = True


def drained_router(changes: ChangeSet, rendered: Sequence[RenderedUnit], state: InstalledState) -> ChangeSet:
    """The changes, with the running router's restart added where backends restart and no pair is left."""
    router = _router(rendered)
    restarted = _restarted(changes, rendered)
    if router is None or not restarted or router in changes.units(Kind.START, Kind.RESTART):
        return changes
    if not _runs(state, router) or rolling(changes, rendered, state):
        return changes
    names = " and ".join(stem(unit) for unit in sorted(restarted))
    verb = "restarts" if len(restarted) == 1 else "restart"
    reason = f"no other pair serves while {names} {verb}: it is drained first, and starts last"
    kept = tuple(c for c in changes.changes if not (c.unit == router and c.kind is Kind.KEEP))
    return ChangeSet((*kept, Change(router, Kind.RESTART, reason)))


def rolling(changes: ChangeSet, rendered: Sequence[RenderedUnit], state: InstalledState) -> bool:
    """Whether every role that restarts keeps an instance that serves while another one restarts.

    What does not serve yet is started first, and counts. Without a router at work nothing serves anyway, and
    one that is to be found elsewhere, or knows its backends by other addresses, cannot be worked with.
    """
    router = _router(rendered)
    if router is not None and (not _active(state, router) or moved(rendered, state)):
        return False
    restarted = _restarted(changes, rendered)
    if {*restarted, router} & state.exchanged:
        return False
    roles = {unit.role for unit in rendered if unit.name in restarted}
    up = {*changes.units(Kind.START, Kind.RESTART), *(u.name for u in rendered if _active(state, u.name))}
    serving = [unit for unit in rendered if unit.name in up]
    return bool(roles) and all(sum(unit.role is role for unit in serving) >= 2 for role in roles)


def moved(rendered: Sequence[RenderedUnit], state: InstalledState) -> tuple[str, ...]:
    """The units at work whose new command line listens at another address than their process does."""
    found = []
    for unit in rendered:
        installed = state.units.get(unit.name)
        if installed is None or installed.text is None or not _active(state, unit.name):
            continue
        got = installed.received
        old = (
            main_directives(*texts_of(installed.text, installed.drop_ins)) if got is None else got.directives
        )
        before = _address(old)
        if before and before != _address(main_directives(*texts_of(unit.text, installed.drop_ins))):
            found.append(unit.name)
    return tuple(found)


def exchanged(before: Index | None, after: Index) -> frozenset[str]:
    """The units of `before` with a GPU or port that another one has `after`: they stop before it starts."""
    held = {unit.unit: _needs(unit) for unit in before.units} if before is not None else {}
    needed = {unit.unit: _needs(unit) - held.get(unit.unit, set()) for unit in after.units}
    return frozenset(
        name for name, has in held.items() if any(has & new for other, new in needed.items() if other != name)
    )


def _needs(unit: IndexUnit) -> set[str]:
    port = urlsplit(unit.url).port
    return {*(f"GPU {gpu}" for gpu in unit.gpus), *((f"port {port}",) if port is not None else ())}


def _address(directives: Mapping[str, tuple[str, ...]]) -> str:
    """The URL at which a unit's process is reached, "" if its command line names no port."""
    try:
        commands = parse_command(directives.get("ExecStart", ("",))[-1])
        argv = commands[-1].argv if commands else ()
        port, host = _value_of(argv, "--port"), _value_of(argv, "--host")
        return url_of(host, int(port)) if port else ""
    except ValueError:
        return ""


def _value_of(argv: Sequence[str], option: str) -> str:
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def schedule(
    changes: ChangeSet, rendered: Sequence[RenderedUnit], state: InstalledState, *, force: bool = False
) -> tuple[Step, ...]:
    """The steps of the starts and restarts in `changes`; `force` restarts everything at once."""
    router = _router(rendered)
    starts = changes.units(Kind.START)
    restarts = [unit for unit in changes.units(Kind.RESTART) if unit != router]
    bounced = router is not None and router in changes.units(Kind.RESTART)
    roll = not force and rolling(changes, rendered, state)
    backends = {unit.name for unit in rendered if unit.role is not Role.ROUTER}
    added = tuple(unit for unit in starts if unit in backends)
    rest = tuple(unit for unit in starts if unit not in backends)
    handed = tuple(unit for unit in restarts if unit in state.exchanged)
    gives = bounced and router in state.exchanged
    drain = bounced and (bool(restarts) or gives)
    steps: list[Step] = []
    if handed or gives:
        # What they have is another's next: nobody can start on it, or at it, while they run.
        steps += [Step(Do.STOP, (str(router),))] if drain else []
        steps += [Step(Do.STOP, handed)] if handed else []
    if added:
        # What is added serves before anything that serves now is taken away.
        waits = not force and not handed and not gives and (roll or (bounced and not restarts))
        steps.append(Step(Do.START, added, wait=waits, routed=not moved(rendered, state)))
    if roll:
        idle = tuple(unit for unit in restarts if not _active(state, unit))
        steps += [Step(Do.RESTART, idle, wait=True)] if idle else []
        steps += rolled([unit for unit in restarts if unit not in idle], roles_of(rendered))
        steps += [Step(Do.RESTART, (str(router),))] if bounced else []
        steps += [Step(Do.START, rest)] if rest else []
        return tuple(steps)
    if drain and not (handed or gives):
        steps.append(Step(Do.STOP, (str(router),)))
    others = tuple(unit for unit in restarts if unit not in handed)
    steps += [Step(Do.RESTART, others)] if others else []
    steps += [Step(Do.START, handed)] if handed else []
    if bounced:
        steps.append(Step(Do.START if drain else Do.RESTART, (str(router),)))
    if rest:
        # The router after what it waits for: it would pass its gate with a backend that is then replaced.
        steps.append(Step(Do.START, rest))
    return tuple(steps)


def roles_of(rendered: Sequence[RenderedUnit]) -> dict[str, Role | None]:
    """The role of each unit."""
    return {unit.name: unit.role for unit in rendered}


def rolled(units: Sequence[str], roles: Mapping[str, Role | None]) -> list[Step]:
    """One restart after the other, each with the others of its role to spare, and waited for."""
    return [
        Step(
            Do.RESTART,
            (unit,),
            wait=True,
            spares=tuple(name for name, role in roles.items() if role is roles.get(unit) and name != unit),
        )
        for unit in sorted(units, key=lambda name: _rank(roles.get(name)))
    ]


def _rank(role: Role | None) -> int:
    return _ORDER.index(role) if role in _ORDER else len(_ORDER)


def _router(rendered: Sequence[RenderedUnit]) -> str | None:
    return next((unit.name for unit in rendered if unit.role is Role.ROUTER), None)


def _restarted(changes: ChangeSet, rendered: Sequence[RenderedUnit]) -> set[str]:
    backends = {unit.name for unit in rendered if unit.role is not Role.ROUTER}
    return set(changes.units(Kind.RESTART)) & backends


def _runs(state: InstalledState, name: str) -> bool:
    status = state.units[name].status
    return status is not None and status.active_state in (ActiveState.ACTIVE, ActiveState.ACTIVATING)


def _active(state: InstalledState, name: str) -> bool:
    status = state.units[name].status if name in state.units else None
    return status is not None and status.active_state is ActiveState.ACTIVE
