"""Can this host run a deployment: named checks, each with its evidence and what to do.

A check looks and never changes anything; what this user may not see it leaves out, or says so. Each name of
the contract is one function here; it may give several results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pd_units.errors import ExitCode, Fault, HostError
from pd_units.preflight.base import Check, Result, Severity, Subject, bad, warning
from pd_units.preflight.disk import check_disk
from pd_units.preflight.engine import check_engine
from pd_units.preflight.environment import check_environment_files
from pd_units.preflight.gpus import check_gpu, check_gpu_memory
from pd_units.preflight.limits import check_limits
from pd_units.preflight.model_files import check_model
from pd_units.preflight.placing import check_kernel_flags, check_numa
from pd_units.preflight.ports import check_ports, ports_of
from pd_units.preflight.system import check_journal, check_systemd

__all__ = ["CHECKS", "Check", "Severity", "Subject", "ports_of", "require", "run_checks"]

CHECKS: dict[str, Callable[[Subject], Result]] = {
    "systemd": check_systemd,
    "journal": check_journal,
    "gpu": check_gpu,
    "gpu-memory": check_gpu_memory,
    "numa": check_numa,
    "kernel-flags": check_kernel_flags,
    "model": check_model,
    "engine": check_engine,
    "ports": check_ports,
    "limits": check_limits,
    "environment-files": check_environment_files,
    "disk": check_disk,
}


def run_checks(subject: Subject, *, skip: Collection[str] = ()) -> tuple[Check, ...]:
    """Every check that is not skipped; `gpu` covers `gpu-memory` and the hardware half of `kernel-flags`."""
    skipped = frozenset(skip) | ({"gpu-memory"} if "gpu" in skip else frozenset())
    subject = replace(subject, skip=skipped)
    return tuple(result for name in CHECKS if name not in skipped for result in _results(name, subject))


def _results(name: str, subject: Subject) -> list[Check]:
    """The results of one check. Where this user may not look, that is the result."""
    try:
        return list(CHECKS[name](subject))
    except OSError as error:
        what = f"could not be looked at: {error.strerror}" + (f": {error.filename}" if error.filename else "")
        if isinstance(error, PermissionError) and not subject.root:
            return [warning(name, what, "run preflight as root")]
        return [bad(name, what[:300], f"mend it, or --skip {name}")]


def require(checks: Sequence[Check]) -> None:
    """Raises: HostError 13, with every failed check whose severity is error."""
    faults = [
        Fault(c.name, c.evidence, c.advice) for c in checks if not c.ok and c.severity is Severity.ERROR
    ]
    if faults:
        raise HostError(
            "this host cannot run the deployment; nothing was changed",
            faults=faults,
            hint="--skip CHECK leaves a check out",
            exit_code=ExitCode.PREFLIGHT,
        )
