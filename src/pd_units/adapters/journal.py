"""The lines of one life of a unit, from the journal. The only module that imports systemd.journal."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pd_units.adapters import journal_files
from pd_units.adapters.splitlines import SplitLines
from pd_units.errors import ExitCode, HostError
from pd_units.ports import JournalLine

_GROUPS = ("systemd-journal", "adm", "wheel")
# sd-messages.h: journald dropped lines of a unit (its rate limit).
_DROPPED = "a596d6fe7bfa4994828e72309e95d61e"
# sd-journal.h; the binding passes flags on, but does not name this one.
_INCLUDE_DEFAULT_NAMESPACE = 1 << 6
# An entry can be compressed; the library's own limit of 64 KiB would cut it without a word.
_LONGEST = 16 << 20
# A file that answers with an error at every entry is given up for a while.
_MOST_ERRORS = 100
_RETRY_S = 1.0
_REFRESH_S = 0.05
_SECOND_LOOK_S = 1.0
_MOST_OPENINGS = 5
# LineMax= of journald.conf(5) below this is not worth a look at every line.
_SPLIT_MIN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Which entries belong to one life of a unit.

    `invocation_id` decides. Some entries lack it (systemd issues 1347, 13708): those are found by the unit
    and the main process's PID, from `since_mono_us` (CLOCK_MONOTONIC of this boot) on. `namespace` is the
    unit's LogNamespace=; PID 1's lines about the unit are in the default one all the same.
    """

    unit: str
    invocation_id: str
    main_pid: int = 0
    since_mono_us: int = 0
    namespace: str = ""


def readable() -> bool:
    """Whether this process may read the system journal; an empty journal is readable.

    Anybody else sees an empty one, without an error.
    """
    if os.geteuid() == 0:
        return True
    files = [file for root in journal_files.STORAGE for file in root.glob("*/system.journal")]
    return not files or any(os.access(file, os.R_OK) for file in files)


def unreadable_error() -> HostError:
    """The error of a journal that this user may not read."""
    return HostError(
        "the journal is not readable for this user",
        detail="systemd shows an empty journal, without an error, to users outside " + ", ".join(_GROUPS),
        hint="run it as root, or: usermod -aG systemd-journal $USER, and log in again",
        exit_code=ExitCode.JOURNAL_UNREADABLE,
    )


def _open_journal(life: Life) -> Any:
    """A reader of the files that can hold entries of `life`, of every file if they cannot be told.

    Raises: OSError.
    """
    from systemd import journal

    for _ in range(_MOST_OPENINGS):
        found = journal_files.listing(life.namespace)
        files = journal_files.files_since(found, life.since_mono_us)
        if not files:
            break
        try:
            reader = journal.Reader(files=files)
        except OSError:
            continue  # one vanished meanwhile, or is damaged: the way below skips it
        if journal_files.listing(life.namespace) == found:
            return reader
        reader.close()  # one was archived meanwhile: under its name lies another now
    options: dict[str, Any] = {"flags": journal.LOCAL_ONLY}
    if life.namespace:
        options["namespace"] = life.namespace
        options["flags"] |= _INCLUDE_DEFAULT_NAMESPACE
    return journal.Reader(**options)


