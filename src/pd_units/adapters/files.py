"""Files written whole or not at all, and the lock on a deployment."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pd_units.errors import HostError


def write_atomic(path: Path, text: str, *, mode: int = 0o644, group: int | None = None) -> None:
    """Replace `path` by a file with `text`: readers see the old file or the new one, also after power loss.

    Raises: HostError 32, naming the file; the old file is then as it was.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                os.fchmod(file.fileno(), mode)
                if group is not None:
                    os.fchown(file.fileno(), -1, group)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise write_error(path, error) from error


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> bool:
    """Remove a file; whether it was there. Raises: HostError 32."""
    try:
        path.unlink()
        sync_directory(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise write_error(path, error) from error
    return True


def write_error(path: Path, error: OSError) -> HostError:
    """The error of a failed write, with what to do."""
    hints = {
        errno.ENOSPC: "free some space on that file system",
        errno.EDQUOT: "free some space on that file system",
        errno.EROFS: "that file system is read-only: remount it, or find out why",
        errno.EACCES: "run it as root",
        errno.EPERM: "run it as root; chattr -i, if the file is immutable",
    }
    return HostError(
        f"cannot write {path}", detail=error.strerror or str(error), hint=hints.get(error.errno or 0, "")
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if the file is missing, unreadable or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: dict[str, Any], *, mode: int = 0o644, group: int | None = None) -> None:
    """Write a JSON object atomically. Raises: HostError 32."""
    write_atomic(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n", mode=mode, group=group)


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock on `path` (flock; it ends with the process). The file is gone afterwards.

    Raises: HostError 32 if another process holds it for longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    descriptor = _acquire(path, deadline)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, deadline: float) -> int:
    """A descriptor that holds the lock on the file that is at `path` now."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise write_error(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            if time.monotonic() >= deadline:
                raise _busy(path, holder) from None
            time.sleep(0.05)  # flock has no time-out of its own: this is the poll
            continue
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # the holder before us has removed this file


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _busy(path: Path, holder: str) -> HostError:
    return HostError(
        "another pd-units is at work on this deployment",
        detail=f"{path} is locked by process {holder or '?'}",
        hint="wait for it, or raise --lock-timeout",
    )
