"""Processes: is it alive, which socket listens on a port and who holds it, when did it start."""

from __future__ import annotations

import os
import signal
from pathlib import Path

PROC = Path("/proc")
_LISTEN = "0A"


class ProcessHandle:
    """A process held by a pidfd: a PID that is used again is never mistaken for it.

    Raises: ProcessLookupError if there is no such process. Source: pidfd_open(2).
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self._descriptor

    def alive(self) -> bool:
        """Whether it runs; a zombie does not."""
        try:
            signal.pidfd_send_signal(self._descriptor, 0)
        except ProcessLookupError:
            return False
        return process_state(self.pid) not in {"Z", "X", ""}

    def kill(self) -> None:
        """SIGKILL it; nothing if it is gone."""
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return


def process_state(pid: int) -> str:
    """The state letter of /proc/PID/stat, "" if there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def start_time_us(pid: int, *, wall_s: float) -> int:
    """When a process started, in microseconds of the wall clock whose reading now is `wall_s`; 0 if gone."""
    fields = _stat(pid)
    if not fields:
        return 0
    uptime_s = float((PROC / "uptime").read_text().split()[0])
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return int((wall_s - uptime_s + started_s) * 1e6) - 1_000_000


def _stat(pid: int) -> list[str]:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def control_group_pids(pid: int) -> set[int]:
    """The PIDs in the control group of `pid` and below it, with `pid`."""
    pids = {pid}
    for line in _lines(PROC / str(pid) / "cgroup"):
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" or controllers == "name=systemd":
            for root in (
                Path("/sys/fs/cgroup"),
                Path("/sys/fs/cgroup/unified"),
                Path("/sys/fs/cgroup/systemd"),
            ):
                folder = root / path.lstrip("/")
                for file in folder.rglob("cgroup.procs") if path != "/" and folder.is_dir() else ():
                    pids.update(int(entry) for entry in _lines(file))
    return pids


def listening_inodes(pid: int, port: int) -> set[int]:
    """The inodes of TCP sockets that listen on `port` in the network namespace of `pid`."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in _lines(PROC / str(pid) / "net" / name)[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(int(fields[9]))
    return inodes


def holds_port(pid: int, port: int) -> bool:
    """Whether a listening socket on `port` belongs to `pid` or to a process of its control group.

    Needs the rights to read the processes' descriptors.
    """
    inodes = listening_inodes(pid, port)
    if not inodes:
        return False
    if _socket_inodes(pid) & inodes:
        return True
    return any(_socket_inodes(other) & inodes for other in control_group_pids(pid) - {pid})


def port_owner(port: int) -> int | None:
    """The PID of a process that listens on `port`, None if there is none or it cannot be seen."""
    inodes = listening_inodes(os.getpid(), port)
    if not inodes:
        return None
    for folder in PROC.iterdir():
        if folder.name.isdigit() and _socket_inodes(int(folder.name)) & inodes:
            return int(folder.name)
    return None


def port_in_use(port: int) -> bool:
    """Whether something listens on TCP `port` in this network namespace."""
    return bool(listening_inodes(os.getpid(), port))


def command_line(pid: int) -> tuple[str, ...]:
    """The argv of a process, () if it is gone or not readable."""
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode("utf-8", "replace") for part in data.split(b"\0")[:-1])


def unit_of(pid: int) -> str:
    """The systemd unit of a process, from its control group; "" if it has none."""
    for line in _lines(PROC / str(pid) / "cgroup"):
        for part in reversed(line.split(":", 2)[2].split("/")):
            if part.endswith((".service", ".scope")):
                return part
    return ""


def _socket_inodes(pid: int) -> set[int]:
    inodes: set[int] = set()
    try:
        entries = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return inodes
    for entry in entries:
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(int(target[8:-1]))
    return inodes


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
