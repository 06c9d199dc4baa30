"""Runs pd-units inside a box and strikes at one of its steps: SIGKILL, an error, or a command of somebody
else.

    strike.py --list FILE -- install ...              run it whole; FILE gets one line a point
    strike.py --at POINT --how kill -- install ...    as above, but struck at that point
    strike.py --at POINT --how enospc|erofs -- ...    the call fails with that error
    strike.py --at POINT --how 'sh:COMMAND' -- ...    COMMAND runs first, then the call goes on

A point lies before and after each call that changes something: a file opened for writing, fsync, rename,
unlink, mkdir, rmdir, chmod, a process started, and each D-Bus call that asks systemd for a change; and one
before each wait.
Its name is that of the call, without what differs from run to run, and a number where there are several
alike: "before rename to /etc/systemd/system/a.service", "before a wait (3)".
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = (
    "EnableUnitFiles",
    "DisableUnitFiles",
    "Reload",
    "StartUnit",
    "StopUnit",
    "RestartUnit",
    "ResetFailedUnit",
)
ERRORS = {"enospc": errno.ENOSPC, "erofs": errno.EROFS}


class Points:
    """Counts points, and strikes at one."""

    def __init__(self, at: str, how: str, listing: str) -> None:
        self.at, self.how, self.listing = at, how, listing
        self.seen: Counter[str] = Counter()
        self.quiet = False

    def reach(self, name: str, *, can_fail: bool = False) -> None:
        if self.quiet:
            return
        name = re.sub(r"\.[0-9a-f]{8}\b", ".X", re.sub(r"generations/\d+", "generations/N", name))
        self.seen[name] += 1
        if self.seen[name] > 1:
            name = f"{name} ({self.seen[name]})"
        if self.listing:
            with Path(self.listing).open("a") as file:
                file.write(name + "\n")
        if name != self.at:
            return
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how.startswith("sh:"):
            self.quiet = True
            subprocess.run(["sh", "-c", self.how[3:]], check=False, stdout=sys.stderr)
            self.quiet = False
        elif can_fail:
            code = ERRORS[self.how]
            raise OSError(code, os.strerror(code))


def wrap(
    owner: Any, attribute: str, points: Points, name: Callable[..., str | None], *, can_fail: bool
) -> None:
    """Puts a point before and after each call that `name` names."""
    real = getattr(owner, attribute)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        said = name(*args, **kwargs)
        if said is None:
            return real(*args, **kwargs)
        points.reach(f"before {said}", can_fail=can_fail)
        answer = real(*args, **kwargs)
        points.reach(f"after {said}")
        return answer

    setattr(owner, attribute, wrapped)


def opened(path: Any, flags: int, *_: Any, **__: Any) -> str | None:
    return (
        f"open {path}"
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path)[:5] != "/dev/"
        else None
    )


def arrange(points: Points) -> None:
    """Wraps everything; imports pd_units only here, after the standard library is wrapped."""
    wrap(os, "open", points, opened, can_fail=True)
    wrap(os, "fsync", points, lambda fd: f"fsync {Path(f'/proc/self/fd/{fd}').readlink()}", can_fail=True)
    wrap(os, "replace", points, lambda _source, to, **_: f"rename to {to}", can_fail=True)
    for call in ("unlink", "mkdir", "rmdir", "chmod"):
        wrap(os, call, points, lambda path, *_, call=call, **__: f"{call} {path}", can_fail=call == "mkdir")
    from pd_units.adapters import dbus, host

    def asked(_self: Any, _path: str, _interface: str, method: str, args: Any = None, **_: Any) -> str | None:
        return f"{method} {args.unpack() if args is not None else ''}" if method in CHANGES else None

    wrap(dbus.SystemdManager, "_call", points, asked, can_fail=False)
    wrap(host, "verify_units", points, lambda *_: "systemd-analyze verify", can_fail=False)
    real_pump = dbus.SystemdManager.pump

    def pump(self: Any, timeout_s: float) -> None:
        points.reach("before a wait")
        real_pump(self, timeout_s)

    dbus.SystemdManager.pump = pump  # type: ignore[method-assign]


def main(words: list[str]) -> int:
    cut = words.index("--")
    options = dict(zip(words[:cut:2], words[1:cut:2], strict=True))
    points = Points(options.get("--at", ""), options.get("--how", ""), options.get("--list", ""))
    arrange(points)
    from pd_units.cli import run

    return run(words[cut + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
