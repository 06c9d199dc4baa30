"""Processes: is it alive, which socket listens on a port and who holds it, when did it start."""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pd_units.adapters import sockdiag

PROC = Path("/proc")
_LISTEN = "0A"
_MAPPED = bytes(10) + b"\xff\xff"


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


def start_mono_us(pid: int) -> int:
    """When a process started, in microseconds of CLOCK_MONOTONIC; 0 if it is gone.

    The kernel counts in ticks (10 ms as a rule), so it may be that much early.
    """
    fields = _stat(pid)
    if not fields:
        return 0
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return int(fields[19]) * 1_000_000 // os.sysconf("SC_CLK_TCK") - asleep_ns // 1000


def defunct_children(pid: int) -> tuple[str, ...]:
    """The names of the children of `pid` that are dead and were not waited for."""
    names = []
    for task in _folders(PROC / str(pid) / "task"):
        for child in " ".join(_lines(task / "children")).split():
            if process_state(int(child)) == "Z":
                names.append(" ".join(_lines(PROC / child / "comm")))
    return tuple(names)


def _folders(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


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


def listeners(pid: int, port: int) -> dict[int, bytes]:
    """TCP sockets that listen on `port` where `pid` lives: inode -> address (4 or 16 bytes)."""
    try:
        if (PROC / str(pid) / "ns/net").stat().st_ino == (PROC / "self/ns/net").stat().st_ino:
            return {inode: _plain(at) for inode, at in sockdiag.listeners(port).items()}
    except OSError:
        pass  # no sock_diag, or no right to see the namespace: the slow way
    found = {}
    for name in ("tcp", "tcp6"):
        for line in _lines(PROC / str(pid) / "net" / name)[1:]:
            fields = line.split()
            address, _, number = fields[1].rpartition(":")
            if fields[3] == _LISTEN and int(number, 16) == port:
                found[int(fields[9])] = _plain(_address(address))
    return found


def _address(text: str) -> bytes:
    """The kernel prints an address as words of 32 bits, each in the machine's byte order."""
    return b"".join(int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))


def _plain(address: bytes) -> bytes:
    """An IPv4 address that is written as an IPv6 one, as IPv4."""
    return address.removeprefix(_MAPPED) if len(address) == 16 else address


def answering(found: Mapping[int, bytes], host: str) -> set[int]:
    """Which of `listeners` gets a connection to the numeric address `host`: the most specific ones.

    All of them if `host` is no numeric address.
    """
    try:
        wanted = ipaddress.ip_address(host).packed
    except ValueError:
        return set(found)
    orders = (wanted, bytes(len(wanted)), bytes(16)) if any(wanted) else (bytes(4), bytes(16))
    for address in orders:
        inodes = {inode for inode, at in found.items() if at == address}
        if inodes:
            return inodes
    return set()


def holds_port(pid: int, port: int, host: str = "") -> bool:
    """Whether who answers at `host`:`port` is `pid`, or a process of its control group, and nobody else.

    Needs the rights to read the processes' descriptors.
    """
    inodes = answering(listeners(pid, port), host)
    if not inodes:
        return False
    inodes -= _socket_inodes(pid)
    for other in control_group_pids(pid) - {pid} if inodes else ():
        inodes -= _socket_inodes(other)
    return not inodes


def port_owner(port: int) -> int | None:
    """The PID of a process that listens on `port`, None if there is none or it cannot be seen."""
    inodes = set(listeners(os.getpid(), port))
    if not inodes:
        return None
    for folder in PROC.iterdir():
        if folder.name.isdigit() and _socket_inodes(int(folder.name)) & inodes:
            return int(folder.name)
    return None


def port_in_use(port: int) -> bool:
    """Whether something listens on TCP `port` in this network namespace."""
    return bool(listeners(os.getpid(), port))


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
