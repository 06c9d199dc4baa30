"""One run of the two-node machine for all tests of this folder, however many processes share them."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from numa_machine import MachineError, run_machine

from rig.host import MACHINE_NEEDS, NEEDS, missing_packages
from rig.product import image_for

HERE = Path(__file__).resolve().parent
SYSTEMD = 252  # the oldest that is supported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.numa)


@pytest.fixture(scope="session")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the machine said, step by step; it has come to its end."""
    if os.geteuid() != 0:
        pytest.skip("making the machine's disks needs root")
    if platform.machine() != "x86_64":
        pytest.skip("the machine is an x86_64 one")
    if missing := missing_packages({**NEEDS, **MACHINE_NEEDS}):
        pytest.skip(f"the machine needs {' '.join(missing)}")
    # pytest-xdist gives each worker a folder below one that they share.
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    answer = shared / "numa-answer.json"
    with (shared / "numa-answer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answer.exists():
            answer.write_text(json.dumps(_run()))
    found = json.loads(answer.read_text())
    if isinstance(found, str):
        pytest.fail(found, pytrace=False)
    return list(found)


def _run() -> list[dict[str, Any]] | str:
    """The steps, or why there are none: another worker then need not try again."""
    try:
        return run_machine(image_for(SYSTEMD))
    except MachineError as error:
        return str(error)
