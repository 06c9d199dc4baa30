"""Which process a PID meant: the PID, when that process began, and in which boot."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def process_identity(pid: int) -> str:
    """A text that no other process has, "" if there is no such process. Source: proc(5), stat field 22."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{boot} {pid} {fields[19]}" if fields and fields[0] not in "ZX" else ""


def is_alive(identity: str) -> bool:
    """Whether the process of `process_identity` still runs."""
    words = identity.split()
    return len(words) == 3 and words[1].isdigit() and process_identity(int(words[1])) == identity
