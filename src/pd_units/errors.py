"""Exit codes, and the few errors that a caller can decide on.

Prose is made once, at the command line's boundary, from the fields of these classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """What a verb answers. The tens say who must act: 1x the author of the deployment file, 2x of the
    templates, 3x the host, 4x the workload."""

    OK = 0
    BUG = 1
    USAGE = 2
    UNREADABLE = 10
    INVALID = 11
    PLACEMENT = 12
    PREFLIGHT = 13
    TEMPLATE = 20
    UNIT_REJECTED = 21
    NO_MANAGER = 30
    NOT_AUTHORISED = 31
    WRITE_FAILED = 32
    JOB_WITHOUT_RUN = 33
    UNIT_FAILED = 40
    NOT_READY = 41
    JOURNAL_UNREADABLE = 42
    ROLLED_BACK = 43
    ROLLBACK_FAILED = 44
    CHANGES_PENDING = 50
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input: `where` (a key path, a file, a unit), `what`, and what to do.

    `placement`: it is an overlap on the host (a port, a GPU), not a mistake in the writing of the file.
    """

    where: str
    what: str
    hint: str = ""
    placement: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.hint})" if self.hint else "")


class PdUnitsError(Exception):
    """A failure that an operator can act on.

    Fields: `exit_code`; `brief`, one sentence; `detail`, the evidence; `hint`, what to do;
    `faults`, every fault found, where there are several.
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(
        self,
        brief: str,
        *,
        detail: str = "",
        hint: str = "",
        faults: Iterable[Fault] = (),
        exit_code: ExitCode | None = None,
    ) -> None:
        super().__init__(brief)
        self.brief = brief
        self.detail = detail
        self.hint = hint
        self.faults = tuple(faults)
        if exit_code is not None:
            self.exit_code = exit_code

    def to_json(self) -> dict[str, Any]:
        """What an answer holds of it beside its exit code and brief."""
        faults = [{"where": f.where, "what": f.what, "hint": f.hint} for f in self.faults]
        return {"faults": faults, "detail": self.detail, "hint": self.hint}


class DeploymentError(PdUnitsError):
    """The deployment file: unreadable (10), invalid (11) or not placeable on this host (12)."""

    exit_code = ExitCode.INVALID


class TemplateError(PdUnitsError):
    """A template (20), or a rendered unit that systemd refuses (21)."""

    exit_code = ExitCode.TEMPLATE


class HostError(PdUnitsError):
    """The host: preflight (13), no manager (30), not authorised (31), not writable or not ours (32)."""

    exit_code = ExitCode.WRITE_FAILED


class WorkloadError(PdUnitsError):
    """The workload: a unit failed (40), was not ready in time (41)."""

    exit_code = ExitCode.UNIT_FAILED
