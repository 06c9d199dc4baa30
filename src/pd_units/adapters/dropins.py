"""Drop-ins of a unit, as systemd would find them on disk now, whether or not it has read them yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pd_units.naming import under

# Where system units' drop-ins lie, the strongest first. Source: systemd.unit(5), systemd 252.
_PLACES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator.late",
)


@dataclass(frozen=True, slots=True)
class DropIn:
    """One drop-in: its path, and its text (None where this user may not read it)."""

    path: str
    text: str | None


def find_drop_ins(unit: str, root: Path = Path("/")) -> tuple[DropIn, ...]:
    """The drop-ins in effect, in the order in which systemd applies them.

    Of files with the same name the one in the strongest place holds; one that is a link to /dev/null takes
    its namesakes away. They apply in the order of their names, whichever directory they lie in.
    """
    found: dict[str, Path] = {}
    for folder in _folders(unit):
        for place in _PLACES:
            directory = under(root, Path(place)) / folder
            for path in sorted(directory.glob("*.conf")) if directory.is_dir() else ():
                found.setdefault(path.name, path)
    drop_ins = []
    for name in sorted(found):
        drop_in = _read(found[name], root)
        if drop_in is not None:
            drop_ins.append(drop_in)
    return tuple(drop_ins)


def _folders(unit: str) -> tuple[str, ...]:
    """Directory names, the most specific first: for a-b.service a-b.service.d, a-.service.d, service.d."""
    stem, _, suffix = unit.rpartition(".")
    names = [f"{stem}.{suffix}.d"]
    parts = stem.split("-")
    names += [f"{'-'.join(parts[:count])}-.{suffix}.d" for count in range(len(parts) - 1, 0, -1)]
    return (*names, f"{suffix}.d")


def _read(path: Path, root: Path) -> DropIn | None:
    shown = "/" + str(path.relative_to(root))
    try:
        if path.is_symlink() and path.readlink() == Path("/dev/null"):
            return None
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError:
        return DropIn(shown, None)
    return DropIn(shown, text)


def unread_drop_ins(read: Iterable[str], found: Iterable[DropIn]) -> tuple[str, ...]:
    """Drop-ins that came or went since the manager read those of `read` (DropInPaths).

    The manager's own NeedDaemonReload does not see a drop-in in a directory that is new.
    """
    known = tuple(read)
    names = {Path(path).name for path in known}
    come = [each.path for each in found if each.path not in known and Path(each.path).name not in names]
    gone = [path for path in known if not (Path(path).exists() or Path(path).is_symlink())]
    return (*come, *gone)
