"""What a kept generation would take from other deployments: GPUs and ports that are theirs by now."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from pd_units.errors import DeploymentError, Fault
from pd_units.index import Index, installed_names, read_index
from pd_units.model import Deployment, parse_deployment
from pd_units.model_check import ports_of
from pd_units.naming import Names
from pd_units.placing import deployment_path


def claimed_by_others(names: Names, index: Index, text: str) -> tuple[Fault, ...]:
    """GPUs and ports of `index` that belong to units of other deployments, but not to those that it retires.

    `text` is its deployment file; where a file cannot be read, its index tells. Raises: HostError 32.
    """
    wanted = _parsed(text)
    retired = wanted.retires if wanted is not None else ()
    gpus: dict[int, str] = {}
    ports: dict[int, str] = {}
    for name in installed_names(names.root):
        other = read_index(name, names.root) if name != names.deployment else None
        if other is None:
            continue
        for unit in other.units:
            if unit.unit not in retired:
                gpus.update(dict.fromkeys(unit.gpus, unit.unit))
        ports.update(_ports(other, _deployment_of(Names(name, names.root)), retired))
    faults = [
        Fault(unit.unit, f"GPU {gpu} belongs to {gpus[gpu]} of another deployment", placement=True)
        for unit in index.units
        for gpu in unit.gpus
        if gpu in gpus
    ]
    mine = sorted(dict(_ports(index, wanted, ())).items())
    faults += [
        Fault(where, f"port {port} belongs to {ports[port]} of another deployment", placement=True)
        for port, where in mine
        if port in ports
    ]
    return tuple(faults)


def _ports(
    index: Index, deployment: Deployment | None, retired: Collection[str]
) -> Iterator[tuple[int, str]]:
    """(port, its unit or key path). Those that only a file tells count if none of its units is retired."""
    if deployment is not None and not {unit.unit for unit in index.units} & set(retired):
        yield from ((port, f"{index.name}: {where}") for port, where in ports_of(deployment))
    for unit in index.units:
        port = urlsplit(unit.url).port
        if port is not None and unit.unit not in retired:
            yield port, unit.unit


def _deployment_of(names: Names) -> Deployment | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _parsed(deployment_path(names).read_text(encoding="utf-8"))
    return None


def _parsed(text: str) -> Deployment | None:
    """What a kept file says, None if this version cannot read it."""
    with contextlib.suppress(DeploymentError):
        return parse_deployment(text, source="kept file")
    return None
