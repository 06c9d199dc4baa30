"""Can this host run a deployment: named checks, each with its evidence and what to do."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pd_units.adapters import journal, procfs
from pd_units.errors import ExitCode, Fault, HostError
from pd_units.naming import Role
from pd_units.plan import Plan
from pd_units.ports import Manager
from pd_units.topology import HostTopology

_OLDEST_SYSTEMD = 249
_IMPORT_TIMEOUT_S = 60.0
_CACHE_BYTES = 10 << 30


class Severity(StrEnum):
    """What a failed check means."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    evidence: str
    severity: Severity = Severity.ERROR
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """The contract's object."""
        return {
            "name": self.name,
            "ok": self.ok,
            "severity": str(self.severity),
            "evidence": self.evidence,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked: the plan, and the host as it is now. `manager` is None if systemd does not answer."""

    plan: Plan
    topology: HostTopology
    manager: Manager | None
    retires: tuple[str, ...] = ()

    @property
    def root(self) -> bool:
        """Whether everything can be seen."""
        return os.geteuid() == 0


Result = Iterable[Check]


def _good(name: str, evidence: str) -> Check:
    return Check(name=name, ok=True, evidence=evidence)


def _bad(name: str, evidence: str, advice: str, severity: Severity = Severity.ERROR) -> Check:
    return Check(name=name, ok=False, evidence=evidence, advice=advice, severity=severity)


def check_systemd(subject: Subject) -> Result:
    """The manager answers, is new enough, and our own code is root's alone."""
    if subject.manager is None:
        yield _bad(
            "systemd", "systemd does not answer on the system bus", "boot this host with systemd and dbus"
        )
        return
    version = subject.manager.version()
    if version < _OLDEST_SYSTEMD:
        yield _bad("systemd", f"systemd {version}", f"systemd {_OLDEST_SYSTEMD} or newer is needed")
    else:
        yield _good("systemd", f"systemd {version} answers")
    yield from check_own_code()


def check_own_code(python: str = sys.executable) -> Result:
    """The watcher runs as root: nobody else may be able to write its interpreter or package."""
    for path in (Path(python), Path(__file__).resolve().parent):
        writable = writable_by_others(path)
        if writable:
            yield _bad(
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


def check_journal(subject: Subject) -> Result:
    """There is a journal to watch, and this user may read it."""
    storage = [root for root in (Path("/var/log/journal"), Path("/run/log/journal")) if any(root.glob("*"))]
    if not storage:
        yield _bad(
            "journal", "no journal on this host", "Storage= in /etc/systemd/journald.conf must not be none"
        )
    elif not journal.readable():
        yield _bad(
            "journal", "not readable for this user", "join the group systemd-journal", Severity.WARNING
        )
    else:
        yield _good("journal", f"kept in {storage[0]}")


def check_gpu(subject: Subject) -> Result:
    """The GPUs that the deployment names are known."""
    gpus = subject.topology.gpus
    if gpus is None:
        yield _bad("gpu", "no NVIDIA GPU is visible on this host", "install the driver, or --skip gpu")
        return
    yield _good("gpu", f"{len(gpus)} GPUs: {', '.join(sorted({g.name or 'unnamed' for g in gpus}))}")


def check_gpu_memory(subject: Subject) -> Result:
    """Nobody else holds the GPUs' memory."""
    yield (
        _good("gpu-memory", "not looked at: needs NVML")
        if subject.topology.gpus
        else _good("gpu-memory", "no GPU to look at")
    )


def check_numa(subject: Subject) -> Result:
    """The NUMA nodes of the plan; impossible ones were refused with exit 12 already."""
    nodes = ", ".join(f"node {n.id}: CPUs {n.cpus or 'none'}" for n in subject.topology.numa_nodes or ())
    yield _good("numa", nodes or "one NUMA node, nothing to bind")


def check_kernel_flags(subject: Subject) -> Result:
    """The SM120 flags fit the GPUs."""
    flags = sorted(subject.plan.deployment.engine.sm120)
    yield _good("kernel-flags", ", ".join(flags) or "none declared")


def check_model(subject: Subject) -> Result:
    """A model given by path is there."""
    model = subject.plan.deployment.engine.model
    path = Path(model)
    if not path.is_absolute():
        yield _good("model", f"{model} is not a path: the engine looks it up in its hub or cache")
    elif not path.exists():
        parent = next(p for p in path.parents if p.exists())
        yield _bad(
            "model", f"{model} does not exist ({parent} does)", "mend engine.model, or mount the file system"
        )
    elif path.is_dir() and not any(path.iterdir()):
        yield _bad("model", f"{model} is an empty directory", "download the model into it", Severity.WARNING)
    else:
        yield _good("model", f"{model} is there")


def check_engine(subject: Subject) -> Result:
    """The interpreters exist, can be run by the unit's user, and have the engine and the router."""
    seen = set()
    for unit in subject.plan.units:
        module = "sglang_router" if unit.role is Role.ROUTER else "sglang"
        key = (unit.argv[0], module, unit.user)
        if key not in seen:
            seen.add(key)
            yield _importable(*key, root=subject.root)


def _importable(python: str, module: str, user: str, *, root: bool) -> Check:
    key = "router.python" if module == "sglang_router" else "engine.python"
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        return _bad("engine", f"there is no user {user!r}", f"useradd --system {user}, or mend the user")
    if not Path(python).exists():
        return _bad("engine", f"{python} does not exist", f"mend {key}, or install the engine there")
    if not os.access(python, os.X_OK):
        return _bad("engine", f"{python} cannot be executed", f"mend {key}")
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    as_user: dict[str, Any] = (
        {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if root else {}
    )
    try:
        done = subprocess.run(
            [python, "-I", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": account.pw_dir},
            **as_user,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return _bad("engine", f"{python} could not be run as {user}: {error}", f"mend {key} or the user")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [""])[-1]
        detail = f": {said}" if said else ""
        return _bad("engine", f"{python} cannot import {module}{detail}", f"mend {key}: pip install {module}")
    return _good("engine", f"{python} has {module}")


def check_ports(subject: Subject) -> Result:
    """Every port is free, or held by the unit that it is for or by one that is retired."""
    ours = {unit.unit for unit in subject.plan.units} | set(subject.retires)
    taken = False
    for port, unit in sorted(ports_of(subject.plan).items()):
        if not procfs.port_in_use(port):
            continue
        pid = procfs.port_owner(port)
        owner = procfs.unit_of(pid) if pid is not None else ""
        if owner in ours or (pid is None and not subject.root):
            continue
        taken = True
        who = f"process {pid}" + (f" of {owner}" if owner else "") if pid is not None else "another process"
        advice = f"stop it, name its unit in deployment.retires, or give {unit} another port"
        yield _bad("ports", f"port {port} of {unit} is held by {who}", advice)
    if not taken:
        yield _good("ports", "free: " + ", ".join(str(port) for port in sorted(ports_of(subject.plan))))


def ports_of(plan: Plan) -> dict[int, str]:
    """Every TCP port that the deployment listens on, and the unit it is for."""
    deployment = plan.deployment
    ports: dict[int, str] = {}
    for instance in deployment.instances:
        unit = deployment.unit_of(instance)
        for port in (instance.port, instance.bootstrap_port, instance.dist_init_port):
            if port is not None:
                ports[port] = unit
    if deployment.router is not None:
        unit = deployment.names.service(Role.ROUTER)
        ports[deployment.router.port] = unit
        ports[deployment.router.metrics_port] = unit
    return ports


def check_limits(subject: Subject) -> Result:
    """The kernel lets the units have the limits that they ask for, and shared memory is large enough."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kernel = int(Path("/proc/sys/fs/nr_open").read_text())
    if kernel < 65_536:
        yield _bad("limits", f"fs.nr_open is {kernel}", "sysctl -w fs.nr_open=1048576", Severity.WARNING)
    size = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    if size < 1 << 30:
        advice = "mount -o remount,size=50% /dev/shm: NCCL and the engine's loaders use it"
        yield _bad("limits", f"/dev/shm holds {size >> 20} MiB", advice, Severity.WARNING)
    else:
        yield _good("limits", f"open files up to {min(kernel, max(hard, kernel))}, /dev/shm {size >> 30} GiB")


def check_environment_files(subject: Subject) -> Result:
    """Environment files exist and are in systemd's syntax."""
    faults = False
    files = sorted({file for unit in subject.plan.units for file in unit.environment_files})
    for file in files:
        path = Path(file)
        if not path.is_file():
            faults = True
            yield _bad(
                "environment-files", f"{file} does not exist", "write it, or take it from environment_files"
            )
            continue
        for number, line in enumerate(_readable_lines(path), 1):
            if line.lstrip().startswith("export "):
                faults = True
                advice = "take the word export out: systemd reads NAME=value lines"
                yield _bad("environment-files", f"{file}:{number} begins with export", advice)
    if not faults:
        yield _good("environment-files", ", ".join(files) or "none declared")


def _readable_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except PermissionError:
        return []


def check_disk(subject: Subject) -> Result:
    """The users' home directories have room for kernel caches."""
    for user in sorted({unit.user for unit in subject.plan.units}):
        try:
            home = Path(pwd.getpwnam(user).pw_dir)
        except KeyError:
            continue
        place = next(p for p in (home, *home.parents) if p.exists())
        free = shutil.disk_usage(place).free
        if free < _CACHE_BYTES:
            advice = "kernel caches of Triton, FlashInfer and CUDA go there"
            yield _bad("disk", f"{place} has {free >> 30} GiB free", advice, Severity.WARNING)
        else:
            yield _good("disk", f"{place} has {free >> 30} GiB free")


CHECKS: dict[str, Callable[[Subject], Result]] = {
    "systemd": check_systemd,
    "journal": check_journal,
    "gpu": check_gpu,
    "gpu-memory": check_gpu_memory,
    "numa": check_numa,
    "kernel-flags": check_kernel_flags,
    "model": check_model,
    "engine": check_engine,
    "ports": check_ports,
    "limits": check_limits,
    "environment-files": check_environment_files,
    "disk": check_disk,
}


def run_checks(subject: Subject, *, skip: Collection[str] = ()) -> tuple[Check, ...]:
    """Every check that is not skipped; `gpu` covers `gpu-memory` too."""
    skipped = set(skip) | ({"gpu-memory"} if "gpu" in skip else set())
    return tuple(result for name, check in CHECKS.items() if name not in skipped for result in check(subject))


def require(checks: Sequence[Check]) -> None:
    """Raises: HostError 13, with every failed check whose severity is error."""
    faults = [
        Fault(c.name, c.evidence, c.advice) for c in checks if not c.ok and c.severity is Severity.ERROR
    ]
    if faults:
        raise HostError(
            "this host cannot run the deployment; nothing was changed",
            faults=faults,
            hint="--skip CHECK leaves a check out",
            exit_code=ExitCode.PREFLIGHT,
        )
