"""The lines of one life of a unit, from the journal. The only module that imports systemd.journal."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pd_units.errors import ExitCode, HostError
from pd_units.ports import JournalLine

_CORRUPT = (errno.EBADMSG, errno.EADDRNOTAVAIL, errno.ENODATA, errno.EIO)
_STORAGE = (Path("/var/log/journal"), Path("/run/log/journal"))
_GROUPS = ("systemd-journal", "adm", "wheel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Which entries belong to one life of a unit.

    `invocation_id` decides. Some entries lack it (systemd issues 1347, 13708): those are found by the unit
    and the main process's PID, from `since_us` (wall clock, microseconds) on.
    """

    unit: str
    invocation_id: str
    main_pid: int = 0
    since_us: int = 0


def readable() -> bool:
    """Whether this process may read the system journal. Anybody else sees an empty one, without an error."""
    if os.geteuid() == 0:
        return True
    for root in _STORAGE:
        for file in root.glob("*/system.journal"):
            if os.access(file, os.R_OK):
                return True
    return False


def unreadable_error() -> HostError:
    """The error of a journal that this user may not read."""
    return HostError(
        "the journal is not readable for this user",
        detail="systemd shows an empty journal, without an error, to users outside " + ", ".join(_GROUPS),
        hint="run it as root, or: usermod -aG systemd-journal $USER, and log in again",
        exit_code=ExitCode.JOURNAL_UNREADABLE,
    )


class LifeReader:
    """Reads the entries of one life, by the journal's indexes, from its first entry on.

    `lines()` never blocks and never repeats an entry; it survives rotation, vacuuming, corrupt entries and
    a restarted journald by opening the journal again at the last entry seen. Use it from one thread.
    Only MESSAGE and two other fields are read of each entry: a whole entry costs eleven times as much.
    Source: sd_journal_wait(3), sd_journal_add_match(3).
    """

    def __init__(self, life: Life, *, namespace: str | None = None) -> None:
        self._life = life
        self._namespace = namespace
        self._reader: Any = None
        self._cursor: str | None = None
        self._last_us = 0
        self.lost = False
        self._open()

    def _open(self) -> None:
        from systemd import journal

        self.close()
        options: dict[str, Any] = {"namespace": self._namespace} if self._namespace else {}
        try:
            reader = journal.Reader(**options)
            for field in ("_SYSTEMD_INVOCATION_ID", "INVOCATION_ID"):
                reader.add_match(f"{field}={self._life.invocation_id}")
                reader.add_disjunction()
            if self._life.main_pid:
                reader.add_match(f"_SYSTEMD_UNIT={self._life.unit}", f"_PID={self._life.main_pid}")
            self._reader = reader
            self._seek()
        except OSError as error:
            raise HostError(
                "cannot open the journal",
                detail=error.strerror or str(error),
                exit_code=ExitCode.JOURNAL_UNREADABLE,
            ) from error

    def _seek(self) -> None:
        if self._cursor is None:
            self._reader.seek_head()
            return
        self._reader.seek_cursor(self._cursor)
        if self._reader._next() and not self._reader.test_cursor(self._cursor):
            # The last entry seen is gone (vacuumed): go on after its time, and say that lines may be lost.
            self.lost = True
            self._reader.seek_realtime((self._last_us + 1) / 1e6)

    def fileno(self) -> int:
        """A descriptor that becomes readable when the journal changes (up to 250 ms late)."""
        return int(self._reader.fileno())

    def lines(self, limit: int = 10_000) -> Iterator[JournalLine]:
        """The entries that were added since the last call, oldest first, at most `limit`."""
        for _ in range(limit):
            try:
                if not self._reader._next():
                    return
                line = self._entry()
            except OSError as error:
                if error.errno not in _CORRUPT:
                    self._open()
                    return
                self.lost = True
                continue
            if line is not None:
                yield line

    def _entry(self) -> JournalLine | None:
        reader = self._reader
        realtime = int(reader._get_realtime())
        self._last_us = realtime
        self._cursor = reader._get_cursor()
        invocation = self._field("_SYSTEMD_INVOCATION_ID")
        of_manager = self._field("_PID") == "1"
        if not invocation and not of_manager and realtime < self._life.since_us:
            return None  # an earlier process with the same PID
        if invocation and invocation != self._life.invocation_id and not of_manager:
            return None
        pid = self._field("_PID")
        text = self._field("MESSAGE")
        return JournalLine(text, int(pid) if pid.isdigit() else 0, realtime, of_manager)

    def _field(self, name: str) -> str:
        try:
            value = self._reader._get(name)
        except KeyError:
            return ""
        if isinstance(value, list):
            value = value[0]
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def process(self) -> None:
        """Take note of new and vanished journal files; open the journal again if entries may be missing."""
        from systemd import journal

        try:
            if self._reader.process() == journal.INVALIDATE:
                self._open()
        except OSError:
            self._open()

    def close(self) -> None:
        """Close the journal."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def read_life(life: Life, *, limit: int = 1_000_000) -> list[JournalLine]:
    """Every entry of a life that is in the journal now, oldest first. Raises: HostError 42."""
    reader = LifeReader(life)
    try:
        return list(reader.lines(limit))
    finally:
        reader.close()
