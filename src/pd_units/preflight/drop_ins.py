"""Directives in operators' drop-ins that would undo what the rendered units rely on.

Drop-ins are the operator's and always stay; but one for all services (service.d/) written for other programs
can hide the GPUs, or lower a limit, and that shows only after minutes of loading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pd_units.plan import UnitPlan
from pd_units.plan_environment import is_loader_variable
from pd_units.preflight.base import Result, Subject, account_of, warning
from pd_units.unitfile import Entry, Skipped, UnitFile, read_unit, split_words

_PLACES = ("/usr/lib", "/usr/local/lib", "/run", "/etc")
_TRUE = ("1", "yes", "true", "on")
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: What RDMA and pinned host memory need at least before it is worth a word.
_MEMLOCK_BYTES = 8 << 30
_OPEN_FILES = 65_535
_PINS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

Test = Callable[[str, UnitPlan], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A directive, when its value does harm, in which check that belongs, and what to do."""

    key: str
    check: str
    harms: Test
    advice: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Override:
    """A directive of a drop-in that does harm to a unit."""

    rule: Rule
    unit: str
    path: str
    entry: Entry

    @property
    def evidence(self) -> str:
        """Where it stands, and what it says; of variables only the pins: others may be secrets."""
        value = self.entry.value
        if self.entry.key == "Environment":
            value = " ".join([*(f"{name}={text}" for name, text in _pins(value)), *_loader_names(value)])
        return f"{self.path}:{self.entry.line} sets {self.entry.key}={value} for {self.unit}"


def _is_true(value: str, _unit: UnitPlan) -> bool:
    return value.lower() in _TRUE


def _backend_is_true(value: str, unit: UnitPlan) -> bool:
    return bool(unit.gpus) and value.lower() in _TRUE


def _hides_home(value: str, unit: UnitPlan) -> bool:
    account = account_of(unit.user)
    paths = (*unit.argv, *unit.requires_mounts_for, account.pw_dir if account is not None else "")
    return value.lower() not in ("", "no", "false", "0", "off", "read-only") and any(
        path.startswith(("/home/", "/root/", "/run/user/")) for path in paths
    )


def _below(least: int, units: bool) -> Test:
    def harms(value: str, unit: UnitPlan) -> bool:
        hard = value.rpartition(":")[2].strip()
        match = re.fullmatch(r"(\d{1,20})([KMGT]?)" if units else r"(\d{1,20})()", hard)
        return bool(unit.gpus) and match is not None and int(match[1]) * _BYTES[match[2]] < least

    return harms


def _hides_gpus(value: str, unit: UnitPlan) -> bool:
    return bool(unit.gpus) and value.lower() in ("strict", "closed")


def _rebinds(value: str, unit: UnitPlan) -> bool:
    return bool(unit.numa_nodes) and bool(value)


def _repins(value: str, unit: UnitPlan) -> bool:
    planned = dict(unit.environment)
    return bool(unit.gpus) and any(planned.get(name) != text for name, text in _pins(value))


def _pins(value: str) -> list[tuple[str, str]]:
    """The variables of an Environment= that say which GPUs a process sees, in order."""
    return [(name, text) for name, text in _variables(value) if name in _PINS]


def _loader_names(value: str) -> list[str]:
    return [name for name, _ in _variables(value) if is_loader_variable(name)]


def _steers_the_loader(value: str, _unit: UnitPlan) -> bool:
    return bool(_loader_names(value))


def _variables(value: str) -> list[tuple[str, str]]:
    try:
        words = split_words(value)
    except ValueError:
        return []  # systemd ignores it
    return [(name, text) for name, _, text in (word.partition("=") for word in words)]


