"""Deployment + host -> Plan: which units there are, what each runs, and where.

Pure. Everything that a template may print is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pd_units.engines.options import Program
from pd_units.errors import DeploymentError, ExitCode, Fault
from pd_units.model_types import Deployment, Instance
from pd_units.naming import SLICE, Names, Role, stem
from pd_units.pinning import Placer, check_gpus_together
from pd_units.plan_argv import (
    behind,
    engine_lines,
    engine_options,
    mounts_of,
    router_lines,
    url_of,
)
from pd_units.plan_checks import check_options
from pd_units.plan_environment import (
    LOADER_VARIABLES,
    backend_environment,
    router_environment,
    split_environment,
)
from pd_units.plan_memory import check_memory
from pd_units.sm120 import check_version
from pd_units.topology import HostTopology

__all__ = ["DEFAULT_SYSTEMD", "Backend", "HostFacts", "Plan", "UnitPlan", "check_gpus_together", "make_plan"]

#: Where systemd's version cannot be seen: what the oldest tested one has, newer ones have too.
DEFAULT_SYSTEMD = 252
#: Starts in one start-limit interval; the last one is left for a start by hand (supervise/limit.py).
START_LIMIT_BURST = 6
_MARGIN_S = 60
_BACKEND_STOP_S = 120
_BACKEND_RESTART_S = 10
_BACKEND_RESTART_MAX_S = 60
_ROUTER_RESTART_S = 2
_ROUTER_GRACE_S = 180
_DEVICE_UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a plan needs to know of the host. Versions as their packages write them, None = not known."""

    topology: HostTopology
    pd_units_python: str
    systemd_version: int = DEFAULT_SYSTEMD
    engine_version: str | None = None
    router_version: str | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """A unit that a router stands in front of."""

    unit: str
    role: Role
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """One service. The only thing that its template sees.

    `exec_start`: the argv, an option and its values a line. `start_pre`, `start_post`, `stop_post`: argv
    of our own helpers. Times in seconds; `start_timeout_s` None = no limit (a router waits for backends);
    `start_limit_interval_s` None = no start limit; `restart_max_s` None where systemd has no such thing.
    """

    unit: str
    role: Role
    index: int
    deployment: str
    description: str
    target: str
    slice: str = SLICE
    user: str
    exec_start: tuple[tuple[str, ...], ...]
    environment: tuple[tuple[str, str], ...]
    environment_files: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    numa_mask: str | None = None
    cpus: str | None = None
    url: str
    start_pre: tuple[str, ...] | None = None
    start_post: tuple[str, ...]
    stop_post: tuple[str, ...]
    after: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    requires_mounts_for: tuple[str, ...] = ()
    start_timeout_s: int | None
    stop_timeout_s: int
    restart_s: int
    restart_max_s: int | None = None
    restart_steps: int | None = None
    start_limit_interval_s: int | None
    start_limit_burst: int = START_LIMIT_BURST
    backends: tuple[Backend, ...] = ()

    @property
    def unset_environment(self) -> tuple[str, ...]:
        """Variables that no process of the unit gets from the unit."""
        return LOADER_VARIABLES

    @property
    def argv(self) -> tuple[str, ...]:
        """The main process's argument vector."""
        return tuple(word for line in self.exec_start for word in line)

    @property
    def identifier(self) -> str:
        """Name of the unit's lines in the journal."""
        return stem(self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every service of a deployment, backends first, and what is worth a warning on this host."""

    deployment: Deployment
    names: Names
    units: tuple[UnitPlan, ...]
    warnings: tuple[Fault, ...]


def make_plan(
    deployment: Deployment, host: HostFacts, *, skip_gpu: bool = False, skip_numa: bool = False
) -> Plan:
    """Plan of `deployment` on `host`.

    `skip_gpu` renders pins and kernel flags as declared, whatever the host has; `skip_numa` leaves the
    binding out where the host lacks the node.
    Raises: DeploymentError 12 with every fault of placement, 11 for an option that the engine lacks.
    """
    placer = Placer(host.topology, deployment.instances, skip_gpu=skip_gpu, skip_numa=skip_numa)
    planner = _Planner(deployment, host, placer)
    units = [planner.backend(instance) for instance in deployment.instances]
    if deployment.router is not None:
        units.append(planner.router([unit for unit in units if unit.role is not Role.STANDALONE]))
    faults = (*planner.placer.findings.faults, *planner.option_faults)
    if faults:
        code = ExitCode.PLACEMENT if planner.placer.findings.faults else ExitCode.INVALID
        raise DeploymentError(
            f"{deployment.name} cannot run on this host as it is written", faults=faults, exit_code=code
        )
    warnings = (*planner.placer.findings.warnings, *planner.option_warnings)
    return Plan(
        deployment=deployment,
        names=deployment.names,
        units=tuple(units),
        warnings=tuple(dict.fromkeys(warnings)),
    )


class _Planner:
    """Plans the units of one deployment, collecting faults and warnings of its options on the way."""

    def __init__(self, deployment: Deployment, host: HostFacts, placer: Placer) -> None:
        self.deployment = deployment
        self.host = host
        self.placer = placer
        self.option_faults: list[Fault] = []
        self.option_warnings: list[Fault] = []

    def backend(self, instance: Instance) -> UnitPlan:
        deployment, readiness = self.deployment, self.deployment.readiness
        unit = deployment.unit_of(instance)
        placement = self.placer.place(deployment.engine, instance)
        program = Program.engine(self.host.engine_version)
        options = engine_options(deployment, instance, program, placement)
        self._collect(program)
        findings = self.placer.findings
        for misfit in check_options(instance, options, placement, deployment.engine.pin):
            (findings.faults if misfit.fatal else findings.warnings).append(misfit.fault)
        findings.warnings += check_memory(deployment.engine.model, instance, options, placement.gpus)
        self.option_warnings += check_version(deployment.engine.sm120, program) if placement.sm120 else ()
        host = _host_option(instance, deployment)
        url = url_of(host, instance.port)
        start_s = round(readiness.timeout_s) + _MARGIN_S
        steps = 4 if self.host.systemd_version >= 254 else None
        slowest_s = _BACKEND_RESTART_MAX_S if steps else _BACKEND_RESTART_S
        model = deployment.engine.model
        environment, under = split_environment(backend_environment(deployment, instance, placement))
        return UnitPlan(
            unit=unit,
            role=instance.role,
            index=instance.index,
            deployment=deployment.name,
            description=self._description(instance),
            target=deployment.names.target,
            user=deployment.engine.user,
            exec_start=behind(under, engine_lines(deployment.engine, options)),
            environment=environment,
            environment_files=deployment.engine.environment_files,
            gpus=instance.gpus,
            numa_nodes=placement.numa_nodes,
            numa_mask=placement.numa_mask,
            cpus=placement.cpus,
            url=url,
            start_post=self._watch(unit, instance.role, url),
            stop_post=self._record(unit, instance.role),
            after=("network-online.target", *_DEVICE_UNITS),
            wants=("network-online.target", _DEVICE_UNITS[0]),
            requires_mounts_for=mounts_of(self.host.pd_units_python, deployment.engine.python, model),
            start_timeout_s=start_s,
            stop_timeout_s=_BACKEND_STOP_S,
            restart_s=_BACKEND_RESTART_S,
            restart_max_s=_BACKEND_RESTART_MAX_S if steps else None,
            restart_steps=steps,
            start_limit_interval_s=_start_limit_interval_s(start_s + round(readiness.extend_s), slowest_s),
        )

    def router(self, units: Sequence[UnitPlan]) -> UnitPlan:
        deployment, router = self.deployment, self.deployment.router
        assert router is not None
        name = deployment.names.service(Role.ROUTER)
        backends = tuple(Backend(unit.unit, unit.role, unit.url) for unit in units)
        program = Program.router(self.host.router_version)
        longest_s = max(unit.start_timeout_s or 0 for unit in units) + round(deployment.readiness.extend_s)
        lines = router_lines(deployment, backends_urls(deployment, backends), program, longest_s)
        self._collect(program)
        url = url_of(router.host, router.port)
        environment, under = split_environment(router_environment(deployment))
        return UnitPlan(
            unit=name,
            role=Role.ROUTER,
            index=0,
            deployment=deployment.name,
            description=f"{deployment.name} router (pd-units)",
            target=deployment.names.target,
            user=router.user or deployment.engine.user,
            exec_start=behind(under, lines),
            environment=environment,
            environment_files=router.environment_files,
            url=url,
            start_pre=self._gate(name, backends),
            start_post=self._watch(name, Role.ROUTER, url, backends),
            stop_post=self._record(name, Role.ROUTER),
            after=("network-online.target", *(backend.unit for backend in backends)),
            requires_mounts_for=mounts_of(
                self.host.pd_units_python, router.python or deployment.engine.python
            ),
            start_timeout_s=None,
            stop_timeout_s=_grace_s(router.args) + _MARGIN_S // 2,
            restart_s=_ROUTER_RESTART_S,
            start_limit_interval_s=None,
            backends=backends,
        )

    def _collect(self, program: Program) -> None:
        self.option_faults += program.faults
        self.option_warnings += program.warnings

    def _description(self, instance: Instance) -> str:
        same = [each for each in self.deployment.instances if each.role is instance.role]
        number = f" {instance.index}" if len(same) > 1 else ""
        return f"{self.deployment.name} {instance.role}{number} (pd-units)"

    def _helper(self, verb: str, unit: str) -> list[str]:
        # -I: no code from the engine's PYTHONPATH or working directory may run as root (docs/adr/0012)
        python = [self.host.pd_units_python, "-I", "-m", "pd_units.supervise"]
        return [*python, verb, "--deployment", self.deployment.name, "--unit", unit]

    def _waiting_helper(self, verb: str, unit: str) -> list[str]:
        # a stop before it can deal with one would kill it, and the unit that was stopped would be `failed`
        return ["/usr/bin/env", "--ignore-signal=TERM", *self._helper(verb, unit)]

    def _watch(self, unit: str, role: Role, url: str, backends: Sequence[Backend] = ()) -> tuple[str, ...]:
        readiness = self.deployment.readiness
        argv = [*self._waiting_helper("watch", unit), "--role", role, "--url", url]
        argv += ["--timeout", str(round(readiness.timeout_s))]
        if role is Role.ROUTER:
            argv += [] if readiness.smoke_test else ["--no-smoke-test"]
            for backend in backends:
                argv += ["--backend", f"{backend.unit}={backend.role}={backend.url}"]
        else:
            argv += ["--no-progress", str(round(readiness.no_progress_s))]
            argv += ["--no-progress-declared"] if readiness.no_progress_declared else []
            argv += ["--extend", str(round(readiness.extend_s))] if readiness.extend_s else []
        return tuple(map(str, argv))

    def _gate(self, unit: str, backends: Sequence[Backend]) -> tuple[str, ...]:
        argv = self._waiting_helper("gate", unit)
        for backend in backends:
            argv += ["--backend", backend.unit]
        return tuple(argv)

    def _record(self, unit: str, role: Role) -> tuple[str, ...]:
        return (*self._helper("record", unit), "--role", str(role))


def backends_urls(
    deployment: Deployment, backends: Sequence[Backend]
) -> tuple[tuple[Role, str, int | None], ...]:
    """(role, url, bootstrap port) of each backend, as the router's command line names them."""
    ports = {deployment.unit_of(each): each.bootstrap_port for each in deployment.instances}
    return tuple((backend.role, backend.url, ports[backend.unit]) for backend in backends)


def _host_option(instance: Instance, deployment: Deployment) -> str:
    host = instance.args.get("host", deployment.engine.args.get("host", "127.0.0.1"))
    return host if isinstance(host, str) and host else "127.0.0.1"


def _grace_s(args: Mapping[str, object]) -> int:
    grace = args.get("shutdown-grace-period-secs", _ROUTER_GRACE_S)
    return grace if isinstance(grace, int) and grace >= 0 else _ROUTER_GRACE_S


def _start_limit_interval_s(start_s: int, restart_s: int) -> int:
    """An interval in which a unit that fails as slowly as it can still makes all starts of the burst.

    One life: the load (to its timeout), the stop (SIGTERM, then SIGKILL, each to its timeout), the wait
    before the restart. systemd refuses the start after the last one of the burst.
    """
    life_s = start_s + 2 * _BACKEND_STOP_S + restart_s
    return START_LIMIT_BURST * life_s + _MARGIN_S
