"""Did the pin take: facts of a unit's running processes in, what deviates from the plan out.

Pure. adapters/placement.py reads the facts, measuring.py brings the two together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pd_units.naming import stem
from pd_units.topology import format_cpu_list, parse_cpu_list

#: Share of a process's anonymous pages that must be on the wanted NUMA nodes.
LOCAL_SHARE = 0.95
#: Below this many pages (1 MiB) a share says nothing.
_FEW_PAGES = 256
#: A CUDA context on a peer's GPU, as KV transfer by CUDA IPC opens it, stays below this.
_CONTEXT_BYTES = 1 << 30
_SHOWN_PROCESSES = 3
_PLURAL = {"has": "have", "lacks": "lack"}

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_SM120 = re.compile(r"SGLANG_(?:[A-Z0-9]+_)*SM120_\w+")
_NODES = re.compile(r" N(\d+)=(\d+)")
_ANON = re.compile(r" anon=(\d+)")
_PAGE_KB = re.compile(r" kernelpagesize_kB=(\d+)")
_BASE_PAGE_KB = 4


def is_placement_variable(name: str) -> bool:
    """Whether a variable decides where a process runs or which kernels it takes: the only ones looked at."""
    return name in (VISIBLE, ORDER) or _SM120.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """One process as the kernel shows it.

    `cpus`: CPU list -> number of threads that may run there. `policies`: memory policy as numa_maps writes it
    ("bind:1", "default") -> number of mappings. `pages`: NUMA node -> anonymous pages of 4 KiB.
    `environment`: placement variables at its start. `gpu_memory`: GPU index -> bytes, None = not known.
    """

    pid: int
    name: str
    cpus: Mapping[str, int] = field(default_factory=dict)
    policies: Mapping[str, int] = field(default_factory=dict)
    pages: Mapping[int, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu_memory: Mapping[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.pid} ({self.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Where a unit was planned to run.

    `numa` () and `cpus` None = no binding. `environment`: placement variables as rendered, {} = not known
    (installed by an older pd-units). `addresses`: PCI address of each of `gpus` at the time of the plan.
    """

    unit: str
    gpus: tuple[int, ...] = ()
    numa: tuple[int, ...] = ()
    cpus: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[int, str] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        """Whether there is anything to verify; a router is not pinned."""
        return bool(self.gpus or self.numa)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of it. `verified` None = not measured, and `reason` says why. `measured`: seconds since the
    epoch. `pages`: NUMA node -> anonymous pages of all processes. `sm120`: kernel flags in effect."""

    verified: bool | None
    deviations: tuple[str, ...] = ()
    reason: str = ""
    processes: int = 0
    pages: Mapping[str, int] = field(default_factory=dict)
    sm120: Mapping[str, str] = field(default_factory=dict)
    gpu_memory_bytes: Mapping[str, int] | None = None
    measured: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The keys that a unit's `placement` object gets beside what was planned."""
        return {
            "verified": self.verified,
            "deviations": list(self.deviations),
            "reason": self.reason or None,
            "processes": self.processes,
            "anonymous_pages": dict(self.pages),
            "sm120": dict(self.sm120),
            "gpu_memory_bytes": dict(self.gpu_memory_bytes) if self.gpu_memory_bytes is not None else None,
            "measured": self.measured,
        }


def verification_from_json(value: Mapping[str, Any]) -> Verification | None:
    """The verification that was kept, None if it is not one."""
    verified = value.get("verified")
    if verified is not None and not isinstance(verified, bool):
        return None
    return Verification(
        verified=verified,
        deviations=tuple(map(str, value.get("deviations") or ())),
        reason=str(value.get("reason") or ""),
        processes=int(value.get("processes") or 0),
        pages=dict(value.get("anonymous_pages") or {}),
        sm120=dict(value.get("sm120") or {}),
        gpu_memory_bytes=value.get("gpu_memory_bytes"),
        measured=value.get("measured"),
    )


