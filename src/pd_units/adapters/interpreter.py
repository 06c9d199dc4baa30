"""The interpreter that runs pd-units, by one name however it was called: it stands in unit files."""

from __future__ import annotations

import sys
from pathlib import Path


def own_python() -> str:
    """The path of this interpreter; `bin/python3` of its environment where that is the same one."""
    usual = Path(sys.prefix) / "bin" / "python3"
    try:
        if usual.samefile(sys.executable):
            return str(usual)
    except OSError:
        pass
    return sys.executable
