"""The real manager keeps the contract that the fake one is held to."""

from __future__ import annotations

from pathlib import Path

from faults import PYTHON

from rig.box import Box

CONTRACT = Path(__file__).resolve().parents[1] / "contract" / "manager_contract.py"


def test_the_real_manager(box: Box) -> None:
    box.write("/root/manager_contract.py", CONTRACT.read_text())
    done = box.run([PYTHON, "/root/manager_contract.py"])
    assert done.rc == 0, (done.out, done.err)
    assert done.out.count(": holds") == 16