_GPUS_GONE = "the engine then sees no GPU: set it to no in the unit's own drop-in"
RULES: tuple[Rule, ...] = (
    Rule("PrivateDevices", "gpu", _backend_is_true, _GPUS_GONE, fatal=True),
    Rule(
        "MemoryDenyWriteExecute",
        "systemd",
        _backend_is_true,
        "Triton and Inductor compile at run time: no",
        fatal=True,
    ),
    Rule(
        "ProtectHome",
        "model",
        _hides_home,
        "the model, interpreter or caches are below it: set it to no",
        fatal=True,
    ),
    Rule(
        "SuccessExitStatus",
        "systemd",
        lambda value, _: "KILL" in value or "9" in value.split(),
        "a watcher that the kernel kills would then leave the unit active without being ready: take it out",
        fatal=True,
    ),
    Rule(
        "KillMode",
        "systemd",
        lambda value, _: value in ("process", "none"),
        "schedulers would outlive their server and keep the GPUs: leave it at mixed",
        fatal=True,
    ),
    Rule(
        "PrivateNetwork",
        "ports",
        _is_true,
        "router and backends could not reach each other: set it to no",
        fatal=True,
    ),
    Rule(
        "DevicePolicy",
        "gpu",
        _hides_gpus,
        "only what DeviceAllow= names is there: name every GPU of both "
        "roles, nvidiactl, nvidia-uvm and nvidia-uvm-tools",
    ),
    Rule(
        "LimitMEMLOCK",
        "limits",
        _below(_MEMLOCK_BYTES, True),
        "pinned host memory and RDMA registrations count: set it to infinity in the unit's own drop-in",
    ),
    Rule(
        "LimitNOFILE",
        "limits",
        _below(_OPEN_FILES, False),
        "each request, rank and shard is a descriptor: set it to 1048576 in the unit's own drop-in",
    ),
    Rule(
        "NUMAPolicy", "numa", _rebinds, "it wins over the planned binding: mend numa in the deployment file"
    ),
    Rule("NUMAMask", "numa", _rebinds, "it wins over the planned binding: mend numa in the deployment file"),
    Rule("CPUAffinity", "numa", _rebinds, "it adds to the planned CPUs: mend numa in the deployment file"),
    Rule("AllowedCPUs", "numa", _rebinds, "the planned CPUs are cut down by it: mend one of the two"),
    Rule("AllowedMemoryNodes", "numa", _rebinds, "the planned nodes are cut down by it: mend one of the two"),
    Rule(
        "Environment",
        "systemd",
        _steers_the_loader,
        "the unit drops it, for its helpers run as root: put it into the deployment file",
    ),
    Rule(
        "Environment",
        "gpu",
        _repins,
        "it wins over the planned GPUs: mend gpus in the deployment file",
        fatal=True,
    ),
)


def overrides_of(subject: Subject) -> tuple[Override, ...]:
    """Every directive of a drop-in that does harm, unit by unit; the last one of a directive counts."""
    found = []
    for unit in subject.plan.units:
        entries = [(path, entry) for path in drop_in_files(unit.unit) for entry in _entries(path)]
        for rule in RULES:
            said = [
                (path, entry)
                for path, entry in entries
                if (entry.section, entry.key) == ("Service", rule.key)
            ]
            if rule.key == "Environment":
                harmful = [each for each in said if rule.harms(each[1].value, unit)]
            else:
                harmful = [each for each in said[-1:] if rule.harms(each[1].value, unit)]
            found += [Override(rule, unit.unit, str(path), entry) for path, entry in harmful]
    return tuple(found)


def check_lines(subject: Subject) -> Result:
    """A warning for each line of a drop-in that systemd skips: whoever wrote it relies on it."""
    paths = {path for unit in subject.plan.units for path in drop_in_files(unit.unit)}
    for path in sorted(paths):
        for each in _read(path)[1]:
            rest = " and the rest of the file" if each.ends else ""
            advice = "mend the line or take it out: what it was to set is not set"
            yield warning("systemd", f"{path}:{each.line} is ignored by systemd{rest}: {each.why}", advice)


def _entries(path: Path) -> Iterable[Entry]:
    return _read(path)[0].entries


def _read(path: Path) -> tuple[UnitFile, tuple[Skipped, ...]]:
    """A drop-in as systemd takes it, and the lines that it skips; empty if this user may not read it."""
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        text = ""
    return read_unit(text)


def drop_in_files(unit: str) -> tuple[Path, ...]:
    """A service's drop-ins in the order in which systemd reads them. Source: systemd.unit(5).

    Files of one name: /etc over /run over /usr, and the unit's own directory over those for all services.
    """
    stem, _, kind = unit.rpartition(".")
    parts = stem.split("-")
    folders = [f"{kind}.d", *("-".join(parts[:n]) + f"-.{kind}.d" for n in range(1, len(parts))), f"{unit}.d"]
    files: dict[str, Path] = {}
    for folder in folders:
        for place in _PLACES:
            for path in Path(place, "systemd/system", folder).glob("*.conf"):
                files[path.name] = path
    return tuple(files[name] for name in sorted(files))
