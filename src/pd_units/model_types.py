"""What a deployment file says, as frozen data. No reading and no checking here (model_parse, model_check)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from pd_units.naming import Names, Role

#: An engine option's value. True = the bare flag, False = the flag is left out, a tuple = several values.
ArgValue = bool | int | float | str | tuple[str | int | float, ...]
#: NUMA nodes to bind to, or how to find them.
Numa = tuple[int, ...] | Literal["auto", "none"]

DEFAULT_BOOTSTRAP_PORT: Final = 8998
DEFAULT_METRICS_PORT: Final = 29000
_PORT = re.compile(r"[0-9]{1,5}")
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
NO_ARGS: Final[Mapping[str, ArgValue]] = MappingProxyType({})


def port_of(value: ArgValue | None) -> int | None:
    """The port that an option's value names, None if it names none (1 to 65535)."""
    if isinstance(value, bool) or not isinstance(value, int | str) or not _PORT.fullmatch(str(value)):
        return None
    return int(value) if 1 <= int(value) <= 65535 else None


class EngineKind(StrEnum):
    """Engines that pd-units knows how to start."""

    SGLANG = "sglang"


class Pin(StrEnum):
    """How a process is kept on its GPUs."""

    INDEX = "index"
    UUID = "uuid"
    BASE_GPU_ID = "base-gpu-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`[engine]`: what every backend of the deployment shares."""

    kind: EngineKind = EngineKind.SGLANG
    python: str
    model: str
    user: str = "root"
    pin: Pin = Pin.INDEX
    environment_files: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    sm120: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    args: Mapping[str, ArgValue] = field(default_factory=lambda: NO_ARGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One `[[prefill]]`, `[[decode]]` or `[[standalone]]` table."""

    role: Role
    index: int
    gpus: tuple[int, ...]
    numa: Numa = "auto"
    port: int
    bootstrap_port: int | None = None
    dist_init_port: int | None = None
    args: Mapping[str, ArgValue] = field(default_factory=lambda: NO_ARGS)
    environment: Mapping[str, str] = field(default_factory=lambda: NOTHING)

    @property
    def where(self) -> str:
        """Key path of the table: `prefill[0]`."""
        return f"{self.role}[{self.index}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """`[router]`. `python` and `user` are None where the file leaves them to the engine's."""

    host: str = "127.0.0.1"
    port: int
    python: str | None = None
    user: str | None = None
    environment_files: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    args: Mapping[str, ArgValue] = field(default_factory=lambda: NO_ARGS)

    @property
    def metrics_port(self) -> int:
        """Port of the router's Prometheus metrics, which it opens whether asked to or not."""
        port = port_of(self.args.get("prometheus-port"))
        return DEFAULT_METRICS_PORT if port is None else port


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """`[readiness]`, in seconds. `no_progress_declared`: the file set the no-progress time, so that it
    bounds every phase; the longer allowances of single phases hold for the default only. `extend_s`: how much
    longer than `timeout_s` a start may take while it makes progress."""

    timeout_s: float = 1800.0
    extend_s: float = 0.0
    no_progress_s: float = 600.0
    no_progress_declared: bool = False
    smoke_test: bool = True

    @property
    def longest_s(self) -> float:
        """The longest start of one unit."""
        return self.timeout_s + self.extend_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment file, valid in itself."""

    name: str
    retires: tuple[str, ...] = ()
    engine: Engine
    prefill: tuple[Instance, ...] = ()
    decode: tuple[Instance, ...] = ()
    standalone: tuple[Instance, ...] = ()
    router: Router | None = None
    readiness: Readiness = Readiness()
    source: str = field(default="", compare=False)

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Every backend, in the order prefill, decode, standalone."""
        return self.prefill + self.decode + self.standalone

    @property
    def names(self) -> Names:
        """The names that this deployment owns on a host."""
        return Names(self.name)

    def unit_of(self, instance: Instance) -> str:
        """Service name of one of this deployment's instances."""
        count = len([each for each in self.instances if each.role is instance.role])
        return self.names.service(instance.role, instance.index, count)
