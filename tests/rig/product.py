"""Wheels of what is under test: pd-units from this tree, and the stub engine in its versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rig.images import CACHE, ROOT, SGLANG_VERSIONS, Image, build, locked

sys.path.insert(0, str(ROOT / "tests" / "stub"))
from build import build_wheel


def build_wheels(python: str = sys.executable) -> Path:
    """A folder with fresh wheels; `python` has hatchling. Raises: SystemExit with what the build printed."""
    to = CACHE / "wheels"
    with locked("wheels"):
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        argv = [python, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(to)]
        done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"pd-units does not build\n{done.stdout}{done.stderr}")
        for version in SGLANG_VERSIONS.values():
            build_wheel(version, to)
    return to


def image_for(systemd: int, python: str = sys.executable) -> Image:
    """The image with this tree installed. PD_UNITS_WHEELS names a folder of wheels that are built already."""
    given = os.environ.get("PD_UNITS_WHEELS")
    wheels = Path(given) if given else build_wheels(python)
    return build(systemd, wheels=wheels, pip=[python, "-m", "pip"])
