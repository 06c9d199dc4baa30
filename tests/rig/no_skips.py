"""A pytest plugin for CI: a test that would be skipped fails instead, since nobody looks at skips there."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


def _refuse(report: Any) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure here: {reason}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    outcome = yield
    _refuse(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    outcome = yield
    _refuse(outcome.get_result())