class LifeReader:
    """Reads the entries of one life, by the journal's indexes, from its first entry on.

    `lines()` never blocks and never repeats an entry. It survives rotation, vacuuming, corrupt entries and a
    restarted journald: the journal is then opened again behind the last entry seen. Use it from one thread.
    Only MESSAGE and _PID are read of most entries: a whole entry costs eleven times as much.
    `dropped` counts the lines that journald says it dropped; `gaps` the places where entries are missing or
    unreadable. Source: sd_journal_next(3), sd_journal_seek_cursor(3), sd_journal_add_match(3).
    """

    def __init__(self, life: Life) -> None:
        self.life = life
        self.dropped = 0
        self.gaps = 0
        self._reader: Any = None
        self._cursor: str | None = None
        self._here = False  # positioned on an entry that was not given yet
        self._moved = self._stale = False
        self._pieces = SplitLines()
        self._quiet_until = self._changed_at = self._refresh_at = 0.0
        self._directories = journal_files.changes(life.namespace)
        self._broken = ""
        self._boot = journal_files.boot_id()
        if not self._open():
            raise HostError(
                "cannot open the journal", detail=self._broken, exit_code=ExitCode.JOURNAL_UNREADABLE
            )

    # ------------------------------------------------------------------------------------------ position
    def _open(self) -> bool:
        """Open it behind the last entry seen; whether that worked."""
        self.close()
        try:
            reader = _open_journal(self.life)
            reader.data_threshold = _LONGEST
            self._match(reader)
            self._reader = reader
            self._seek()
        except OSError as error:
            self._broken = error.strerror or str(error)
            self._quiet_until = time.monotonic() + _RETRY_S
            self.close()
            return False
        return True

    def _match(self, reader: Any) -> None:
        life = self.life
        for terms in (
            (f"_SYSTEMD_INVOCATION_ID={life.invocation_id}",),  # what its processes said
            (f"INVOCATION_ID={life.invocation_id}",),  # what PID 1 says about it
            (f"OBJECT_SYSTEMD_INVOCATION_ID={life.invocation_id}", f"MESSAGE_ID={_DROPPED}"),
        ):
            reader.add_match(*terms)
            reader.add_disjunction()
        if life.main_pid:
            reader.add_match(f"_SYSTEMD_UNIT={life.unit}", f"_PID={life.main_pid}")

    def _seek(self) -> None:
        self._here = False
        if self._cursor is None:
            self._reader.seek_head()
            return
        self._reader.seek_cursor(self._cursor)
        self._here = bool(self._reader._next())
        if self._here and self._reader.test_cursor(self._cursor):
            self._here = False
        else:
            self.gaps += 1  # the last entry seen is gone (vacuumed), and perhaps some after it

    def skip_to_last(self, entries: int) -> bool:
        """Go on with the last `entries` entries of the life; whether anything was passed over."""
        reader = self._reader
        if reader is None or self._here or not reader._next():
            return False
        here = reader._get_cursor()
        more = all(reader._next() for _ in range(entries))
        if more:
            reader.seek_tail()
            reader._previous(entries)
        else:
            reader.seek_cursor(here)
            reader._next()
        self._here = True
        return more

    def _note_position(self) -> None:
        if self._here:
            return  # of an entry that was not given yet
        try:
            self._cursor = self._reader._get_cursor()
        except OSError:
            return  # nothing was read yet

    # ---------------------------------------------------------------------------------------- new entries
    def refresh(self) -> None:
        """Take note of new and vanished journal files; call it before each look.

        The library's own way is inotify: its instances are few and shared by a user's programs, and to close
        one costs a process that is about to end tens of milliseconds.
        """
        now = time.monotonic()
        if now < self._refresh_at:
            return
        self._refresh_at = now + _REFRESH_S
        seen = journal_files.changes(self.life.namespace)
        if seen != self._directories:
            self._directories, self._changed_at, self._stale = seen, now, True
        elif self._changed_at and now - self._changed_at >= _SECOND_LOOK_S:
            self._changed_at, self._stale = (
                0.0,
                True,
            )  # a directory's time is coarse: two changes may share it

    def look(self) -> bool:
        """Whether `lines()` has anything to give; costs next to nothing where it has not."""
        if self._reader is None or self._here or self._stale or self._pieces.waiting:
            return True
        try:
            self._here = bool(self._reader._next())
        except OSError:
            return True
        return self._here

    def lines(self, limit: int = 1_000_000, *, final: bool = False) -> Iterator[JournalLine]:
        """The entries that were added since the last call, oldest first, at most `limit`.

        A line that journald has split (LineMax=) is given whole, once its end is there; with `final`, or
        after a second, what there is of it.
        """
        if self._reader is None and (time.monotonic() < self._quiet_until or not self._open()):
            return
        self._moved = False
        try:
            yield from self._entries(limit)
        finally:
            if self._moved and self._reader is not None:
                self._note_position()
        if self._pieces.waiting:
            yield from self._pieces.overdue(time.monotonic(), everything=final)

    def _entries(self, limit: int) -> Iterator[JournalLine]:
        if time.monotonic() < self._quiet_until:
            return
        errors = 0
        for _ in range(limit):
            try:
                if not self._here and not self._reader._next() and not self._next_in_new_files():
                    return
                self._here, self._moved = False, True
                line = self._entry()
            except OSError as error:
                self._here = False
                self.gaps += 1
                errors += 1
                if error.errno not in _CORRUPT or errors >= _MOST_ERRORS:
                    self._quiet_until = time.monotonic() + _RETRY_S
                    self._note_position()
                    self._open()
                    return
                continue
            if line is not None:
                yield line

    def _next_in_new_files(self) -> bool:
        """Go on in the files that are there now, once all was read of those that were; whether there is more.

        What is open can be read to its end, also when it was deleted meanwhile.
        """
        if not self._stale:
            return False
        self._stale = False
        if self._moved:
            self._note_position()
        return self._open() and (self._here or bool(self._reader._next()))

    def _entry(self) -> JournalLine | None:
        """The entry at the present position; None if it is not a line of this life's."""
        reader, life = self._reader, self.life
        pid = _number(self._field("_PID"))
        of_manager = pid == 1
        if pid == life.main_pid and not of_manager:
            invocation = self._field("_SYSTEMD_INVOCATION_ID")
            if invocation != life.invocation_id and (invocation or self._is_older()):
                return None  # of an earlier process with the same PID
        data = self._bytes("MESSAGE")
        if data.startswith(b"Suppressed ") and self._field("MESSAGE_ID") == _DROPPED:
            self.dropped += _number(self._field("N_DROPPED")) or 1
            return None
        text = data.decode("utf-8", "replace")
        realtime = int(reader._get_realtime())
        if len(data) >= _SPLIT_MIN or self._pieces.waiting:
            split = self._field("_LINE_BREAK") == "line-max"
            whole = self._pieces.take(self._field("_STREAM_ID"), text, split, time.monotonic())
            return JournalLine(whole, pid, realtime, of_manager) if whole is not None else None
        return JournalLine(text, pid, realtime, of_manager)

    def _is_older(self) -> bool:
        stamp, boot = self._reader._get_monotonic()
        return boot != self._boot or int(stamp) < self.life.since_mono_us

    def _bytes(self, name: str) -> bytes:
        try:
            value = self._reader._get(name)
        except KeyError:
            return b""
        if isinstance(value, list):
            value = value[0]
        return value if isinstance(value, bytes) else str(value).encode()

    def _field(self, name: str) -> str:
        return self._bytes(name).decode("utf-8", "replace")

    def mono_us(self) -> int:
        """When the entry given last was written: microseconds of CLOCK_MONOTONIC."""
        try:
            return int(self._reader._get_monotonic()[0])
        except (OSError, AttributeError):
            return time.monotonic_ns() // 1000

    def close(self) -> None:
        """Close the journal."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


_CORRUPT = (errno.EBADMSG, errno.EADDRNOTAVAIL, errno.ENODATA, errno.EIO, errno.E2BIG, errno.EPROTONOSUPPORT)


def read_life(life: Life, *, limit: int = 1_000_000) -> list[JournalLine]:
    """Every entry of a life that is in the journal now, oldest first. Raises: HostError 42."""
    reader = LifeReader(life)
    try:
        return list(reader.lines(limit, final=True))
    finally:
        reader.close()


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
