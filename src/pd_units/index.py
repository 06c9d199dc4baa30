"""The world-readable index of a deployment: which units it has, where they listen, where they are pinned.

`/var/lib/pd-units/NAME/index.json` survives reboots and holds no secrets: `status` and `wait-ready` need
nothing else, and no rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pd_units import SCHEMA
from pd_units.adapters.files import read_json, to_json_text
from pd_units.errors import DeploymentError, ExitCode, HostError
from pd_units.manifest import interrupted_names, manifest_path, read_operation, require_known_schema
from pd_units.naming import STATE_ROOT, Names, Role, name_problem, under


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUnit:
    """One service: its role, base URL, GPUs, NUMA nodes and CPUs ("0-31", None if unbound).

    `fragment` is the digest of its unit file by which a process of this generation is known (received.py).
    `environment`: the variables that pin it and choose its kernels, as rendered; no others, for they may hold
    secrets. `gpu_addresses`: PCI address of each GPU when it was planned; {} where they were not known.
    """

    unit: str
    role: Role
    url: str
    gpus: tuple[int, ...] = ()
    numa: tuple[int, ...] = ()
    cpus: str | None = None
    fragment: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu_addresses: Mapping[str, str] = field(default_factory=dict)

    def placement(self) -> dict[str, Any]:
        """The `placement` object of the contract; `verified` is None: not measured."""
        return {"gpus": list(self.gpus), "numa": list(self.numa), "cpus": self.cpus, "verified": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """One installed deployment. `timeout_s` bounds the start of one unit."""

    name: str
    generation: int
    units: tuple[IndexUnit, ...]
    timeout_s: float
    smoke_test: bool = True

    @property
    def names(self) -> Names:
        """Its names."""
        return Names(self.name)

    @property
    def router(self) -> IndexUnit | None:
        """Its router, None for standalone servers."""
        return next((each for each in self.units if each.role is Role.ROUTER), None)

    @property
    def backends(self) -> tuple[IndexUnit, ...]:
        """Its engines."""
        return tuple(each for each in self.units if each.role is not Role.ROUTER)


def index_path(names: Names) -> Path:
    """Where the index lies."""
    return names.state_dir / "index.json"


def deployment_path(names: Names) -> Path:
    """Where the deployment file is kept as it was installed."""
    return names.state_dir / "deployment.toml"


def retired_path(names: Names) -> Path:
    """Where it is kept what was retired, and how it was before."""
    return names.state_dir / "retired.json"


def index_to_json(index: Index) -> dict[str, Any]:
    """The index as it is kept."""
    return {"schema": SCHEMA, **asdict(index)}


def index_text(index: Index) -> str:
    """The index as it lies in its file, which everybody may read."""
    return to_json_text(index_to_json(index))


def read_index(name: str, root: Path = Path("/")) -> Index | None:
    """The index of an installed deployment, None if there is none.

    Raises: HostError 32 if it was written by a newer pd-units or is damaged.
    """
    path = index_path(Names(name, root))
    if not path.exists():
        return None
    value = read_json(path)
    if value is None:
        if not path.exists():
            return None  # removed just now
        raise HostError(
            f"{path} is damaged",
            detail="it is not a JSON object",
            hint="run `pd-units install` again: it writes it anew",
        )
    return index_from_json(value, source=str(path))


def readable_index(name: str, root: Path = Path("/")) -> Index | None:
    """As `read_index`, and None for one that is damaged: an install writes it anew."""
    try:
        return read_index(name, root)
    except HostError:
        return None


def index_from_json(value: dict[str, Any], *, source: str) -> Index:
    """The index that was kept. Raises: HostError 32 if it is newer than this pd-units, or damaged."""
    path = source
    require_known_schema(value, path)
    try:
        units = tuple(_unit(row) for row in value["units"])
        return Index(
            name=value["name"],
            generation=value["generation"],
            units=units,
            timeout_s=value["timeout_s"],
            smoke_test=value.get("smoke_test", True),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HostError(
            f"{path} is damaged", detail=repr(error), hint="run `pd-units install` again: it writes it anew"
        ) from error


def _unit(row: dict[str, Any]) -> IndexUnit:
    return IndexUnit(
        unit=row["unit"],
        role=Role(row["role"]),
        url=row["url"],
        gpus=tuple(row.get("gpus", ())),
        numa=tuple(row.get("numa", ())),
        cpus=row.get("cpus"),
        fragment=row.get("fragment", ""),
        environment=dict(row.get("environment") or {}),
        gpu_addresses=dict(row.get("gpu_addresses") or {}),
    )


def current_generation(name: str, root: Path = Path("/")) -> int:
    """The generation that is installed, 0 if none is, or if the index is damaged: an install writes it anew.

    Raises: HostError 32 if it was written by a newer pd-units.
    """
    path = index_path(Names(name, root))
    value = read_json(path) or {}
    require_known_schema(value, path)
    number = value.get("generation", 0)
    return number if isinstance(number, int) else 0


def installed_names(root: Path = Path("/")) -> tuple[str, ...]:
    """The names of the deployments on a host, sorted."""
    return tuple(sorted(path.parent.name for path in under(root, STATE_ROOT).glob("*/index.json")))


def known_names(root: Path = Path("/")) -> tuple[str, ...]:
    """The names of the deployments on a host, those with an install that never came to its end too."""
    with_files = {path.parent.name for path in under(root, STATE_ROOT).glob("*/manifest.json")}
    return tuple(sorted({*installed_names(root), *interrupted_names(root), *with_files}))


def begun_index(name: str) -> Index | None:
    """The index of a deployment whose first install, or whose uninstall, has not ended.

    Raises: HostError 32 as `read_operation`.
    """
    operation = read_operation(Names(name))
    if operation is None:
        return None
    if operation.index is not None:
        return index_from_json(dict(operation.index), source="operation.json")
    return Index(name=name, generation=operation.generation, units=(), timeout_s=0.0)


def read_indexes(names: Iterable[str]) -> tuple[Index, ...]:
    """The indexes of `names`, of every deployment if empty.

    Raises: DeploymentError 10 for a name that is not installed, or if nothing is; HostError 32 if one is
    installed but its index is gone.
    """
    wanted, known = tuple(names), known_names()
    indexes = []
    for name in wanted or known:
        index = None if name_problem(name) else read_index(name) or begun_index(name)
        if index is not None:
            indexes.append(index)
        elif name in known and manifest_path(Names(name)).exists():
            raise HostError(
                f"{index_path(Names(name))} is missing",
                detail="the deployment is installed; this file tells which units it has",
                hint=f"run `pd-units install {name}` again: it writes it anew",
            )
        elif wanted:
            listed = ", ".join(known_names()) or "none"
            raise DeploymentError(
                f"no deployment {name!r} is installed on this host",
                detail=f"installed: {listed}",
                hint="pd-units status shows what is",
                exit_code=ExitCode.UNREADABLE,
            )
    if not indexes:
        raise DeploymentError(
            "no deployment is installed on this host",
            hint="pd-units init --preset dsv4-pd -o FILE, then: sudo pd-units install FILE",
            exit_code=ExitCode.UNREADABLE,
        )
    return tuple(indexes)
