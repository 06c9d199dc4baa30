"""`install --root` into an image that is then booted: the same as an online install and a boot."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from faults import STATE, TWO, Host, two

from rig.box import Box
from rig.images import Image

A = "0.75"
# What differs: when it was installed, and that units were started then.
TIMES = re.compile(
    r'"(began|ended|left|seconds_to_ready|message|result)": [^\n]*\n|"changes": \[.*?\]', re.DOTALL
)


def in_image(box: Box, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command in the root of a box that is not booted, which is also bound at its own /image."""
    root = str(box.outside_root).partition("/root/")[2]
    assert box._holder is not None
    script = (
        f'cd "/{root}" && mkdir -p image && mount --bind . image && mount -t proc proc proc && '
        'mount -t tmpfs tmpfs run && exec chroot . env -i PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 "$@"'
    )
    enter = ["nsenter", "--mount", f"--target={box._holder.pid}", "--"]
    alone = ["unshare", "--mount", "--propagation", "private", "--"]
    return subprocess.run(
        [*enter, *alone, "sh", "-euc", script, "sh", *argv], capture_output=True, text=True, timeout=60
    )


def put(box: Box, path: str, text: str) -> None:
    place = Path(f"{box.outside_root}{path}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def state_of(box: Box) -> dict[str, str]:
    """Every file and link of ours, but for times."""
    script = (
        f"find {STATE} /etc/systemd/system \\( -path '{STATE}/*' -o -name '*two*' -o -name 'pd-units*' \\) "
        "! -type d ! -path '*/starts/*' ! -path '*/ends/*' | sort | while read -r path; do "
        'printf "\\036%s\\n" "$path"; if [ -L "$path" ]; then readlink "$path"; else cat "$path"; fi; done'
    )
    parts = [part.partition("\n") for part in box.sh(script).split("\036") if part]
    return {path: TIMES.sub("", text) for path, _, text in parts}


def modes_of(box: Box) -> str:
    return box.sh(
        f"find {STATE} /etc/systemd/system \\( -path '{STATE}*' -o -name 'two*' -o -name 'pd-units*' \\) "
        "! -path '*/starts*' ! -path '*/ends*' -printf '%p %M %u\\n' | sort"
    )


def test_an_image_boots_as_an_installed_host_does(image: Image, cold_box: Box) -> None:
    put(cold_box, "/etc/pd-units/two.toml", two(A))
    first = in_image(cold_box, "pd-units", "install", "--root", "/image", "--json")
    assert first.returncode == 0, (first.stdout, first.stderr)
    assert '"changed": true' in first.stdout
    again = in_image(cold_box, "pd-units", "install", "--root", "/image", "--json")
    assert '"changed": false' in again.stdout, again.stdout
    cold_box.boot()
    offline = Host(cold_box, "two", TWO)
    offline.ready()
    with Box(image) as box:
        online = Host(box, "two", TWO)
        online.write(two(A))
        online.install().check()
        box.reboot()
        online.ready()
        assert state_of(cold_box) == state_of(box)
        assert modes_of(cold_box) == modes_of(box)
        assert offline.mains().keys() == online.mains().keys()
    for unit in (*TWO, "pd-units@two.target", "pd-units-recover.service"):
        assert cold_box.run(["systemctl", "is-enabled", unit]).out.strip() == "enabled", unit
    before = offline.mains()
    told = offline.install().check().json()
    assert told["changed"] is False, told
    assert offline.mains() == before
    history = offline.pd("history", "two", "--json").check().json()["generations"]
    assert [(row["result"], row["good"]) for row in history] == [("ready", True)]
    assert cold_box.sh("systemctl --failed --no-legend --plain") == ""


def test_an_image_build_that_was_killed_is_finished_by_the_next_or_by_the_boot(cold_box: Box) -> None:
    put(cold_box, "/etc/pd-units/two.toml", two(A))
    put(cold_box, "/root/strike.py", Path(__file__).with_name("strike.py").read_text())
    words = ["--root", "/image", "--json"]
    at = f"before rename to /image/etc/systemd/system/{TWO[1]}"
    strike = ["/opt/pd-units/bin/python", "/root/strike.py", "--at", at, "--how", "kill", "--"]
    struck = in_image(cold_box, *strike, "install", *words)
    assert struck.returncode in (137, -9), (struck.stdout, struck.stderr)
    cold_box.boot()
    host = Host(cold_box, "two", TWO)
    host.ready()
    assert host.status()["interrupted"] is None
    assert host.install().check().json()["changed"] is False


@pytest.mark.parametrize("missing", ["/image/nowhere"])
def test_an_image_that_is_not_there(cold_box: Box, missing: str) -> None:
    put(cold_box, "/etc/pd-units/two.toml", two(A))
    told = in_image(cold_box, "pd-units", "install", "--root", missing)
    assert told.returncode == 2
    assert "does not exist" in told.stderr
