"""The version of systemd that is installed under a root, read from its files: no manager need run there."""

from __future__ import annotations

import re
from pathlib import Path

_SHARED = re.compile(r"libsystemd-shared-(\d+)\D.*")
_PLACES = ("usr/lib/systemd", "usr/lib/*/systemd", "usr/lib64/systemd", "lib/systemd", "lib/*/systemd")


def systemd_version(root: Path = Path("/")) -> int | None:
    """Major version such as 252; None where there is no systemd.

    The shared library that systemd's programs are linked with carries it in its name
    (libsystemd-shared-252.so, -257.9-1.fc42.so).
    """
    found = {
        int(match[1])
        for place in _PLACES
        for path in root.glob(f"{place}/libsystemd-shared-*")
        if (match := _SHARED.fullmatch(path.name))
    }
    return max(found, default=None)
