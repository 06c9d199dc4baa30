"""Fixtures for tests on booted boxes: each test gets a box of its own, on systemd 252 and on 257."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rig.box import Box
from rig.host import missing_packages
from rig.images import SUITES, Image
from rig.product import image_for

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.booted)


@pytest.fixture(scope="session", params=sorted(SUITES), ids=lambda version: f"systemd-{version}")
def image(request: pytest.FixtureRequest) -> Image:
    """The image of one systemd version, with this tree and the stub engine installed."""
    if os.geteuid() != 0:
        pytest.skip("booting a box needs root")
    if missing := missing_packages():
        pytest.skip(f"booting a box needs {' '.join(missing)}")
    return image_for(request.param)


@pytest.fixture
def box(image: Image) -> Iterator[Box]:
    """A freshly booted box, gone after the test."""
    with Box(image) as booted:
        yield booted


@pytest.fixture
def cold_box(image: Image) -> Iterator[Box]:
    """A box that is not booted yet."""
    with Box(image, boot=False) as cold:
        yield cold
