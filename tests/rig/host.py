"""What the rig needs from the machine it runs on: packages and a Debian mirror."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DEFAULT_MIRROR = "http://deb.debian.org/debian"
# What is missing without the package: a command on PATH, a Python module of the system's python3, or a file.
NEEDS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-container": "systemd-nspawn",
    "util-linux": "nsenter",
    "mount": "mount",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "python3-venv": "import ensurepip, venv",
    "python3-gi": "import gi",
    "python3-pydbus": "import pydbus",
    "python3-systemd": "import systemd.journal",
}
# The two-NUMA-node machine of tests/numa needs these as well.
MACHINE_NEEDS = {"qemu-system-x86": "qemu-system-x86_64", "e2fsprogs": "mke2fs"}
SYSTEM_PYTHON = "/usr/bin/python3"  # the one that the distribution's python3-* packages serve


def _present(probe: str) -> bool:
    if probe.startswith("import "):
        return subprocess.run([SYSTEM_PYTHON, "-c", probe], capture_output=True).returncode == 0
    return Path(probe).exists() if probe.startswith("/") else shutil.which(probe) is not None


def missing_packages(needs: Mapping[str, str] = NEEDS) -> list[str]:
    """Packages of `needs` that are not here."""
    return [package for package, probe in needs.items() if not _present(probe)]


def install_missing_packages(needs: Mapping[str, str] = NEEDS) -> None:
    """Installs by apt what is missing, and says so. Raises: CalledProcessError, or SystemExit without apt."""
    missing = missing_packages(needs)
    if not missing:
        return
    if shutil.which("apt-get") is None:
        names = " ".join(missing)
        raise SystemExit(f"needed and not here: {names} (no apt-get: install them by hand)")
    print(f"installing with apt-get: {' '.join(missing)}", file=sys.stderr, flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        subprocess.run(["apt-get", "-qq", *words], stdout=subprocess.DEVNULL, env=env, check=True)


def debian_mirror() -> str:
    """The mirror that this host's own apt uses for Debian, or the public one (on Ubuntu, say)."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(SITE)"], capture_output=True, encoding="utf-8"
    )
    for line in done.stdout.splitlines():
        origin, _, site = line.partition(" ")
        if origin == "Debian" and site.rstrip("/").endswith("/debian"):
            return site
    return DEFAULT_MIRROR
