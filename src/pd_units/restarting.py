"""In which order a restart that nothing has asked for but the operator goes through a deployment."""

from __future__ import annotations

from collections.abc import Sequence

from pd_units.index import Index
from pd_units.naming import Role
from pd_units.ports import ActiveState, Manager
from pd_units.schedule import Do, Step, rolled

ORDER = (Role.STANDALONE, Role.PREFILL, Role.DECODE, Role.ROUTER)


def restart_steps(index: Index, roles: Sequence[Role], manager: Manager, *, force: bool) -> tuple[Step, ...]:
    """One role at a time, each waited for; with several instances of a role up, one instance at a time.

    Those that are down come first: what serves is taken away only while another one serves.
    """
    steps: list[Step] = []
    for role in ORDER:
        units = [unit.unit for unit in index.units if unit.role is role and role in roles]
        up = [unit for unit in units if manager.unit(unit).active_state is ActiveState.ACTIVE]
        if force or len(units) < 2:
            steps += [Step(Do.RESTART, tuple(units), wait=True)] if units else []
            continue
        down = tuple(unit for unit in units if unit not in up)
        steps += [Step(Do.RESTART, down, wait=True)] if down else []
        steps += rolled(up, dict.fromkeys(units, role))
    return tuple(steps)
