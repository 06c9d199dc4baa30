"""What systemd-analyze says of rendered units, in the words of 252 and 257, and what of it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pd_units.adapters.host import verify_units
from pd_units.errors import TemplateError
from pd_units.rendered import RenderedUnit

UNITS = [RenderedUnit("a-x.service", "[Service]\nExecStart=/opt/none/bin/python -m x\n", None)]
MISSING = "a-x.service: Command /opt/none/bin/python is not executable: No such file or directory"
CLOSED = "a-x.service: Command /opt/my engine/python is not executable: Permission denied"
OTHERS = "/usr/lib/systemd/system/other.service:8: Unknown key 'Odd' in section [Service], ignoring."
BAD = "FOLDER/a-x.service:2: Unknown key 'Descr' in section [Unit], ignoring."


def says(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A systemd-analyze that says this and exits 1."""
    tool = folder / "systemd-analyze"
    text = "".join(f"{line}\n" for line in lines)
    tool.write_text(
        f"#!/bin/sh\nfor last; do :; done\nsed \"s|FOLDER|${{last%/*}}|\" >&2 <<'E'\n{text}E\nexit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("lines", [[MISSING], [MISSING, CLOSED], [OTHERS, MISSING]])
def test_a_program_that_is_not_here_is_no_fault_of_a_unit(tmp_path, monkeypatch, lines: list[str]) -> None:
    says(tmp_path, monkeypatch, *lines)
    verify_units(UNITS)


@pytest.mark.parametrize("lines", [[BAD], [BAD, MISSING]])
def test_a_fault_beside_it_is_found(tmp_path, monkeypatch, lines: list[str]) -> None:
    says(tmp_path, monkeypatch, *lines)
    with pytest.raises(TemplateError) as caught:
        verify_units(UNITS)
    assert caught.value.detail == "a-x.service:2: Unknown key 'Descr' in section [Unit], ignoring."


def test_the_systemd_of_this_host_agrees() -> None:
    verify_units(UNITS)
