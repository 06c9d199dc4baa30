"""Fault tests run on the booted boxes of tests/booted, with the same fixtures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BOOTED = HERE.parent / "booted"
sys.path[:0] = [str(BOOTED), str(HERE.parent)]

_spec = importlib.util.spec_from_file_location("booted_fixtures", BOOTED / "conftest.py")
assert _spec is not None and _spec.loader is not None
_booted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_booted)
image, box, cold_box = _booted.image, _booted.box, _booted.cold_box


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.booted)
