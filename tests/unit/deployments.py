"""A small deployment on a directory that stands for a host, with a fake manager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fakes import FakeManager
from pd_units.changes import plan_changes
from pd_units.goal import Goal, Installed, next_number
from pd_units.index import Index, IndexUnit, current_generation
from pd_units.install import Installer, conclude
from pd_units.installed import read_installed, refuse_foreign
from pd_units.naming import Names, Role
from pd_units.received import fragment_digest
from pd_units.rendered import RenderedUnit
from pd_units.schedule import drained_router
from pd_units.waiting import Outcome

TEXT = """[Unit]
Description={name}
[Service]
Type=exec
ExecStart=/bin/engine --mem-fraction-static {fraction}
[Install]
WantedBy=pd-units@{deployment}.target
"""
TARGET = RenderedUnit(
    "pd-units@.target", "[Unit]\nDescription=%i\n[Install]\nWantedBy=multi-user.target\n", None
)
RECOVER = RenderedUnit("pd-units-recover.service", "[Service]\nExecStart=/bin/true\n", None)
SHARED = (TARGET, RECOVER)
# No host has a deployment of this name: whatever is read of /run is absent.
NAME = "unit-test-only"


@dataclass
class FakeHost:
    """A root directory, its manager, and what was said."""

    root: Path
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = Names(NAME, self.root)
        self.names.unit_dir.mkdir(parents=True, exist_ok=True)
        self.manager = FakeManager(self.names.unit_dir)
        self.installer = Installer(self.manager, self.manager.clock, self.said.append, lambda _reports: None)

    def units(
        self, fraction: str, roles: Sequence[Role] = (Role.STANDALONE,), count: int = 1
    ) -> list[RenderedUnit]:
        names = [self.names.service(role, index, count) for role in roles for index in range(count)]
        return [
            RenderedUnit(
                name, TEXT.format(name=name, fraction=fraction, deployment=NAME), Role(role_of(name))
            )
            for name in names
        ]

    def goal(
        self,
        units: Sequence[RenderedUnit],
        *,
        adopt: bool = False,
        start: bool = True,
        retires: Sequence[str] = (),
    ) -> Goal:
        state = read_installed(self.names, units, SHARED, retires, self.manager, adopt=adopt)
        refuse_foreign(state, adopt=adopt)
        changes = drained_router(plan_changes(units, SHARED, state, start=start), units, state)
        number = next_number(self.names, units, changes, current_generation(NAME, self.root))
        index = Index(
            name=NAME,
            generation=number,
            timeout_s=60.0,
            smoke_test=False,
            units=tuple(
                IndexUnit(
                    unit=unit.name,
                    role=Role(role_of(unit.name)),
                    url="http://127.0.0.1:1",
                    fragment=fragment_digest(unit.text),
                )
                for unit in units
            ),
        )
        return Goal(
            names=self.names,
            index=index,
            text=f"# {units[0].text}",
            rendered=tuple(units),
            shared=SHARED,
            state=state,
            changes=changes,
        )

    def install(self, units: Sequence[RenderedUnit], *, adopt: bool = False) -> Installed:
        goal = self.goal(units, adopt=adopt)
        return conclude(goal, self.apply(goal), self.manager.clock)

    def apply(self, goal: Goal) -> Outcome:
        return self.installer.apply(goal)

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.names.unit_dir.glob(f"{NAME}-*.service")}


def role_of(unit: str) -> str:
    return next(role for role in Role if f"-{role}" in unit)
