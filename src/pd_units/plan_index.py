"""The index of what is planned. Apart from the index itself: who reads that needs no planning."""

from __future__ import annotations

from collections.abc import Mapping

from pd_units.index import Index, IndexUnit
from pd_units.plan import Plan
from pd_units.topology import UNKNOWN, HostTopology
from pd_units.verification import is_placement_variable


def index_of(
    plan: Plan,
    *,
    generation: int,
    topology: HostTopology = UNKNOWN,
    fragments: Mapping[str, str] | None = None,
) -> Index:
    """The index of a planned deployment; `fragments` are the digests of its unit files."""
    known = fragments or {}
    addresses = {gpu.index: gpu.pci_address for gpu in topology.gpus or () if gpu.pci_address}
    flags = plan.deployment.engine.sm120
    return Index(
        name=plan.deployment.name,
        generation=generation,
        timeout_s=plan.deployment.readiness.longest_s,
        smoke_test=plan.deployment.readiness.smoke_test,
        units=tuple(
            IndexUnit(
                unit=each.unit,
                role=each.role,
                url=each.url,
                gpus=tuple(each.gpus),
                numa=tuple(each.numa_nodes),
                cpus=each.cpus,
                fragment=known.get(each.unit, ""),
                environment={k: v for k, v in each.environment if k in flags or is_placement_variable(k)},
                gpu_addresses={str(gpu): addresses[gpu] for gpu in each.gpus if gpu in addresses},
            )
            for each in plan.units
        ),
    )
