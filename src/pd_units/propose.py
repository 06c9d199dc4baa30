"""A preset fitted to a host: which GPUs and NUMA nodes each instance gets. Pure; comments are kept."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pd_units.binding import can_bind
from pd_units.errors import DeploymentError, ExitCode
from pd_units.pinning import is_slice
from pd_units.topology import Gpu, HostTopology

_HEADER = re.compile(r"^\[\[(prefill|decode|standalone)\]\]\s*$", re.MULTILINE)
_ROLES = ("prefill", "decode", "standalone")


@dataclass(frozen=True, slots=True)
class Share:
    """What one instance gets. `numa` is TOML text."""

    gpus: tuple[int, ...]
    numa: str


def description(preset: str) -> str:
    """First line of a preset's text, which says what it is for."""
    return preset.partition("\n")[0].lstrip("# ").rstrip(".")


def propose(preset: str, topology: HostTopology) -> str:
    """The preset's text with GPUs and NUMA nodes of that host: prefill on one node, decode on another; a
    server of one GPU once per GPU.

    Raises: DeploymentError 12 if the host has too few GPUs.
    """
    topology = _whole_gpus(topology)
    data = tomllib.loads(preset)
    tables = {role: data[role] for role in _ROLES if role in data}
    if topology.gpus is None:
        return _with_known_nodes(preset, topology)
    if "standalone" in tables:
        shares = _standalone(len(tables["standalone"][0]["gpus"]), topology)
        return _rewrite(_repeat(preset, len(shares)), {"standalone": shares})
    wanted = len(tables["prefill"][0]["gpus"])
    prefill, decode = _pair(wanted, topology)
    return _rewrite(preset, {"prefill": [prefill], "decode": [decode]})


def _whole_gpus(topology: HostTopology) -> HostTopology:
    """The host without the GPUs that are cut into MIG slices."""
    if topology.gpus is None:
        return topology
    good = tuple(gpu for gpu in topology.gpus if not gpu.mig and not is_slice(gpu))
    return replace(topology, gpus=good)


def _standalone(wanted: int, topology: HostTopology) -> list[Share]:
    """Several GPUs: one server, on one node if it has room. One GPU: a server on each."""
    gpus = topology.gpus or ()
    if not gpus:
        raise _too_few("a server needs a GPU", topology)
    if wanted == 1:
        return [_share([gpu], topology) for gpu in gpus]
    groups = [group for group in _by_node(gpus) if len(group) >= wanted]
    pool = groups[0] if groups else gpus
    return [_share(pool[: _power_of_two(min(wanted, len(pool)))], topology)]


def _pair(wanted: int, topology: HostTopology) -> tuple[Share, Share]:
    """Equal shares for prefill and decode, each inside a node where two nodes have GPUs."""
    gpus = topology.gpus or ()
    if len(gpus) < 2:
        raise _too_few("prefill and decode need a GPU each", topology)
    groups = sorted(_by_node(gpus), key=len, reverse=True)[:2]
    groups.sort(key=lambda group: group[0].index)
    half = len(gpus) // 2
    if len(groups) == 2 and min(map(len, groups)) >= min(wanted, _power_of_two(half)):
        first, second = groups
    else:
        first, second = list(gpus[:half]), list(gpus[half:])
    size = _power_of_two(min(wanted, len(first), len(second)))
    return _share(first[:size], topology), _share(second[:size], topology)


def _by_node(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    nodes = sorted({gpu.numa for gpu in gpus if gpu.numa is not None})
    return [[gpu for gpu in gpus if gpu.numa == node] for node in nodes]


def _power_of_two(number: int) -> int:
    """The largest power of two up to `number`: tensor parallel sizes that divide attention heads."""
    return 1 << (number.bit_length() - 1)


def _share(gpus: Sequence[Gpu], topology: HostTopology) -> Share:
    nodes = {gpu.numa for gpu in gpus}
    node = next(iter(nodes))
    several = len(topology.numa_nodes or ()) > 1
    there = topology.numa_node(node) if node is not None else None
    bindable = several and len(nodes) == 1 and there is not None and can_bind(there)
    numa = str(node) if bindable else '"auto"'
    return Share(tuple(gpu.index for gpu in gpus), numa)


def _too_few(what: str, topology: HostTopology) -> DeploymentError:
    count = len(topology.gpus or ())
    return DeploymentError(
        f"{what}; this host has {count}",
        hint="--topology FILE proposes for another host",
        exit_code=ExitCode.PLACEMENT,
    )


def _blocks(text: str) -> list[tuple[str | None, str]]:
    """(role or None, text) pieces that join to `text`; a role's piece is its table, up to the next header."""
    pieces: list[tuple[str | None, str]] = []
    position = 0
    for match in _HEADER.finditer(text):
        pieces.append((None, text[position : match.start()]))
        following = re.compile(r"^(?:#.*\n)*\[", re.MULTILINE).search(text, match.end())
        position = following.start() if following else len(text)
        pieces.append((match[1], text[match.start() : position]))
    return [*pieces, (None, text[position:])]


def _repeat(text: str, count: int) -> str:
    """The standalone table `count` times, with a port of its own each."""
    pieces = []
    for role, piece in _blocks(text):
        if role != "standalone":
            pieces.append(piece)
            continue
        port = int(tomllib.loads(piece)["standalone"][0]["port"])
        for number in range(count):
            pieces.append(re.sub(r"(?m)^port = .*$", f"port = {port + number}", piece))
    return "".join(pieces)


def _rewrite(text: str, shares: dict[str, list[Share]]) -> str:
    left = {role: list(each) for role, each in shares.items()}
    pieces = []
    for role, piece in _blocks(text):
        if role is not None:
            share = left[role].pop(0)
            piece = re.sub(r"(?m)^gpus = .*$", f"gpus = {list(share.gpus)}", piece)
            piece = re.sub(r"(?m)^numa = .*$", f"numa = {share.numa}", piece)
        pieces.append(piece)
    return "".join(pieces)


def _with_known_nodes(text: str, topology: HostTopology) -> str:
    """Where the GPUs are not known, their numbers stay; nodes that this host lacks are left to "auto"."""
    if topology.numa_nodes is None:
        return text
    declared = {int(number) for number in re.findall(r"(?m)^numa = (\d+)$", text)}
    if declared <= {node.id for node in topology.numa_nodes}:
        return text
    return re.sub(r"(?m)^numa = \d+$", 'numa = "auto"', text)