def parse_numa_maps(text: str) -> tuple[dict[str, int], dict[int, int]]:
    """(policy -> mappings, NUMA node -> anonymous pages of 4 KiB) of /proc/PID/numa_maps.

    Pages of files and of shared memory are left out: whoever touched them first decides where they are. Those
    of a private file mapping count where all of them were written, and so are anonymous. Huge pages count as
    the 4 KiB pages that they hold. Source: numa(7), fs/proc/task_mmu.c.
    """
    policies: Counter[str] = Counter()
    pages: Counter[int] = Counter()
    for line in text.splitlines():
        policy = _policy_of(line)
        if policy:
            policies[policy] += 1
        counts = [(int(node), int(count)) for node, count in _NODES.findall(line)]
        if not counts or (" file=" in line and not _all_anonymous(line, sum(n for _, n in counts))):
            continue
        size = _PAGE_KB.search(line)
        factor = max(int(size[1]) // _BASE_PAGE_KB, 1) if size else 1
        for node, count in counts:
            pages[node] += count * factor
    return dict(policies), dict(pages)


def _all_anonymous(line: str, total: int) -> bool:
    """Whether each of the `total` pages of a file's mapping is the process's own."""
    if " file=/anon_hugepage" in line:
        return True
    anonymous = _ANON.search(line)
    return anonymous is not None and int(anonymous[1]) == total


def _policy_of(line: str) -> str:
    """The second field; some policies have a blank in their name ("prefer (many):0-1")."""
    words = line.split(" ")[1:]
    if not words:
        return ""
    if len(words) > 1 and (words[1].startswith("(many)") or words[0] == "weighted"):
        return f"{words[0]} {words[1]}"
    return words[0]


def verify(
    wanted: Wanted,
    processes: Sequence[ProcessFacts],
    *,
    addresses_now: Mapping[int, str] | None = None,
    measured: float | None = None,
) -> Verification:
    """Whether every process runs where it was planned to. `addresses_now`: GPU index -> PCI address now."""
    deviations = [*_gpus_moved(wanted, addresses_now)]
    deviations += [*_cpus(wanted, processes), *_policies(wanted, processes), *_pages(wanted, processes)]
    deviations += [*_variables(wanted, processes), *_gpu_memory(wanted, processes)]
    pages: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for process in processes:
        pages.update(process.pages)
        held.update(process.gpu_memory or {})
    known = any(process.gpu_memory is not None for process in processes)
    return Verification(
        verified=not deviations,
        deviations=tuple(f"{stem(wanted.unit)}: {each}" for each in deviations),
        processes=len(processes),
        pages={str(node): pages[node] for node in sorted(pages)},
        sm120=_flags_in_effect(wanted, processes),
        gpu_memory_bytes={str(gpu): held[gpu] for gpu in sorted(held)} if known else None,
        measured=measured,
    )


def _some(processes: Sequence[ProcessFacts]) -> str:
    """ "process 12 (python)", "processes 12 (python), 13 (python) and 4 more"."""
    shown = ", ".join(map(str, processes[:_SHOWN_PROCESSES]))
    rest = len(processes) - _SHOWN_PROCESSES
    return f"process{'es' if len(processes) > 1 else ''} {shown}" + (f" and {rest} more" if rest > 0 else "")


def _alike(pairs: Iterable[tuple[str, ProcessFacts]]) -> Iterable[str]:
    """One deviation for all processes that have the same."""
    groups: dict[str, list[ProcessFacts]] = {}
    for text, process in pairs:
        groups.setdefault(text, []).append(process)
    for text, processes in groups.items():
        verb, _, rest = text.partition(" ")
        plural = _PLURAL.get(verb, verb) if len(processes) > 1 else verb
        yield f"{_some(processes)} {plural} {rest}"


def _gpus_moved(wanted: Wanted, now: Mapping[int, str] | None) -> Iterable[str]:
    if now is None:
        return
    by_uuid = wanted.environment.get(VISIBLE, "").startswith(("GPU-", "MIG-"))
    for gpu, address in wanted.addresses.items():
        if address not in now.values():
            yield f"GPU {gpu} ({address}) was there at install and is not there now"
        elif now.get(gpu) != address and not by_uuid:
            yield (
                f"GPU {gpu} was {address} at install and is {now.get(gpu, 'none')} now: the indexes have "
                f'moved, and the next start would take another GPU (pin = "uuid" holds on to it)'
            )


def _cpus(wanted: Wanted, processes: Sequence[ProcessFacts]) -> Iterable[str]:
    if not wanted.cpus:
        return
    allowed = set(parse_cpu_list(wanted.cpus))
    pairs = []
    for process in processes:
        total = sum(process.cpus.values())
        for cpus, threads in process.cpus.items():
            if not set(parse_cpu_list(cpus)) <= allowed:
                who = "" if threads == total else f"with {threads} of its {total} threads "
                pairs.append((f"may run {who}on CPUs {cpus}, wants {wanted.cpus}", process))
    yield from _alike(pairs)


def _policies(wanted: Wanted, processes: Sequence[ProcessFacts]) -> Iterable[str]:
    """The policy that most mappings have is the process's own; a single mapping may have another."""
    if not wanted.numa:
        return
    nodes = format_cpu_list(wanted.numa)
    pairs = []
    for process in processes:
        if not process.policies:
            continue
        policy = max(process.policies, key=lambda each: process.policies[each])
        if not _binds(policy, wanted.numa):
            pairs.append((f"has the memory policy {policy}, wants bind:{nodes}", process))
    yield from _alike(pairs)


def _binds(policy: str, nodes: Sequence[int]) -> bool:
    """Whether a policy names only wanted nodes. An engine that binds by itself may prefer one of them."""
    mode, _, listed = policy.rpartition(":")
    if not mode.startswith(("bind", "prefer")):
        return False
    try:
        named = set(parse_cpu_list(listed))
    except ValueError:
        return False
    return bool(named) and named <= set(nodes)


def _pages(wanted: Wanted, processes: Sequence[ProcessFacts]) -> Iterable[str]:
    if not wanted.numa:
        return
    nodes = format_cpu_list(wanted.numa)
    for process in processes:
        total = sum(process.pages.values())
        away = {node: count for node, count in process.pages.items() if node not in wanted.numa and count}
        if total < _FEW_PAGES or sum(away.values()) <= (1 - LOCAL_SHARE) * total:
            continue
        share = 100 * sum(away.values()) / total
        where = format_cpu_list(away)
        yield (
            f"process {process} has {share:.0f} % of {total:,} anonymous pages on NUMA node {where}, "
            f"wants node {nodes}"
        )


def _variables(wanted: Wanted, processes: Sequence[ProcessFacts]) -> Iterable[str]:
    """Variables that are not as rendered: a drop-in or an environment file overrode them."""
    if not wanted.environment:
        return
    pairs = []
    for process in processes:
        found = process.environment
        for name, value in wanted.environment.items():
            have = found.get(name)
            if have == value or (name == VISIBLE and _within(have, value)):
                continue
            has = f"has {name}={have}" if have is not None else f"lacks {name}"
            pairs.append((f"{has}, wants {value}", process))
        if VISIBLE not in wanted.environment and VISIBLE in found and wanted.gpus:
            gpus = format_cpu_list(wanted.gpus)
            what = f"has {VISIBLE}={found[VISIBLE]}, wants all GPUs visible: --base-gpu-id picks {gpus}"
            pairs.append((what, process))
    yield from _alike(pairs)


def _within(have: str | None, wanted: str) -> bool:
    """Whether a rank narrowed the pin further, as engines do that give each rank one GPU."""
    return bool(have) and set((have or "").split(",")) <= set(wanted.split(","))


def _gpu_memory(wanted: Wanted, processes: Sequence[ProcessFacts]) -> Iterable[str]:
    if not wanted.gpus:
        return
    for process in processes:
        for gpu, held in (process.gpu_memory or {}).items():
            if gpu not in wanted.gpus and held >= _CONTEXT_BYTES:
                yield (
                    f"process {process} holds {held / 2**30:.1f} GiB on GPU {gpu}, "
                    f"wants GPU {format_cpu_list(wanted.gpus)}"
                )


def _flags_in_effect(wanted: Wanted, processes: Sequence[ProcessFacts]) -> dict[str, str]:
    """The kernel flags that the processes were started with; the main process comes first and wins."""
    found: dict[str, str] = {}
    for process in reversed(processes):
        found |= process.environment
    known = set(wanted.environment) - {VISIBLE, ORDER}
    return {name: found[name] for name in sorted(found) if name in known or _SM120.fullmatch(name)}
