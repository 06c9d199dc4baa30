"""Files written whole or not at all, sets of them together, and the lock on a deployment."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pd_units.errors import Fault, HostError

# A file on its way: `.NAME.XXXXXXXX` beside its place. systemd reads no unit file that begins with a dot.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}")
_TRUSTED_UID = 0


def write_atomic(path: Path, text: str, *, mode: int = 0o644, group: int | None = None) -> None:
    """Replace `path` by a file with `text`: readers see the old file or the new one, also after power loss.

    Raises: HostError 32, naming the file; the old file is then as it was.
    """
    try:
        make_directory(path.parent)
        temporary = _write_beside(path, text, mode=mode, group=group)
        try:
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise write_error(path, error) from error


def _write_beside(path: Path, text: str, *, mode: int, group: int | None = None) -> Path:
    """A new file with `text` beside `path`, on the disk. Raises: OSError; nothing is left then."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            os.fchmod(file.fileno(), mode)
            if group is not None:
                os.fchown(file.fileno(), -1, group)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


@dataclass(frozen=True, slots=True)
class _Moving:
    temporary: Path
    path: Path
    text: str
    before: str | None
    checked: bool


class StagedFiles:
    """Files that are written beside their places first, and then moved into them one after the other.

    Everything that can run out (space, inodes, rights) runs out while nothing has changed yet. A context
    manager: what was not committed is removed at its end.
    """

    def __init__(self) -> None:
        self._moving: list[_Moving] = []

    def __enter__(self) -> StagedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._moving:
            each.temporary.unlink(missing_ok=True)
        self._moving.clear()

    def add(self, path: Path, text: str, *, mode: int = 0o644) -> None:
        """Write a file that is to replace `path`. Raises: HostError 32."""
        self._add(path, text, mode, before=None, checked=False)

    def add_checked(self, path: Path, text: str, *, before: str | None) -> None:
        """As `add`, but the commit refuses to replace anything but `before` (None: nothing) or `text` itself.

        Raises: HostError 32.
        """
        self._add(path, text, 0o644, before=before, checked=True)

    def _add(self, path: Path, text: str, mode: int, *, before: str | None, checked: bool) -> None:
        try:
            make_directory(path.parent)
            temporary = _write_beside(path, text, mode=mode)
        except OSError as error:
            raise write_error(path, error) from error
        self._moving.append(_Moving(temporary, path, text, before, checked))

    def check(self) -> None:
        """Whether every place is still as it was when the change was planned. Raises: HostError 32."""
        for each in self._moving:
            _check(each)

    def commit(self) -> None:
        """Move every file into its place. Raises: HostError 32; those before the one at fault have moved."""
        folders: dict[Path, None] = {}
        while self._moving:
            each = self._moving[0]
            _check(each)
            try:
                each.temporary.replace(each.path)
            except OSError as error:
                raise write_error(each.path, error) from error
            folders[each.path.parent] = None
            self._moving.pop(0)
        for folder in folders:
            try:
                sync_directory(folder)
            except OSError as error:
                raise write_error(folder, error) from error


def _check(moving: _Moving) -> None:
    if not moving.checked:
        return
    path = moving.path
    if path.is_symlink():
        target = str(path.readlink())
        what = "was masked" if target == "/dev/null" else f"became a symbolic link to {target}"
        raise HostError(
            f"{path} {what} meanwhile",
            detail="somebody else is at work on this unit",
            hint=f"systemctl unmask {path.name}" if target == "/dev/null" else "remove it, and try again",
        )
    try:
        now: str | None = path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        now = None
    except OSError as error:
        raise write_error(path, error) from error
    if now not in (moving.before, moving.text):
        raise HostError(
            f"{path} was changed meanwhile",
            detail="somebody else is at work on this unit",
            hint="look at it with `pd-units diff`, and try again",
        )


def make_directory(path: Path, *, mode: int = 0o755) -> None:
    """Make a directory and those above it, with `mode` whatever the umask; nothing if it is there.

    Raises: OSError.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)
        path.chmod(mode)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory survive power loss. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path, wanted: Callable[[str], bool]) -> None:
    """Remove what a killed process left in a directory on its way to a `wanted` name. Raises: HostError 32.

    The caller holds the lock on whoever else writes these names.
    """
    try:
        leftovers = [
            path
            for path in folder.glob(".*")
            if (match := _TEMPORARY.fullmatch(path.name)) and wanted(match["name"])
        ]
        for path in leftovers:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error


def directory_faults(paths: Iterable[Path]) -> tuple[Fault, ...]:
    """Directories of ours that somebody else could change, or in whose place something else is.

    What lies in them is run as root: one that others can write is refused, not repaired.
    """
    faults = []
    for path in paths:
        try:
            info = path.stat()
        except FileNotFoundError:
            if path.is_symlink():
                faults.append(Fault(str(path), "is a symbolic link to nothing", f"rm {path}"))
            continue
        except OSError as error:
            faults.append(Fault(str(path), error.strerror or str(error)))
            continue
        if not stat.S_ISDIR(info.st_mode):
            faults.append(Fault(str(path), "is not a directory", "move it away"))
        elif info.st_uid != _TRUSTED_UID:
            faults.append(
                Fault(str(path), f"belongs to user {info.st_uid}, not to root", f"chown root: {path}")
            )
        elif info.st_mode & 0o022:
            mode = stat.S_IMODE(info.st_mode)
            faults.append(
                Fault(str(path), f"can be written by others (mode {mode:04o})", f"chmod go-w {path}")
            )
    return tuple(faults)


def let_everybody_look(path: Path) -> None:
    """Give a directory of ours back the rights to be read by everybody. Raises: HostError 32."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o755 != 0o755:
            path.chmod(mode | 0o755)
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(path, error) from error


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
        errno.EISDIR: "a directory is in its place: move it away",
        errno.ENOTDIR: "a file is where a directory should be: move it away",
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


def to_json_text(value: dict[str, Any]) -> str:
    """A JSON object as it is kept in a file."""
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def write_json(path: Path, value: dict[str, Any], *, mode: int = 0o644, group: int | None = None) -> None:
    """Write a JSON object atomically. Raises: HostError 32."""
    write_atomic(path, to_json_text(value), mode=mode, group=group)


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock on `path` (flock; it ends with the process). The file is gone afterwards.

    Raises: Busy (HostError 32) if another process holds it for longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    descriptor = _acquire(path, deadline)
    try:
        with contextlib.suppress(OSError):  # a full /run: who waits is not told for whom
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
            make_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # an uninstall has just removed the directory
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


class Busy(HostError):
    """Another pd-units holds the lock of a deployment."""


def _busy(path: Path, holder: str) -> Busy:
    return Busy(
        "another pd-units is at work on this deployment",
        detail=f"{path} is locked by process {holder or '?'}",
        hint="wait for it, or raise --lock-timeout",
    )
