"""Stand-ins for the parts of pd-units that reach the world, held to the same contracts as the real ones."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pd_units.errors import ExitCode, HostError
from pd_units.ports import ActiveState, UnitStatus
from pd_units.unitfile import parse_unit


@dataclass
class FakeClock:
    """Time that passes only when somebody waits."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now


@dataclass
class _Unit:
    text: str | None = None
    active: ActiveState = ActiveState.INACTIVE
    sub: str = "dead"
    invocation: str = ""
    pid: int = 0
    restarts: int = 0


@dataclass
class FakeManager:
    """`ports.Manager` over a directory of unit files. Services start at once; one whose ExecStart= is
    /bin/false, or whose name is in `failing`, fails.

    `calls` tells what was asked of it; `before` is called before each change, with the call.
    """

    unit_dir: Path
    clock: FakeClock = field(default_factory=FakeClock)
    failing: set[str] = field(default_factory=set)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    before: Callable[[tuple[str, ...]], None] = lambda _call: None
    _units: dict[str, _Unit] = field(default_factory=dict)
    _enabled: set[str] = field(default_factory=set)
    _pids: int = 100

    def version(self) -> int:
        return 252

    def unit(self, name: str) -> UnitStatus:
        unit, path = self._loaded(name), self._path(name)
        there = path.exists()
        status = UnitStatus(
            unit=name,
            load_state="masked"
            if self._masked(path)
            else ("loaded" if unit.text is not None else "not-found"),
            active_state=unit.active,
            sub_state=unit.sub,
            unit_file_state=("enabled" if name in self._enabled else "disabled") if there else "",
            fragment_path=str(path) if unit.text is not None else "",
            need_daemon_reload=unit.text is not None and there and self._read(path) != unit.text,
            invocation_id=unit.invocation,
            main_pid=unit.pid,
            n_restarts=unit.restarts,
        )
        if unit.active is ActiveState.ACTIVE:
            return replace(status, inactive_exit_mono_us=1, active_enter_mono_us=2_000_001)
        return status

    def start(self, name: str) -> str:
        self._ask("start", name)
        if self._loaded(name).active is not ActiveState.ACTIVE:
            self._run(name)
        return f"/job/{name}"

    def stop(self, name: str) -> str:
        self._ask("stop", name)
        unit = self._loaded(name)
        unit.active, unit.sub, unit.pid = ActiveState.INACTIVE, "dead", 0
        return f"/job/{name}"

    def restart(self, name: str) -> str:
        self._ask("restart", name)
        self._run(name)
        return f"/job/{name}"

    def job_result(self, job: str) -> str | None:
        return "done"

    def reset_failed(self, name: str) -> None:
        unit = self._units.get(name)
        if unit is not None and unit.active is ActiveState.FAILED:
            unit.active, unit.sub = ActiveState.INACTIVE, "dead"

    def reload(self) -> None:
        self._ask("reload")
        for name, unit in self._units.items():
            unit.text = self._read(self._path(name))

    def enable(self, names: Sequence[str]) -> bool:
        self._ask("enable", *names)
        for name in names:
            if not self._path(name).exists():
                raise HostError("systemd refused EnableUnitFiles", detail=f"Unit file {name} does not exist.")
        changed = not set(names) <= self._enabled
        self._enabled |= set(names)
        return changed

    def disable(self, names: Sequence[str]) -> bool:
        self._ask("disable", *names)
        changed = bool(self._enabled & set(names))
        self._enabled -= set(names)
        return changed

    def unit_file_state(self, name: str) -> str:
        if not self._path(name).exists():
            return ""
        return "enabled" if name in self._enabled else "disabled"

    def watch(self, names: Iterable[str]) -> None:
        self.watched = tuple(names)

    def pump(self, timeout_s: float) -> None:
        self.clock.now += timeout_s

    # -- what tests do to it ---------------------------------------------------------------------------

    def crash(self, name: str, *, again: bool = False) -> None:
        """Its process dies; with `again` it waits for an automatic restart."""
        unit = self._loaded(name)
        unit.active = ActiveState.ACTIVATING if again else ActiveState.FAILED
        unit.sub, unit.pid = ("auto-restart" if again else "failed"), 0

    def asked(self, verb: str) -> list[str]:
        """The units for which something was asked, in order."""
        return [name for call in self.calls if call[0] == verb for name in call[1:]]

    # -- inside ----------------------------------------------------------------------------------------

    def _ask(self, *call: str) -> None:
        self.before(call)
        self.calls.append(call)

    def _loaded(self, name: str) -> _Unit:
        if name not in self._units or (
            (unit := self._units[name]).text is None and unit.active is ActiveState.INACTIVE
        ):
            self._units[name] = _Unit(text=self._read(self._path(name)))
        return self._units[name]

    def _path(self, name: str) -> Path:
        """Its unit file, that of its template for an instance."""
        path = self.unit_dir / name
        stem, at, _ = name.partition("@")
        suffix = name.rpartition(".")[2]
        return self.unit_dir / f"{stem}@.{suffix}" if at and not path.exists() else path

    def _masked(self, path: Path) -> bool:
        return path.is_symlink() and path.readlink() == Path("/dev/null")

    def _read(self, path: Path) -> str | None:
        return path.read_text() if path.is_file() and not self._masked(path) else None

    def _run(self, name: str) -> None:
        if self._masked(self._path(name)):
            raise HostError(f"systemd refused to start {name}", detail="Unit is masked.")
        unit = self._loaded(name)
        if unit.text is None:
            raise HostError(f"systemd refused to start {name}", detail="Unit not found.")
        entries = parse_unit(unit.text).entries
        service = name.endswith(".service")
        command = next((entry.value for entry in entries if entry.key == "ExecStart"), "")
        unit.invocation = uuid.uuid4().hex
        if name in self.failing or command == "/bin/false":
            unit.active, unit.sub, unit.pid = ActiveState.FAILED, "failed", 0
            return
        self._pids += 1
        unit.active, unit.sub = ActiveState.ACTIVE, "running" if service else "active"
        unit.pid = self._pids if service else 0


class AwayManager(FakeManager):
    """A manager that gives no answer for the next `away` calls."""

    away = 0

    def _ask(self, *call: str) -> None:
        if self.away:
            self.away -= 1
            raise HostError("systemd does not answer", exit_code=ExitCode.NO_MANAGER)
        super()._ask(*call)
