"""What a deployment would take from others: GPUs and ports that are theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pd_units.adapters.files import Busy, locked, read_json
from pd_units.errors import DeploymentError, ExitCode, Fault, HostError
from pd_units.generations import last_good, stored_index, stored_text
from pd_units.goal import Goal
from pd_units.index import Index, deployment_path, index_from_json, known_names, read_index, retired_path
from pd_units.manifest import Operation, read_operation
from pd_units.model import Deployment, parse_deployment
from pd_units.model_check import ports_of
from pd_units.naming import Names

_HINT = "give it others, or name that unit in deployment.retires"
# Placing files and writing down what is taken; nobody waits for a model under this lock.
_LOCK_S = 60.0


@contextlib.contextmanager
def alone_on_host(goal: Goal, *, but: Collection[str] = ()) -> Iterator[None]:
    """Nobody else takes GPUs and ports while `goal`'s are looked for and written down.

    `but`: deployments of the same call whose turn comes later. Raises: DeploymentError 12; HostError 32.
    """
    with host_locked(goal.names):
        require_free(goal.names, goal.index, goal.text, but=but)
        yield


@contextlib.contextmanager
def host_locked(names: Names) -> Iterator[None]:
    """Hold the lock of what all deployments share. Raises: HostError 32 if another holds it for a minute."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(names.host_lock, timeout_s=_LOCK_S))
        except Busy as error:
            raise HostError(
                "another pd-units is placing files of another deployment",
                detail=error.detail,
                hint="run it again when that one has gone on",
            ) from error
        yield


def require_free(names: Names, index: Index, text: str, *, hint: str = "", but: Collection[str] = ()) -> None:
    """Whoever installs calls this under the host's lock, just before it writes down what it takes.

    Raises: DeploymentError 12 with every GPU and port that is another deployment's; HostError 32.
    """
    faults = claimed_by_others(names, index, text, but=but)
    if faults:
        raise DeploymentError(
            f"generation {index.generation} of {names.deployment} has no place beside other deployments",
            faults=faults,
            hint=hint,
            exit_code=ExitCode.PLACEMENT,
        )


def claimed_by_others(
    names: Names, index: Index, text: str, *, but: Collection[str] = ()
) -> tuple[Fault, ...]:
    """GPUs and ports of `index` that belong to other deployments, `but` these, and not to units it retires.

    `text` is its deployment file; where a file cannot be read, its index tells. Raises: HostError 32.
    """
    wanted = _parsed(text)
    retired = wanted.retires if wanted is not None else ()
    gpus: dict[int, str] = {}
    ports: dict[int, str] = {}
    for name in known_names(names.root):
        if name == names.deployment or name in but:
            continue
        for other, kept in _claims(Names(name, names.root)):
            for unit in other.units:
                if unit.unit not in retired:
                    gpus.update(dict.fromkeys(unit.gpus, unit.unit))
            ports.update(_ports(other, kept, retired))
    faults = [
        Fault(unit.unit, f"GPU {gpu} belongs to {gpus[gpu]} of another deployment", _HINT, placement=True)
        for unit in index.units
        for gpu in unit.gpus
        if gpu in gpus
    ]
    mine = sorted(dict(_ports(index, wanted, ())).items())
    faults += [
        Fault(where, f"port {port} belongs to {ports[port]} of another deployment", _HINT, placement=True)
        for port, where in mine
        if port in ports
    ]
    return tuple(faults)


def _claims(names: Names) -> Iterator[tuple[Index, Deployment | None]]:
    """What a deployment has, what it is about to have, and what its way back needs until it has that."""
    index = read_index(names.deployment, names.root)
    if index is not None:
        yield index, _kept(deployment_path(names))
    operation = read_operation(names)
    if operation is None or operation.kind == "uninstall":
        return
    if operation.index is not None:
        begun = index_from_json(dict(operation.index), source="operation.json")
        yield begun, _text_of(names, begun.generation)
    yield from _way_back(names, operation)


def _way_back(names: Names, operation: Operation) -> Iterator[tuple[Index, Deployment | None]]:
    with contextlib.suppress(HostError):
        good = last_good(names, other_than=operation.generation)
        back = (
            operation.generation if operation.kind == "rollback" else (good.number if good is not None else 0)
        )
        if back:
            yield stored_index(names, back), _text_of(names, back)


def _text_of(names: Names, number: int) -> Deployment | None:
    with contextlib.suppress(HostError):
        return _parsed(stored_text(names, number))
    return None


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


def _kept(path: Path) -> Deployment | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _parsed(path.read_text(encoding="utf-8"))
    return None


def retired_by(names: Names, text: str) -> tuple[str, ...]:
    """The units that a kept deployment file retires; where it cannot be read, all that are retired now."""
    deployment = _parsed(text)
    return deployment.retires if deployment is not None else tuple(read_json(retired_path(names)) or ())


def _parsed(text: str) -> Deployment | None:
    """What a kept file says, None if this version cannot read it."""
    with contextlib.suppress(DeploymentError):
        return parse_deployment(text, source="kept file")
    return None
