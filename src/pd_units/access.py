"""What a verb needs of the host before anything else: systemd to talk to, and the rights."""

from __future__ import annotations

import os

from pd_units.adapters.dbus import SystemdManager
from pd_units.adapters.patient import PatientManager
from pd_units.errors import ExitCode, HostError
from pd_units.ports import Manager


def connect(*, needed: bool) -> Manager | None:
    """The manager; None if it does not answer and is not needed. Raises: HostError 30."""
    try:
        return PatientManager(SystemdManager())
    except HostError:
        if needed:
            raise
        return None


def require_root(verb: str) -> None:
    """Raises: HostError 31."""
    if os.geteuid() != 0:
        raise HostError(
            f"{verb} needs root",
            detail="it writes units and asks systemd to run them",
            hint=f"sudo pd-units {verb} ..."
            + (", or --check to see what it would do" if verb in ("install", "uninstall") else ""),
            exit_code=ExitCode.NOT_AUTHORISED,
        )
