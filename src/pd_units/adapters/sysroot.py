"""Reads below a directory that stands for `/`: this host's, or a recorded copy of its /sys and /proc.

Recordings are rarely whole: files are missing, links are absolute or lead nowhere. An absolute link means a
place in the recording, never one of the host that reads it.
"""

# Paths are text here: thousands are read, and pathlib alone would take most of the time.
# ruff: noqa: PTH112, PTH114, PTH115, PTH208

from __future__ import annotations

import os
from pathlib import Path

_LINKS_MAX = 40
_BYTES_MAX = 1 << 16


class Sysroot:
    """Text and directories below `root`. Paths are relative to it ("sys/devices/system/node"). What is
    not there, or cannot be read (a device that was unplugged a moment ago answers ENODEV), is None or ()."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = os.path.realpath(root)
        self.is_host = self.root == "/"
        self._directories: dict[str, str] = {}
        self._links: dict[str, str | None] = {}

    def text(self, path: str) -> str | None:
        """A file's text without blanks and NULs around it."""
        content = self.content(path)
        return content.decode("utf-8", "replace").strip(" \t\r\n\0") if content is not None else None

    def content(self, path: str) -> bytes | None:
        """A file's bytes, up to a limit that no attribute reaches."""
        try:
            # not to wait for ever at a named pipe
            file = os.open(self._host_path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            content = b""
            while len(content) < _BYTES_MAX and (chunk := os.read(file, _BYTES_MAX)):
                content += chunk
            return content
        except OSError:
            return None
        finally:
            os.close(file)

    def number(self, path: str, base: int = 10) -> int | None:
        """The number that a file holds."""
        return to_number(self.text(path), base)

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a directory, sorted."""
        try:
            return tuple(sorted(os.listdir(self._host_path(path))))
        except OSError:
            return ()

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(self._host_path(path))

    def exists(self, path: str) -> bool:
        """Whether there is anything of that name, be it a link that leads nowhere."""
        directory, _, name = path.rpartition("/")
        return os.path.lexists(self._join(self._directory(directory), name))

    def link(self, path: str) -> str | None:
        """Where a symbolic link points, as it is written; None if it is no link."""
        directory, _, name = path.rpartition("/")
        try:
            return os.readlink(self._join(self._directory(directory), name))
        except OSError:
            return None

    def resolve(self, path: str) -> str:
        """`path` with every link followed inside the root, whether or not the end of it is there."""
        pending = path.split("/")[::-1]
        found: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del found[-1:]
                continue
            found.append(part)
            target = self._readlink("/".join(found))
            if target is None or (links := links + 1) > _LINKS_MAX:
                continue
            found = [] if target.startswith("/") else found[:-1]
            pending += target.split("/")[::-1]
        return "/".join(found)

    def _readlink(self, path: str) -> str | None:
        """A link's target, remembered: most paths begin alike."""
        if path not in self._links:
            try:
                self._links[path] = os.readlink(self._join(path))
            except OSError:
                self._links[path] = None
        return self._links[path]

    def _host_path(self, path: str) -> str:
        """Where a file or directory lies on the reading host."""
        if self.is_host:
            return f"/{path}"
        directory, _, name = path.rpartition("/")
        parent = self._directory(directory)
        whole = self._join(parent, name)
        return self._join(self.resolve(f"{parent}/{name}")) if os.path.islink(whole) else whole

    def _directory(self, path: str) -> str:
        """Resolved directory, remembered: attributes are read by the dozen."""
        if path not in self._directories:
            self._directories[path] = self.resolve(path)
        return self._directories[path]

    def _join(self, directory: str, name: str = "") -> str:
        return "/".join((self.root.rstrip("/"), *filter(None, (directory, name))))


def to_number(text: str | None, base: int = 10) -> int | None:
    """The number of an attribute, None if it is none ("0x10de" and "10de" in base 16)."""
    try:
        return int(text or "", base)
    except ValueError:
        return None
