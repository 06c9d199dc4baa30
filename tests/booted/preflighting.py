"""Faults on a box, and what preflight answers to them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from serving import FILE, pd_units

from rig.box import Box

HOUSEHOLD = "/run/fault"  # what faults are made of


@dataclass
class Found:
    """What preflight answered."""

    rc: int
    checks: list[dict[str, Any]]

    def failed(self, name: str, *words: str, severity: str = "error") -> dict[str, Any]:
        """The failure of `name` whose evidence or advice holds every word. Raises: AssertionError."""
        for check in self.checks:
            text = f"{check['evidence']} -> {check['advice']}"
            if check["name"] == name and not check["ok"] and all(word in text for word in words):
                assert check["severity"] == severity, check
                assert check["advice"], check
                if severity == "error":
                    assert self.rc == 13, (self.rc, check)
                return check
        bad = [f"{c['name']}: {c['evidence']} -> {c['advice']}" for c in self.checks if not c["ok"]]
        raise AssertionError(f"no failure of {name} with {words}; rc {self.rc}; failures: {bad}")

    def passed(self, name: str) -> None:
        """Raises: AssertionError with what failed."""
        mine = [check for check in self.checks if check["name"] == name]
        assert mine and all(check["ok"] for check in mine), mine

    def silent(self, name: str, *words: str) -> None:
        """Raises: AssertionError if a failure of `name` holds every word."""
        for check in self.checks:
            text = f"{check['evidence']} -> {check['advice']}"
            assert not (check["name"] == name and not check["ok"] and all(w in text for w in words)), check


def look(box: Box, *words: str, user: str = "root", skip: str = "gpu") -> Found:
    skipped = [word for name in skip.split() for word in ("--skip", name)]
    done = pd_units(box, "preflight", *skipped, "--json", *words, FILE, user=user)
    assert done.rc in (0, 13), (done.rc, done.out, done.err)
    answer = done.json()
    assert answer["exit_code"] == done.rc
    return Found(done.rc, answer["checks"])


@contextlib.contextmanager
def fault(box: Box, make: str, mend: str) -> Iterator[None]:
    """A fault by shell, mended afterwards."""
    box.sh(make)
    try:
        yield
    finally:
        box.sh(mend)


def covered(box: Box, path: str, text: str) -> contextlib.AbstractContextManager[None]:
    """Another text in the place of a file of /proc or /sys."""
    cover = f"{HOUSEHOLD}/{path.strip('/').replace('/', '_')}"
    box.write(cover, text)
    return fault(box, f"mount --bind {cover} {path}", f"umount {path}")


def drop_in(box: Box, folder: str, text: str) -> contextlib.AbstractContextManager[None]:
    path = f"/etc/systemd/system/{folder}/fault.conf"
    box.write(path, f"[Service]\n{text}\n")
    return fault(box, "true", f"rm {path}")


def four_gpus(box: Box, **more: Any) -> str:
    """A topology file with four GPUs on two NUMA nodes."""
    gpus = [
        {
            "index": n,
            "pci_address": f"0000:{0x41 + n:02x}:00.0",
            "numa": n // 2,
            "name": "RTX PRO 6000",
            **more,
        }
        for n in range(4)
    ]
    nodes = [{"id": 0, "cpus": "0"}, {"id": 1, "cpus": "1"}]
    box.write("/opt/topology.json", json.dumps({"gpus": gpus, "numa_nodes": nodes}))
    return "/opt/topology.json"
