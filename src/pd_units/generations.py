"""What was installed when, and what came of it: `/var/lib/pd-units/NAME/generations/N/`.

A generation holds the deployment file, the units and the index as installed, and its outcome. It is *good* if
it became ready and no unit of it died within the first minute after that. Rollback goes to a good one.
Everybody may read what came of it; the deployment file and the log lines of a failure are for root.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pd_units import SCHEMA
from pd_units.adapters.files import make_directory, read_json, write_atomic, write_error, write_json
from pd_units.errors import HostError
from pd_units.index import Index, current_generation, index_from_json, index_to_json
from pd_units.manifest import digest, require_known_schema
from pd_units.naming import Names, Role
from pd_units.rendered import RenderedUnit

# A life that ends by itself within this time after it was ready makes its generation unstable.
STABLE_S = 60.0
_KEPT = 10


class Result(StrEnum):
    """What came of an install."""

    INTERRUPTED = "interrupted"
    INSTALLED = "installed"
    READY = "ready"
    FAILED = "failed"
    NOT_READY = "not-ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation. Times are seconds since the epoch; `content` is a digest of its units' texts.

    `replaces` is what was installed before it; `left` is when a rollback went away from it.
    """

    number: int
    began: float
    result: Result
    content: str
    ended: float | None = None
    left: float | None = None
    replaces: int = 0
    message: str = ""
    changes: tuple[str, ...] = ()
    seconds_to_ready: float | None = None
    rolled_back: bool = False
    failed_units: tuple[Mapping[str, Any], ...] = ()
    crashes: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def good(self) -> bool:
        """Whether it is worth going back to."""
        return self.result is Result.READY and not self.crashes

    def to_json(self, *, current: bool) -> dict[str, Any]:
        """The object of `history`."""
        return {
            "generation": self.number,
            "current": current,
            "began": iso(self.began),
            "ended": iso(self.ended) if self.ended is not None else None,
            "result": str(self.result),
            "good": self.good,
            "rolled_back": self.rolled_back,
            "seconds_to_ready": self.seconds_to_ready,
            "message": self.message,
            "changes": list(self.changes),
            "failed_units": [dict(unit) for unit in self.failed_units],
            "crashes": [dict(crash) for crash in self.crashes],
        }


def iso(seconds: float) -> str:
    """A moment as text, in UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def generations_dir(names: Names) -> Path:
    """Where a deployment's generations lie."""
    return names.state_dir / "generations"


def numbers(names: Names) -> tuple[int, ...]:
    """The generations kept, oldest first; none for a user who may not look."""
    folder = generations_dir(names)
    try:
        return tuple(sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()))
    except OSError:
        return ()


def content_digest(units: Iterable[RenderedUnit]) -> str:
    """A digest of what would be installed."""
    joined = "\0".join(f"{unit.name}\0{unit.text}" for unit in sorted(units, key=lambda each: each.name))
    return hashlib.sha256(joined.encode()).hexdigest()


def write_generation(
    names: Names,
    index: Index,
    text: str,
    units: Iterable[RenderedUnit],
    changes: Iterable[str],
    *,
    wall: float,
) -> None:
    """Keep what is about to be installed, as interrupted until it ended.

    Raises: HostError 32; nothing of it is left then.
    """
    units = tuple(units)
    place = _place(names, index.generation)
    outcome = {
        "schema": SCHEMA,
        "began": wall,
        "result": str(Result.INTERRUPTED),
        "content": content_digest(units),
        "replaces": current_generation(names.deployment, names.root),
        "changes": list(changes),
    }
    try:
        make_directory(names.state_dir)
        for unit in units:
            write_atomic(place / "units" / unit.name, unit.text, mode=0o600)
        write_atomic(place / "deployment.toml", text, mode=0o600)
        write_json(place / "index.json", index_to_json(index))
        write_json(place / "outcome.json", outcome)
    except BaseException as error:
        drop_generation(names, index.generation)
        if isinstance(error, OSError):
            raise write_error(place, error) from error
        raise


