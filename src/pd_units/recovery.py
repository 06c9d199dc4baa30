"""`python -I -m pd_units.recovery`: finishes at boot what an interrupted operation left undone.

It runs before any unit of a deployment starts (`pd-units-recover.service`). It puts the operation's files
into place and queues its units, and waits for none: their own watchers say what becomes of them.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from pd_units.access import connect
from pd_units.adapters.clock import SystemClock
from pd_units.adapters.files import Busy, locked
from pd_units.claimed import alone_on_host
from pd_units.errors import ExitCode, PdUnitsError
from pd_units.install import Installer, conclude
from pd_units.manifest import Operation, end_operation, interrupted_names, read_operation
from pd_units.naming import Names
from pd_units.ports import Manager
from pd_units.rollback import stored_goal
from pd_units.uninstall import plan_uninstall, uninstall


def recover(names: Names, manager: Manager) -> str:
    """Finish a deployment's interrupted operation; what was done, in words. Raises: PdUnitsError.

    It waits for nobody: units that another pd-units starts wait for this service to end.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(names.lock, timeout_s=0))
        except Busy as error:
            return f"left to the pd-units that is at work on it ({error.detail})"
        operation = read_operation(names)
        return "nothing to finish" if operation is None else _finish(names, operation, manager)


def _finish(names: Names, operation: Operation, manager: Manager) -> str:
    clock = SystemClock()
    if operation.kind == "uninstall":
        _, changes = plan_uninstall(names, manager)
        options = {"purge": False, "restore_retired": False, **operation.options}
        uninstall(names, changes, manager, clock, say, **options)
        return "the uninstall is finished"
    if operation.kind not in ("install", "rollback") or not operation.generation:
        end_operation(names)
        return f"the {operation.kind} ended with the last boot: units start as they are"
    goal = stored_goal(names, operation.generation, manager, kind=operation.kind)
    installer = Installer(manager, clock, say, lambda _reports: None, guard=alone_on_host)
    conclude(goal, installer.apply(goal, wait=False), clock, waited=False)
    return f"the {operation.kind} of generation {operation.generation} is finished; its units start now"


def say(text: str) -> None:
    """One line for the journal."""
    print(f"pd-units: {text}", flush=True)


def main() -> int:
    """Finish every interrupted operation; 0 if all of them are."""
    code = ExitCode.OK
    for name in interrupted_names():
        try:
            manager = connect(needed=True)
            assert manager is not None
            say(f"{name}: {recover(Names(name), manager)}")
        except PdUnitsError as error:
            code = max(code, error.exit_code)
            say(f"{name}: {error.brief}" + (f": {error.detail}" if error.detail else ""))
            for fault in error.faults:
                say(f"{name}: {fault}")
    return code


if __name__ == "__main__":
    sys.exit(main())
