"""The interpreters of engine and router: there, runnable by the unit's user, with the package in them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pd_units.adapters.host import installed_version
from pd_units.engines.options import Program, format_version
from pd_units.naming import Role
from pd_units.preflight.base import (
    Check,
    Result,
    Subject,
    account_of,
    bad,
    can_become,
    good,
    run_as,
    unreadable_for,
    warning,
)


def check_engine(subject: Subject) -> Result:
    """The interpreters exist, can be run by the unit's user, and have the engine and the router."""
    seen = set()
    for unit in subject.plan.units:
        module = "sglang_router" if unit.role is Role.ROUTER else "sglang"
        key = (_interpreter(subject, unit.role), module, unit.user)
        if key not in seen:
            seen.add(key)
            yield _importable(*key)


def _interpreter(subject: Subject, role: Role) -> str:
    deployment = subject.plan.deployment
    if role is Role.ROUTER and deployment.router is not None and deployment.router.python:
        return deployment.router.python
    return deployment.engine.python


def _importable(python: str, module: str, user: str) -> Check:
    key = "router.python" if module == "sglang_router" else "engine.python"
    if account_of(user) is None:
        return bad("engine", f"there is no user {user!r}", f"useradd --system {user}, or mend the user")
    try:
        problem = _interpreter_problem(Path(python), user)
    except PermissionError:
        advice = f"run preflight as root: only {user} may look there"
        return warning("engine", f"{python} is not seen by this user", advice)
    if problem:
        return bad("engine", problem, f"mend {key}, or install the engine there")
    if not can_become(user):
        return good("engine", f"{python} is there (not tried: only root can run it as {user})")
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        done = run_as(user, [python, "-I", "-c", code])
    except (OSError, subprocess.SubprocessError) as error:
        return bad("engine", f"{python} could not be run as {user}: {error}", f"mend {key} or the user")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [""])[-1]
        detail = f": {said}" if said else ""
        return bad("engine", f"{python} cannot import {module}{detail}", f"mend {key}: pip install {module}")
    return _version(python, module)


def _interpreter_problem(python: Path, user: str) -> str:
    if not python.exists():
        if python.is_symlink():
            return f"{python} is a symlink to {python.readlink()}, which is not there: its Python was removed"
        return f"{python} does not exist"
    if python.is_dir():
        return f"{python} is a directory, not an interpreter"
    if not os.access(python, os.X_OK):
        return f"{python} cannot be executed"
    if unreadable_for(user, [python], test="-x"):
        return f"{python} cannot be executed by {user}"
    return ""


def _version(python: str, module: str) -> Check:
    """Which version, and whether its options are known: an unknown option ends a start after its imports."""
    version = installed_version(Path("/"), python, module)
    program = Program.router(version) if module == "sglang_router" else Program.engine(version)
    name, newest = program.table.program, format_version(program.table.newest)
    if version is None:
        advice = (
            f"options were checked against {name} {newest}, the newest known; one that it lacks exits with 2"
        )
        return warning("engine", f"{python} has {module}, and its version cannot be read", advice)
    if not program.version_known:
        advice = f"options were checked against {name} {newest}"
        return warning("engine", f"{python} has {module} {version}, which pd-units does not know", advice)
    newer = f"; newer than {newest}, the newest known" if program.version > program.table.newest else ""
    return good("engine", f"{python} has {module} {version}, options checked{newer}")
