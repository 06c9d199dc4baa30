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
from pd_units.adapters.files import read_json, write_json
from pd_units.errors import DeploymentError, ExitCode, HostError
from pd_units.naming import STATE_ROOT, Names, Role, under
from pd_units.plan import Plan
from pd_units.topology import UNKNOWN, HostTopology
from pd_units.verification import is_placement_variable


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUnit:
    """One service: its role, base URL, GPUs, NUMA nodes and CPUs ("0-31", None if unbound).

    `environment`: the variables that pin it and choose its kernels, as rendered; no others, for they may hold
    secrets. `gpu_addresses`: PCI address of each GPU when it was planned; {} where they were not known.
    """

    unit: str
    role: Role
    url: str
    gpus: tuple[int, ...] = ()
    numa: tuple[int, ...] = ()
    cpus: str | None = None
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


def index_of(plan: Plan, *, generation: int, topology: HostTopology = UNKNOWN) -> Index:
    """The index of a planned deployment."""
    addresses = {gpu.index: gpu.pci_address for gpu in topology.gpus or () if gpu.pci_address}
    return Index(
        name=plan.deployment.name,
        generation=generation,
        timeout_s=plan.deployment.readiness.timeout_s,
        smoke_test=plan.deployment.readiness.smoke_test,
        units=tuple(
            IndexUnit(
                unit=each.unit,
                role=each.role,
                url=each.url,
                gpus=tuple(each.gpus),
                numa=tuple(each.numa_nodes),
                cpus=each.cpus,
                environment={k: v for k, v in each.environment if is_placement_variable(k)},
                gpu_addresses={str(gpu): addresses[gpu] for gpu in each.gpus if gpu in addresses},
            )
            for each in plan.units
        ),
    )


def index_path(names: Names) -> Path:
    """Where the index lies."""
    return names.state_dir / "index.json"


def index_to_json(index: Index) -> dict[str, Any]:
    """The index as it is kept."""
    return {"schema": SCHEMA, **asdict(index)}


def write_index(names: Names, index: Index) -> None:
    """Write the index, readable by everybody. Raises: HostError 32."""
    write_json(index_path(names), index_to_json(index))


def read_index(name: str, root: Path = Path("/")) -> Index | None:
    """The index of an installed deployment, None if there is none.

    Raises: HostError 32 if it was written by a newer pd-units or is damaged.
    """
    path = index_path(Names(name, root))
    if not path.exists():
        return None
    value = read_json(path)
    if value is None:
        raise HostError(
            f"{path} is damaged",
            detail="it is not a JSON object",
            hint="run `pd-units install` again: it writes it anew",
        )
    return index_from_json(value, source=str(path))


def index_from_json(value: dict[str, Any], *, source: str) -> Index:
    """The index that was kept. Raises: HostError 32 if it is newer than this pd-units, or damaged."""
    path = source
    if value.get("schema", 0) > SCHEMA:
        raise HostError(
            f"{path} was written by a newer pd-units",
            detail=f"schema {value.get('schema')}, this one knows {SCHEMA}",
            hint="upgrade pd-units",
        )
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
        environment=dict(row.get("environment") or {}),
        gpu_addresses=dict(row.get("gpu_addresses") or {}),
    )


def installed_names(root: Path = Path("/")) -> tuple[str, ...]:
    """The names of the deployments on a host, sorted."""
    return tuple(sorted(path.parent.name for path in under(root, STATE_ROOT).glob("*/index.json")))


def read_indexes(names: Iterable[str]) -> tuple[Index, ...]:
    """The indexes of `names`, of every deployment if empty.

    Raises: DeploymentError 10 for a name that is not installed, or if nothing is.
    """
    wanted, found = tuple(names), installed_names()
    if not wanted and not found:
        raise DeploymentError(
            "no deployment is installed on this host",
            hint="pd-units init --preset dsv4-pd -o FILE, then: sudo pd-units install FILE",
            exit_code=ExitCode.UNREADABLE,
        )
    indexes = []
    for name in wanted or found:
        index = read_index(name)
        if index is None:
            listed = ", ".join(found) or "none"
            raise DeploymentError(
                f"no deployment {name!r} is installed on this host",
                detail=f"installed: {listed}",
                hint="pd-units status shows what is",
                exit_code=ExitCode.UNREADABLE,
            )
        indexes.append(index)
    return tuple(indexes)
