"""Room for what the deployment writes: kernel caches of its users, pd-units' own state."""

from __future__ import annotations

import shutil
from pathlib import Path

from pd_units.naming import STATE_ROOT
from pd_units.plan import UnitPlan
from pd_units.preflight.base import (
    Result,
    Subject,
    account_of,
    bad,
    gib,
    good,
    unreadable_for,
    variable_of,
    warning,
)

_CACHE_BYTES = 10 << 30
_STATE_BYTES = 64 << 20
#: Where caches go if one of these is set: then the home directory is not looked at.
_CACHES = ("TRITON_CACHE_DIR", "XDG_CACHE_HOME", "SGLANG_CACHE_ROOT", "FLASHINFER_WORKSPACE_BASE", "HOME")


def check_disk(subject: Subject) -> Result:
    """The kernel caches have a directory that their user can write, with room; so has pd-units' own state."""
    for user in sorted({unit.user for unit in subject.plan.units}):
        units = [unit for unit in subject.backends if unit.user == user]
        if units and account_of(user) is not None:
            yield from _caches(user, units)
    place = _existing(STATE_ROOT)
    free = shutil.disk_usage(place).free
    if free < _STATE_BYTES:
        yield bad(
            "disk", f"{place} has {gib(free)} free", f"pd-units keeps its state in {STATE_ROOT}: make room"
        )


def _caches(user: str, units: list[UnitPlan]) -> Result:
    account = account_of(user)
    assert account is not None
    named = {where for unit in units for name in _CACHES if (where := variable_of(unit, name))}
    for directory in sorted(named) or [account.pw_dir]:
        path, place = Path(directory), _existing(Path(directory))
        writable = path if path.exists() else place
        advice = "kernel caches of Triton, FlashInfer and CUDA go there"
        if not path.exists() and not named:
            what = f"the home directory {path} of {user} does not exist"
            yield warning("disk", what, f"{advice}: create it, or set XDG_CACHE_HOME and TRITON_CACHE_DIR")
        elif unreadable_for(user, [writable], test="-w"):
            what = f"{writable} cannot be written by {user}"
            yield warning("disk", what, f"{advice}: chown it, or set XDG_CACHE_HOME and TRITON_CACHE_DIR")
        free = shutil.disk_usage(place).free
        if free < _CACHE_BYTES:
            yield warning("disk", f"{place} has {gib(free)} free", f"{advice}: {gib(_CACHE_BYTES)} are safe")
        else:
            yield good("disk", f"{place} has {gib(free)} free")


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())
