"""What kernel and file systems allow: locked memory, open files, shared memory, an executable /tmp."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from pd_units.plan import UnitPlan
from pd_units.preflight.base import Result, Subject, gib, good, text_of, variable_of, warning
from pd_units.preflight.drop_ins import overrides_of
from pd_units.preflight.system import check_overrides

_OPEN_FILES = 1_048_576  # LimitNOFILE= of the units
_ENOUGH_OPEN_FILES = 65_536
_SHM = Path("/dev/shm")
_SHM_BYTES = 1 << 30
_CAP_SYS_RESOURCE = 24


def check_limits(subject: Subject) -> Result:
    """Locked memory, open files, /dev/shm and /tmp are what engines need; no drop-in lowers them."""
    before = 0
    for result in (*_open_files(), *_locked_memory(), *_shared_memory(), *_temporary(subject)):
        before += not result.ok
        yield result
    for result in check_overrides(overrides_of(subject), "limits"):
        before += not result.ok
        yield result
    if not before:
        yield good(
            "limits", f"open files up to {_nr_open():,}, /dev/shm {gib(_shm_bytes())}, /tmp executable"
        )


def _nr_open() -> int:
    text = text_of(Path("/proc/sys/fs/nr_open"))
    return int(text) if text.isdecimal() else _OPEN_FILES


def _open_files() -> Result:
    kernel = _nr_open()
    if kernel < _OPEN_FILES:
        enough = "the units ask for more and get that"
        text = f"fs.nr_open is {kernel:,}: {enough}"
        if kernel < _ENOUGH_OPEN_FILES:
            yield warning(
                "limits", text, f"sysctl -w fs.nr_open={_OPEN_FILES}, and in /etc/sysctl.d to keep it"
            )


def _locked_memory() -> Result:
    """The units ask for unlimited locked memory; systemd can give it only if it may raise limits itself."""
    match = re.search(r"^Max locked memory\s+\S+\s+(\S+)", text_of(Path("/proc/1/limits")), re.M)
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", text_of(Path("/proc/1/status")), re.M)
    if match is None or capabilities is None or match[1] == "unlimited":
        return
    if not int(capabilities[1], 16) >> _CAP_SYS_RESOURCE & 1:
        size = gib(int(match[1])) if match[1].isdecimal() else match[1]
        advice = "in a container: --ulimit memlock=-1 and CAP_SYS_RESOURCE; RDMA and pinned memory need it"
        yield warning("limits", f"systemd may lock no more than {size} here, nor raise that", advice)


def _shm_bytes() -> int:
    return shutil.disk_usage(_SHM).total if _SHM.is_dir() else 0


def _shared_memory() -> Result:
    size = _shm_bytes()
    if size < _SHM_BYTES:
        advice = "mount -o remount,size=50% /dev/shm: NCCL and the engine's loaders use it"
        yield warning("limits", f"/dev/shm holds {gib(size)}", advice)
        return
    free = shutil.disk_usage(_SHM).free
    if free < _SHM_BYTES // 2:
        advice = "remove what was left there: ls -l /dev/shm"
        yield warning("limits", f"/dev/shm has {gib(free)} of {gib(size)} free", advice)


def _temporary(subject: Subject) -> Result:
    """The engine runs a script that it writes there; Inductor loads libraries from there."""
    for directory in sorted({_directory(unit) for unit in subject.backends}):
        path = Path(directory)
        if not path.is_dir():
            yield warning(
                "limits", f"{directory} does not exist", "create it, or take TMPDIR out of the environment"
            )
        elif os.statvfs(path).f_flag & os.ST_NOEXEC:
            advice = (
                "mount -o remount,exec it, or set TMPDIR in [engine.environment] to a directory that is not"
            )
            yield warning(
                "limits", f"{directory} is mounted noexec, and the engine runs code from there", advice
            )


def _directory(unit: UnitPlan) -> str:
    return variable_of(unit, "TMPDIR") or "/tmp"