def drop_generation(names: Names, number: int) -> None:
    """Forget a generation whose install changed nothing after all; what cannot be removed stays."""
    shutil.rmtree(_place(names, number), ignore_errors=True)
    for folder in (generations_dir(names), names.state_dir, names.state_dir.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()  # only if nothing is left in it


def write_outcome(names: Names, number: int, **outcome: Any) -> None:
    """Record how a generation's install ended. Raises: HostError 32."""
    path = _place(names, number) / "outcome.json"
    if path.parent.is_dir():
        write_json(path, {**(read_json(path) or {}), **outcome})


def note_left(names: Names, left: Iterable[int], *, back_to: int, at: float) -> None:
    """Record that a rollback goes away from generations, to `back_to`. Raises: HostError 32."""
    for number in left:
        write_outcome(names, number, left=at)
    if _left(names, back_to) is not None:
        write_outcome(names, back_to, left=None)


def leave_all(names: Names) -> None:
    """Record that an uninstall goes away from every generation: what is free by then may be given to others.

    Raises: HostError 32.
    """
    if every := numbers(names):
        write_json(uninstalled_path(names), {"schema": SCHEMA, "generation": every[-1]})


def uninstalled_path(names: Names) -> Path:
    """Where it is kept which generation was the last one before an uninstall."""
    return names.state_dir / "uninstalled.json"


def _left(names: Names, number: int) -> Any:
    return (read_json(_place(names, number) / "outcome.json") or {}).get("left")


def write_failed_units(names: Names, number: int, units: Iterable[Mapping[str, Any]]) -> None:
    """Keep what is known of the units that failed, with lines of their logs: for root.

    Raises: HostError 32.
    """
    path, failed = _place(names, number) / "failed-units.json", list(units)
    if path.exists() or (failed and path.parent.is_dir()):
        write_json(path, {"units": failed}, mode=0o600)


def note_crash(names: Names, number: int, unit: str, cause: str) -> None:
    """Record that a unit of a generation died soon after it was ready. Raises: HostError 32."""
    place = _place(names, number)
    if place.is_dir():
        crash = {"unit": unit, "cause": cause, "at": time.time()}
        write_json(place / f"crash-{unit}.json", crash)


def read_generation(names: Names, number: int) -> Generation | None:
    """A generation, None if it is not kept, not readable or damaged.

    Raises: HostError 32 if it was written by a newer pd-units.
    """
    place = _place(names, number)
    value = read_json(place / "outcome.json")
    if value is None:
        return None
    require_known_schema(value, place / "outcome.json")
    try:
        crashes = tuple(crash for path in sorted(place.glob("crash-*.json")) if (crash := read_json(path)))
        return Generation(
            number=number,
            began=float(value["began"]),
            ended=value.get("ended"),
            left=value.get("left"),
            replaces=int(value.get("replaces", 0)),
            result=Result(value["result"]),
            content=str(value.get("content", "")),
            message=str(value.get("message", "")),
            changes=tuple(value.get("changes", ())),
            seconds_to_ready=value.get("seconds_to_ready"),
            rolled_back=bool(value.get("rolled_back", False)),
            failed_units=tuple((read_json(place / "failed-units.json") or {}).get("units", ())),
            crashes=crashes,
        )
    except (KeyError, TypeError, ValueError):
        return None


def read_generations(names: Names) -> tuple[Generation, ...]:
    """Every generation that can be read, oldest first."""
    found = [read_generation(names, number) for number in numbers(names)]
    kept = [generation for generation in found if generation is not None]
    followers = [*kept[1:], None][: len(kept)]
    return tuple(_judged(names, each, follower) for each, follower in zip(kept, followers, strict=True))


def _judged(names: Names, generation: Generation, follower: Generation | None) -> Generation:
    """A generation that nobody waited for: ready if its units' own watchers saw them ready while it held."""
    if generation.result not in (Result.INTERRUPTED, Result.INSTALLED):
        return generation
    ends = [time for time in (generation.left, follower.began if follower else None) if time is not None]
    touched = {change.split()[1].rstrip(":") for change in generation.changes if " " in change}
    index = read_json(_place(names, generation.number) / "index.json") or {}
    seconds = []
    for row in index.get("units", ()):
        unit = str(row.get("unit"))
        starts = [start for start in _starts(names, unit) if not ends or start[0] < min(ends)]
        if unit in touched:
            starts = [start for start in starts if start[0] >= generation.began]
        if not starts or starts[-1][1] != "ready":
            return generation
        seconds.append(starts[-1][2])
    return replace(generation, result=Result.READY, seconds_to_ready=max(seconds, default=None))


def _starts(names: Names, unit: str) -> list[tuple[float, str, float]]:
    """(began, outcome, seconds) of a unit's starts, oldest first, as its watchers kept them."""
    found = []
    try:
        lines = (names.state_dir / "starts" / f"{unit}.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    for line in lines:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            row = json.loads(line)
            found.append((float(row["began"]), str(row["outcome"]), float(row["seconds"])))
    return found


def keep_judgements(names: Names, *, but: int) -> None:
    """Write down which generations became ready though nobody waited, all `but` one that is being changed.

    Raises: HostError 32.
    """
    for each in read_generations(names):
        kept = read_generation(names, each.number)
        if each.number != but and kept is not None and kept.result is not each.result:
            write_outcome(names, each.number, result=str(each.result), seconds_to_ready=each.seconds_to_ready)


def last_good(names: Names, *, other_than: int) -> Generation | None:
    """The generation to go back to from `other_than`: what it replaced, if that is good, else the newest good
    one before it. None that a rollback or an uninstall went away from, and none with the very same units.
    """
    every = read_generations(names)
    here = next((each for each in every if each.number == other_than), None)
    good = [
        each
        for each in _standing(names, every)
        if each.number < other_than and (here is None or each.content != here.content)
    ]
    replaced = [each for each in good if here is not None and each.number == here.replaces]
    best = replaced or good
    return best[-1] if best else None


def _standing(names: Names, every: Iterable[Generation]) -> list[Generation]:
    """The good ones among `every` that neither a rollback nor an uninstall went away from."""
    number = (read_json(uninstalled_path(names)) or {}).get("generation")
    uninstalled = number if isinstance(number, int) else 0
    return [each for each in every if each.good and each.left is None and each.number > uninstalled]


def stored_units(names: Names, number: int) -> tuple[RenderedUnit, ...]:
    """The services of a generation. Raises: HostError 32 if it is not kept or damaged."""
    index = stored_index(names, number)
    roles = {unit.unit: unit.role for unit in index.units}
    folder = _place(names, number) / "units"
    units = []
    for unit in index.units:
        try:
            text = (folder / unit.unit).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(names, number, f"{folder / unit.unit}: {error}") from error
        units.append(RenderedUnit(name=unit.unit, text=text, role=Role(roles[unit.unit])))
    return tuple(units)


def stored_index(names: Names, number: int) -> Index:
    """The index of a generation. Raises: HostError 32 if it is not kept or damaged."""
    path = _place(names, number) / "index.json"
    value = read_json(path)
    if value is None:
        raise _damaged(names, number, f"{path} is missing or damaged")
    return index_from_json(value, source=str(path))


def stored_deployment_path(names: Names, number: int) -> Path:
    """Where a generation's deployment file lies."""
    return _place(names, number) / "deployment.toml"


def stored_text(names: Names, number: int) -> str:
    """The deployment file of a generation. Raises: HostError 32."""
    path = stored_deployment_path(names, number)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(names, number, f"{path}: {error}") from error


def written_digests(names: Names) -> dict[str, frozenset[str]]:
    """Digests of every unit file of every generation kept, by unit name; none for who may not look."""
    found: dict[str, frozenset[str]] = {}
    for number in numbers(names):
        try:
            for path in sorted((_place(names, number) / "units").iterdir()):
                found[path.name] = found.get(path.name, frozenset()) | {
                    digest(path.read_text(encoding="utf-8"))
                }
        except (OSError, UnicodeDecodeError):
            continue
    return found


def prune(names: Names, *, current: int) -> None:
    """Remove old generations: all but `current`, what it would go back to, and the newest ten of two kinds:
    those that one could go back to, and the others.

    However often a new one is tried and gone back from, what served before stays. Raises: HostError 32.
    """
    every = read_generations(names)
    back = last_good(names, other_than=current)
    standing = [each.number for each in _standing(names, every)]
    others = [each.number for each in every if each.number not in standing]
    kept = {current, *standing[-_KEPT:], *others[-_KEPT:], *((back.number,) if back is not None else ())}
    for number in numbers(names):
        if number not in kept:
            try:
                shutil.rmtree(_place(names, number))
            except OSError as error:
                raise write_error(_place(names, number), error) from error


def _place(names: Names, number: int) -> Path:
    return generations_dir(names) / str(number)


def _damaged(names: Names, number: int, detail: str) -> HostError:
    kept = ", ".join(str(each) for each in numbers(names)) or "none"
    return HostError(
        f"generation {number} of {names.deployment} cannot be used",
        detail=f"{detail}; kept: {kept}",
        hint=f"pd-units history {names.deployment} shows them; --to N takes another one",
    )
