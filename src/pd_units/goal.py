"""What an install or a rollback wants on the host, and what came of it: plain data."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pd_units.changes import ChangeSet, InstalledState, Kind
from pd_units.errors import ExitCode, HostError, PdUnitsError
from pd_units.generations import (
    Result,
    content_digest,
    numbers,
    read_generation,
    read_generations,
    stored_index,
)
from pd_units.index import Index, readable_index
from pd_units.manifest import read_operation
from pd_units.naming import Names
from pd_units.rendered import RenderedUnit
from pd_units.waiting import DeploymentReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is to be on the host, the host as it is, and the changes between the two.

    `leaves` are the generations that a rollback goes away from.
    """

    names: Names
    index: Index
    text: str
    rendered: tuple[RenderedUnit, ...]
    shared: tuple[RenderedUnit, ...]
    state: InstalledState
    changes: ChangeSet
    kind: str = "install"
    force: bool = False
    leaves: tuple[int, ...] = ()

    @property
    def makes_generation(self) -> bool:
        """Whether its generation is not kept yet."""
        if self.kind != "install":
            return False
        kept = read_generation(self.names, self.index.generation)
        return kept is None or kept.content != content_digest(self.rendered)


def index_at_work(names: Names, after: Index) -> Index | None:
    """What the processes have that give way to `after`: the index, or what it replaced where they are older.

    So after `--no-start`, or a kill between the files and the restarts: its units were never seen ready.
    """
    now = readable_index(names.deployment, names.root)
    if now is None or {(u.unit, u.gpus, u.url) for u in now.units} != {
        (u.unit, u.gpus, u.url) for u in after.units
    }:
        return now
    kept = next((each for each in read_generations(names) if each.number == now.generation), None)
    if kept is None or not kept.replaces or kept.result not in (Result.INSTALLED, Result.INTERRUPTED):
        return now
    with contextlib.suppress(HostError):
        return stored_index(names, kept.replaces)
    return now


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What came of an install or a rollback.

    `failed` is the generation that was rolled back; `error` is what it broke off with.
    """

    name: str
    generation: int
    result: str
    changes: ChangeSet
    exit_code: ExitCode
    message: str
    report: DeploymentReport | None = None
    failed: Mapping[str, Any] | None = None
    error: PdUnitsError | None = None

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        return self.changes.changed

    def to_json(self) -> dict[str, Any]:
        """The contract's object."""
        units = self.report.to_json()["units"] if self.report is not None else []
        value: dict[str, Any] = {
            "name": self.name,
            "generation": self.generation,
            "result": self.result,
            "changes": [change.to_json() for change in self.changes.changes],
            "units": units,
        }
        if self.failed is not None:
            value["failed"] = dict(self.failed)
        if self.error is not None:
            value["error"] = {"brief": self.error.brief, **self.error.to_json()}
        return value


def next_number(names: Names, rendered: Sequence[RenderedUnit], changes: ChangeSet, current: int) -> int:
    """The generation that an install would be.

    A new number where files change; the interrupted install's own where it is finished; else the current one,
    or where the index is lost the last one of the same units.
    """
    operation = read_operation(names)
    if operation is not None and operation.generation:
        begun = read_generation(names, operation.generation)
        if begun is not None and begun.content == content_digest(rendered):
            return operation.generation
    if not changes.of(Kind.WRITE, Kind.REMOVE):
        if current:
            return current
        content = content_digest(rendered)
        same = [each.number for each in read_generations(names) if each.content == content]
        if same:
            return same[-1]
    return max((*numbers(names), current), default=0) + 1


def with_failed(installed: Installed, *, exit_code: ExitCode, message: str, failed: Installed) -> Installed:
    """The story of a rollback: what is restored, beside what had failed."""
    units = failed.report.to_json()["units"] if failed.report is not None else []
    story = {"generation": failed.generation, "message": failed.message, "units": units}
    return replace(
        installed,
        exit_code=exit_code,
        message=message,
        changes=failed.changes,
        failed=story,
        result="rolled-back" if exit_code is ExitCode.ROLLED_BACK else "rollback-failed",
    )
