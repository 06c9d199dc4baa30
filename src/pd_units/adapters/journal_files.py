"""Which journal files can hold entries of a life: those archived before it began need not be opened.

A busy host keeps dozens of archived files, and opening each costs a quarter of a millisecond. What a file's
last entry is, stands in its header (https://systemd.io/JOURNAL_FILE_FORMAT): the boot, and CLOCK_MONOTONIC,
so that a wall clock that was set meanwhile changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from pathlib import Path

Listing = dict[str, dict[str, int]]
STORAGE = (Path("/var/log/journal"), Path("/run/log/journal"))
_HEADER_BYTES = 208
_SIGNATURE = b"LPKSHHRH"
_ARCHIVED = 2
_STATE_AT, _BOOT_AT, _TAIL_AT = 16, 56, 200
_GUARD_US = 1_000_000


@functools.cache
def directories(namespace: str) -> tuple[Path, ...]:
    """The directories of this machine's journals: the default ones, and those of `namespace`."""
    machine = machine_id()
    names = (machine, f"{machine}.{namespace}") if namespace else (machine,)
    return tuple(root / name for root in STORAGE for name in names)


def changes(namespace: str) -> tuple[int, ...]:
    """When files were last added to, or taken from, these directories; 0 for one that is not there."""
    return tuple(_changed(folder) for folder in (*STORAGE, *directories(namespace)))


def _changed(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def listing(namespace: str) -> Listing:
    """The journal files in each directory that there is: name -> inode.

    Archiving gives a file another name, and its name to another file: then two listings differ.
    """
    found: Listing = {}
    for folder in directories(namespace):
        try:
            with os.scandir(folder) as entries:
                found[str(folder)] = {each.name: each.inode() for each in entries if _is_journal(each.name)}
        except OSError:
            continue
    return found


def files_since(found: Listing, since_mono_us: int) -> list[str] | None:
    """The files of a listing that can hold an entry written since then (CLOCK_MONOTONIC of this boot).

    None if it cannot be told: then every file is to be read.
    """
    boot = boot_id()
    if not since_mono_us or not boot:
        return None
    files: list[str] = []
    for folder, names in found.items():
        groups: dict[str, list[str]] = {}
        for name in names:
            # NAME@SEQNUM_ID-HEAD_SEQNUM-HEAD_REALTIME.journal: in order, within one NAME and SEQNUM_ID
            groups.setdefault(name.rsplit("-", 2)[0] if _is_archived(name) else name, []).append(name)
        for group in groups.values():
            for name in sorted(group, reverse=True):
                path = f"{folder}/{name}"
                if _is_archived(name) and _ended_before(path, boot, since_mono_us - _GUARD_US):
                    break  # and so did all that were archived before it
                files.append(path)
    return [file for file in files if os.access(file, os.R_OK)]


def _is_journal(name: str) -> bool:
    return name.endswith((".journal", ".journal~"))


def _is_archived(name: str) -> bool:
    return "@" in name and name.endswith(".journal")


def _ended_before(path: str, boot: bytes, mono_us: int) -> bool:
    """Whether a file is archived, and its last entry was written before; False if that cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        header = os.pread(descriptor, _HEADER_BYTES, 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    if len(header) < _HEADER_BYTES or header[:8] != _SIGNATURE or header[_STATE_AT] != _ARCHIVED:
        return False
    (tail_us,) = struct.unpack_from("<Q", header, _TAIL_AT)
    return header[_BOOT_AT : _BOOT_AT + 16] != boot or 0 < tail_us < mono_us


@functools.cache
def machine_id() -> str:
    """This machine's ID, "" if it has none."""
    with contextlib.suppress(OSError):
        return Path("/etc/machine-id").read_text().strip()
    return ""


@functools.cache
def boot_id() -> bytes:
    """This boot's ID, b"" if it cannot be read."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return b""
    return bytes.fromhex(text.strip().replace("-", ""))
