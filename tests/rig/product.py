"""Wheels of what is under test: pd-units from this tree, and the stub engine in its versions."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rig.images import CACHE, ROOT, SGLANG_VERSIONS, Image, build

sys.path.insert(0, str(ROOT / "tests" / "stub"))
from build import build_wheel


def build_wheels(python: str = sys.executable) -> Path:
    """A folder with fresh wheels; `python` has hatchling. Raises: SystemExit with what the build printed."""
    to = Path(tempfile.mkdtemp(prefix="wheels-", dir=_made(CACHE)))  # its own: others may build other trees
    atexit.register(shutil.rmtree, to, ignore_errors=True)
    argv = [python, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(to)]
    done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pd-units does not build\n{done.stdout}{done.stderr}")
    for version in SGLANG_VERSIONS.values():
        build_wheel(version, to)
    return to


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@functools.cache
def _wheels(python: str) -> Path:
    """Built once a process, so that every image of a run has the same."""
    given = os.environ.get("PD_UNITS_WHEELS")
    return Path(given) if given else build_wheels(python)


def image_for(systemd: int, python: str = sys.executable) -> Image:
    """The image with this tree installed. PD_UNITS_WHEELS names a folder of wheels that are built already."""
    return build(systemd, wheels=_wheels(python), pip=[python, "-m", "pip"])
