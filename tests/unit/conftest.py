"""What every unit test gets: a host's lock of its own, for /run is this machine's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pd_units.naming import Names


@pytest.fixture(scope="session", autouse=True)
def lock_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    place = tmp_path_factory.mktemp("run") / "host.lock"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Names, "host_lock", property(lambda _names: place))
        yield
