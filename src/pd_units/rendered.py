"""Unit files as text. Apart from their rendering: who compares or stores them needs no template engine."""

from __future__ import annotations

from dataclasses import dataclass

from pd_units.naming import UNIT_DIR, Role
from pd_units.resources import read_shipped_units


@dataclass(frozen=True, slots=True)
class RenderedUnit:
    """One unit file; `role` is None for the units that are shipped as they are."""

    name: str
    text: str
    role: Role | None

    @property
    def path(self) -> str:
        """Where it is installed."""
        return str(UNIT_DIR / self.name)


def shipped_units() -> tuple[RenderedUnit, ...]:
    """The target and the slice, verbatim."""
    return tuple(RenderedUnit(name, text, None) for name, text in read_shipped_units().items())
