"""systemd itself, its journal, the clock, and drop-ins that would undo what pd-units renders."""

from __future__ import annotations

import ctypes
import datetime
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from pd_units.adapters import journal
from pd_units.preflight.base import Result, Subject, bad, good, lines_of, warning
from pd_units.preflight.drop_ins import Override, check_lines, overrides_of

_PACKAGE = Path(__file__).resolve().parents[1]
_OLDEST_SYSTEMD = 249
#: No host that runs this was set up before it was written.
_OLDEST_YEAR = 2025
_STA_UNSYNC, _STATUS_OFFSET = 0x40, 40  # struct timex of 64-bit Linux, adjtimex(2)
_STORAGE = (Path("/var/log/journal"), Path("/run/log/journal"))
_CONFIGURATION = ("/usr/lib", "/usr/local/lib", "/run", "/etc")


def check_systemd(subject: Subject) -> Result:
    """systemd answers and is new enough; clock, drop-ins and pd-units' own files are sane."""
    if subject.manager is None:
        advice = "boot this host with systemd and dbus"
        yield bad("systemd", "systemd does not answer on the system bus", advice)
    else:
        version = subject.manager.version()
        if version < _OLDEST_SYSTEMD:
            yield bad("systemd", f"systemd {version}", f"systemd {_OLDEST_SYSTEMD} or newer is needed")
        else:
            yield good("systemd", f"systemd {version} answers")
    yield from check_own_code()
    yield from check_clock()
    yield from check_overrides(overrides_of(subject), "systemd")
    yield from check_lines(subject)


def check_overrides(found: Iterable[Override], name: str) -> Result:
    """One failure for each drop-in directive that belongs to the check `name`."""
    for override in found:
        if override.rule.check == name:
            make = bad if override.rule.fatal else warning
            yield make(name, override.evidence, override.rule.advice)


def check_own_code(python: str = sys.executable) -> Result:
    """The watcher runs as root: nobody else may be able to write its interpreter or package."""
    for path in (Path(python), _PACKAGE):
        writable = writable_by_others(path)
        if writable:
            yield bad(
                "systemd",
                f"{writable} can be written by others than root, and the watchers run it as root",
                "install pd-units where only root can write, for example under /opt/pd-units",
            )


def writable_by_others(path: Path) -> str:
    """The first of `path`, its links' targets and their parents that others than root can write; ""."""
    for start in (path, path.resolve()):
        for place in (start, *start.parents):
            try:
                info = place.lstat()
            except OSError:
                continue
            if stat.S_ISLNK(info.st_mode):
                continue
            sticky_dir = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX
            if info.st_uid != 0 or (info.st_mode & 0o022 and not sticky_dir):
                return str(place)
    return ""


def check_clock() -> Result:
    """The year can be right, and the kernel holds the clock for synchronised."""
    year = datetime.datetime.now(tz=datetime.UTC).year
    if year < _OLDEST_YEAR:
        evidence = f"the clock says the year {year}: certificates fail, and no log or generation has its time"
        yield bad("systemd", evidence, "set it (timedatectl set-time), and run chrony or systemd-timesyncd")
        return
    synchronised = clock_synchronised()
    if synchronised is False:
        advice = "run chrony or systemd-timesyncd: a clock that jumps spoils times and TLS"
        yield warning("systemd", "the clock is not synchronised", advice)
    else:
        state = "synchronised" if synchronised else "not seen whether it is synchronised"
        yield good("systemd", f"the clock says {year}, {state}")


def clock_synchronised() -> bool | None:
    """Whether the kernel's clock is kept by somebody; None where it cannot be asked. Source: adjtimex(2)."""
    buffer = ctypes.create_string_buffer(512)
    if sys.maxsize < 2**32 or ctypes.CDLL(None).adjtimex(buffer) < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
    return not status & _STA_UNSYNC


def check_journal(subject: Subject) -> Result:
    """There is a journal to watch, it survives a reboot, and this user may read it."""
    storage, source = configured_storage()
    kept = next((place for place in _STORAGE if any(place.glob("*/*.journal"))), None)
    closed = kept is None and not subject.root and any(any(place.glob("*")) for place in _STORAGE)
    if storage == "none":
        yield bad(
            "journal",
            f"Storage=none in {source}: nothing is kept, and readiness is read from the journal",
            "Storage=persistent there, then: systemctl restart systemd-journald",
        )
    elif kept is None and journal.readable() and not closed:
        advice = "is systemd-journald running? Storage= in journald.conf must not be none"
        yield bad("journal", "no journal on this host", advice)
    elif closed or not journal.readable():
        advice = "join the group systemd-journal, or use sudo: causes and evidence are read from it"
        yield warning("journal", "not readable for this user", advice)
    else:
        forgets = kept == _STORAGE[1]
        lasts = ", forgotten at a reboot (Storage=persistent keeps it)" if forgets else ""
        yield good("journal", f"kept in {kept}{lasts}")


def configured_storage() -> tuple[str, str]:
    """(Storage= of journald.conf, the file that says it): later files win, /etc over /run over /usr."""
    files: dict[str, Path] = {}
    for root in _CONFIGURATION:
        for path in sorted(Path(root, "systemd/journald.conf.d").glob("*.conf")):
            files[path.name] = path
    main = next(
        (p for r in reversed(_CONFIGURATION) if (p := Path(r, "systemd/journald.conf")).exists()), None
    )
    found = ("auto", "")
    for path in ([main] if main else []) + [files[name] for name in sorted(files)]:
        for line in lines_of(path):
            key, equals, value = line.partition("=")
            if equals and key.strip() == "Storage" and value.strip():
                found = (value.strip(), str(path))
    return found
