"""What every check needs: the plan, the host, and the shape of a result."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from pd_units.plan import Plan, UnitPlan
from pd_units.ports import Manager
from pd_units.topology import HostTopology

_AS_USER_TIMEOUT_S = 60.0
_GIB = 1 << 30


class Severity(StrEnum):
    """What a failed check means: an error stops an install, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    evidence: str
    severity: Severity = Severity.ERROR
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """The contract's object."""
        return {
            "name": self.name,
            "ok": self.ok,
            "severity": str(self.severity),
            "evidence": self.evidence,
            "advice": self.advice,
        }


Result = Iterable[Check]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked: the plan, and the host as it is now. `manager` is None if systemd does not answer.

    `installed`: units that pd-units wrote for the deployment, declared or not. `skip`: checks left out.
    """

    plan: Plan
    topology: HostTopology
    manager: Manager | None
    retires: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    skip: frozenset[str] = field(default_factory=frozenset)

    @property
    def root(self) -> bool:
        """Whether everything can be seen."""
        return os.geteuid() == 0

    @cached_property
    def ours(self) -> frozenset[str]:
        """Units whose ports and GPU memory will be free by the time that they are needed."""
        return frozenset(unit.unit for unit in self.plan.units) | frozenset(self.replaced)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Units that an install stops before it starts others: retired ones, and those no longer declared."""
        declared = {unit.unit for unit in self.plan.units}
        return (*self.retires, *(unit for unit in self.installed if unit not in declared))

    def is_stray(self, owner: str) -> bool:
        """Whether a unit has a name of this deployment's and none of its records knows it."""
        return owner not in self.ours and self.plan.names.owns(owner)

    def how_to_free(self, owner: str) -> str:
        """How the process of a unit that is in the way is got rid of; retires takes no name of our own."""
        if self.is_stray(owner):
            return f"systemctl disable --now {owner} (pd-units did not write it)"
        return "stop it, or name its unit in deployment.retires"

    @property
    def backends(self) -> tuple[UnitPlan, ...]:
        """The units that run an engine."""
        return tuple(unit for unit in self.plan.units if unit.gpus)


def good(name: str, evidence: str) -> Check:
    """A check that passed."""
    return Check(name=name, ok=True, evidence=evidence)


def bad(name: str, evidence: str, advice: str) -> Check:
    """A check that stops an install."""
    return Check(name=name, ok=False, evidence=evidence, advice=advice)


def warning(name: str, evidence: str, advice: str) -> Check:
    """A check that failed, and that the deployment may survive."""
    return Check(name=name, ok=False, evidence=evidence, advice=advice, severity=Severity.WARNING)


def lines_of(path: Path) -> list[str]:
    """The lines of a file; [] if it is not there or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def text_of(path: Path) -> str:
    """The stripped text of a file; "" if it is not there or not readable."""
    return "\n".join(lines_of(path)).strip()


def gib(size: float) -> str:
    """Bytes for people: "96.0 GiB", "512 MiB"."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / (1 << 20):.0f} MiB"


def some(names: Sequence[str], *, shown: int = 3) -> str:
    """ "a, b, c and 4 more"."""
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def account_of(user: str) -> pwd.struct_passwd | None:
    """The account of a unit's user, by name or number; None if there is none."""
    try:
        return pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        return None


def can_become(user: str) -> bool:
    """Whether this process can look at files as that user does."""
    account = account_of(user)
    return account is not None and (os.geteuid() == 0 or os.geteuid() == account.pw_uid)


def run_as(user: str, argv: Sequence[str], *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command, run as a unit's user with all of its groups and a clean environment.

    Raises: OSError, subprocess.SubprocessError; KeyError if there is no such user.
    """
    account = account_of(user)
    if account is None:
        raise KeyError(user)
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
    return subprocess.run(
        argv,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_AS_USER_TIMEOUT_S,
        cwd="/",
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": account.pw_dir},
        **as_user,
    )


def unreadable_for(user: str, paths: Iterable[Path], *, test: str = "-r") -> list[str]:
    """Those of the paths that the user may not read (`test` -w: not write), as the kernel decides it.

    [] where this process cannot tell.
    """
    if not can_become(user):
        return []
    script = f'while IFS= read -r file; do [ {test} "$file" ] || printf "%s\\n" "$file"; done'
    try:
        done = run_as(user, ["/bin/sh", "-c", script], stdin="".join(f"{path}\n" for path in paths))
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def variable_of(unit: UnitPlan, name: str) -> str | None:
    """The value that a unit is rendered with, None if it is not."""
    return dict(unit.environment).get(name)
