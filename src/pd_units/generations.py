"""What was installed when: `/var/lib/pd-units/NAME/generations/N/` keeps the deployment file, the units and
the outcome of each install that changed something. Readable by root only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pd_units.adapters.files import read_json, write_atomic, write_json
from pd_units.naming import Names
from pd_units.render import RenderedUnit


def generations_dir(names: Names) -> Path:
    """Where a deployment's generations lie."""
    return names.state_dir / "generations"


def numbers(names: Names) -> tuple[int, ...]:
    """The generations kept, oldest first."""
    folder = generations_dir(names)
    if not folder.is_dir():
        return ()
    return tuple(sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()))


def next_number(names: Names) -> int:
    """The number of the next generation, from 1."""
    return max(numbers(names), default=0) + 1


def write_generation(
    names: Names, number: int, text: str, units: Iterable[RenderedUnit], *, wall: float
) -> None:
    """Keep what is about to be installed. Raises: HostError 32."""
    folder = generations_dir(names)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    place = folder / str(number)
    for unit in units:
        write_atomic(place / "units" / unit.name, unit.text, mode=0o600)
    write_atomic(place / "deployment.toml", text, mode=0o600)
    write_json(
        place / "outcome.json", {"generation": number, "began": wall, "result": "interrupted"}, mode=0o600
    )


def write_outcome(names: Names, number: int, outcome: Mapping[str, Any]) -> None:
    """Record how a generation's install ended. Raises: HostError 32."""
    path = generations_dir(names) / str(number) / "outcome.json"
    write_json(path, {**(read_json(path) or {}), **outcome}, mode=0o600)
