"""Measures where the units of a deployment really run, and keeps it for readers without rights.

Root measures. Everybody else reads what the last measurement of the same invocation found:
`/run/pd-units/NAME/UNIT.placement.json`, written at readiness and by every `status` of root.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pd_units.adapters.files import read_json, write_json
from pd_units.adapters.placement import read_processes
from pd_units.adapters.sysfs import read_topology
from pd_units.errors import HostError
from pd_units.index import Index, IndexUnit
from pd_units.naming import Names
from pd_units.observe import UnitReport, UnitState
from pd_units.verification import Verification, Wanted, verification_from_json, verify
from pd_units.waiting import DeploymentReport

_NOTHING_PINNED = "nothing is pinned: no GPUs and no NUMA node"
_NOT_RUNNING = "it is not running"
_NO_RIGHTS = "other users' processes cannot be read: measured for root, by sudo pd-units status"


def with_placement(report: DeploymentReport, *, measure: bool = True) -> DeploymentReport:
    """The report, each unit with its placement: measured now where `measure` and this user's rights allow it,
    else as it was measured last."""
    addresses = gpu_addresses() if measure else None

    def placed(unit: UnitReport) -> UnitReport:
        return replace(unit, placement=_placement(report.index.names, unit, addresses, measure=measure))

    return replace(report, units=tuple(map(placed, report.units)))


def gpu_addresses() -> dict[int, str] | None:
    """GPU index -> PCI address on this host now; None where the GPUs are not known."""
    gpus = read_topology().gpus
    return None if gpus is None else {gpu.index: gpu.pci_address for gpu in gpus if gpu.pci_address}


def _placement(
    names: Names, unit: UnitReport, addresses: Mapping[int, str] | None, *, measure: bool
) -> Verification:
    declared = unit.declared
    if not wanted_of(declared).pinned:
        return Verification(verified=None, reason=_NOTHING_PINNED)
    if not unit.status.main_pid or unit.state not in (UnitState.READY, UnitState.STARTING):
        return Verification(verified=None, reason=_NOT_RUNNING)
    found = measure_unit(declared, unit.status.main_pid, addresses) if measure else None
    if found is None:
        kept = read_placement(names, declared.unit, unit.status.invocation_id)
        return kept or Verification(verified=None, reason=_NO_RIGHTS)
    if unit.state is UnitState.READY:
        write_placement(names, declared.unit, unit.status.invocation_id, found)
    return found


def wanted_of(declared: IndexUnit) -> Wanted:
    """Where the index says that a unit belongs."""
    return Wanted(
        unit=declared.unit,
        gpus=declared.gpus,
        numa=declared.numa,
        cpus=declared.cpus,
        environment=dict(declared.environment),
        addresses={int(gpu): address for gpu, address in declared.gpu_addresses.items()},
    )


def measure_unit(
    declared: IndexUnit, main_pid: int, addresses: Mapping[int, str] | None
) -> Verification | None:
    """The placement of a running unit; None if this user may not read its processes."""
    processes, complete = read_processes(main_pid, addresses, flags=declared.environment)
    if not complete:
        return None
    wanted = wanted_of(declared)
    if not processes:
        return Verification(verified=None, reason=_NOT_RUNNING)
    return verify(wanted, processes, addresses_now=addresses, measured=round(time.time(), 3))


def _path(names: Names, unit: str) -> Path:
    return names.run_dir / f"{unit}.placement.json"


def write_placement(names: Names, unit: str, invocation_id: str, found: Verification) -> None:
    """Keep a measurement, readable by everybody. A failure to is nobody's failure."""
    value: dict[str, Any] = {"unit": unit, "invocation_id": invocation_id, **found.to_json()}
    try:
        write_json(_path(names, unit), value)
    except HostError:
        return


def read_placement(names: Names, unit: str, invocation_id: str) -> Verification | None:
    """The last measurement of this invocation of a unit, None if there is none."""
    value = read_json(_path(names, unit))
    if value is None or value.get("invocation_id") != invocation_id:
        return None
    return verification_from_json(value)


def measure_and_keep(index: Index, unit: str, invocation_id: str, main_pid: int) -> Verification | None:
    """Measure a unit that has just become ready, and keep the result; None if nothing is pinned."""
    declared = next((each for each in index.units if each.unit == unit), None)
    if declared is None or not wanted_of(declared).pinned or not main_pid:
        return None
    found = measure_unit(declared, main_pid, gpu_addresses())
    if found is not None:
        write_placement(index.names, unit, invocation_id, found)
    return found
