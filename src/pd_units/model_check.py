"""Rules that need more than one key, and the things worth a warning."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence

from pd_units.engines.options import load_table
from pd_units.errors import ExitCode, Fault
from pd_units.model_fields import Faults, join_key, kind_of
from pd_units.model_types import ArgValue, Deployment, Instance, port_of
from pd_units.secrecy import is_secret
from pd_units.sm120 import lint_flags

_SAME_ON_BOTH = (
    "disaggregation-transfer-backend",
    "disaggregation-decode-allocation-policy",
    "kv-cache-dtype",
    "page-size",
    "speculative-algorithm",
)
_ENGINE_PORTS = ("nccl-port", "gated-launch-port")
_ROUTER_PORTS = ("prometheus-port",)
_MEMORY_FRACTION = "mem-fraction-static"


def check_alone(deployment: Deployment, faults: Faults) -> None:
    """What one file uses twice, and values that can never serve, into `faults`."""
    _check_gpus(deployment.instances, faults)
    _check_hosts(deployment, faults)
    _check_refused(deployment, faults)
    _check_port_options(deployment, faults)
    _check_ports(deployment, faults)
    _check_fractions(deployment, faults)


def check_roles(present: Collection[str], faults: Faults) -> None:
    """Which kinds of table go together. `present` holds their names."""
    disaggregated = [key for key in ("prefill", "decode", "router") if key in present]
    if "standalone" in present:
        for key in disaggregated:
            faults.add(
                key,
                "cannot stand beside [[standalone]]",
                "a deployment is either prefill, decode and router, or standalone servers",
            )
        return
    if not disaggregated:
        faults.add(
            "deployment", "has no instance", "write [[prefill]], [[decode]] and [router], or [[standalone]]"
        )
        return
    for key, table in (("prefill", "[[prefill]]"), ("decode", "[[decode]]"), ("router", "[router]")):
        if key not in present:
            others = " and ".join(disaggregated)
            faults.add(
                key, "is missing", f"{others} need{'' if ' and ' in others else 's'} {table} beside it"
            )


def _check_gpus(instances: Sequence[Instance], faults: Faults) -> None:
    owner: dict[int, Instance] = {}
    for instance in instances:
        for gpu in instance.gpus:
            other = owner.setdefault(gpu, instance)
            if other is not instance:
                faults.add(
                    f"{instance.where}.gpus", f"GPU {gpu} is used by {other.where} already", placement=True
                )


def _check_hosts(deployment: Deployment, faults: Faults) -> None:
    """A name would be looked up at every question, which can hang, and hides who listens."""
    hosts = [(join_key(path, "host"), args.get("host", "")) for path, args in _argument_tables(deployment)]
    if deployment.router is not None:
        hosts.append(("router.host", deployment.router.host))
    for where, host in hosts:
        if host not in ("", "localhost") and not _is_address(str(host)):
            hint = 'write the address to listen at; "0.0.0.0" is every one'
            faults.add(where, f"is a name, not an address: {str(host)!r}", hint)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_refused(deployment: Deployment, faults: Faults) -> None:
    """Options with which a unit would never be seen ready."""
    for path, args in _argument_tables(deployment):
        table = load_table("sglang-router" if path == "router.args" else "sglang")
        for name in args:
            if name in table.refused:
                why, _, hint = table.refused[name].partition(": ")
                faults.add(join_key(path, name), why, hint)


def ports_of(deployment: Deployment) -> Iterator[tuple[int, str]]:
    """(port, key path) of every port that the deployment's processes open, or are told to."""
    for instance in deployment.instances:
        yield instance.port, f"{instance.where}.port"
        if instance.bootstrap_port is not None:
            yield instance.bootstrap_port, f"{instance.where}.bootstrap_port"
        if instance.dist_init_port is not None:
            yield instance.dist_init_port, f"{instance.where}.dist_init_port"
        for option in _ENGINE_PORTS:
            port = port_of(instance.args.get(option, deployment.engine.args.get(option)))
            if port is not None:
                yield port, join_key(f"{instance.where}.args", option)
    if deployment.router is not None:
        yield deployment.router.port, "router.port"
        declared = "prometheus-port" in deployment.router.args
        yield (
            deployment.router.metrics_port,
            "router.args.prometheus-port" if declared else "the router's metrics port",
        )


def _check_port_options(deployment: Deployment, faults: Faults) -> None:
    """Options that are ports: 70000 would end the engine, minutes later or at once."""
    for path, args in _argument_tables(deployment):
        for option in _ROUTER_PORTS if path == "router.args" else _ENGINE_PORTS:
            value = args.get(option, False)  # false: left out
            if value is not False and port_of(value) is None:
                kind = kind_of(list(value) if isinstance(value, tuple) else value)
                shown = str(value)[:40] if type(value) in (int, str) else kind
                faults.add(join_key(path, option), f"must be a port (1 to 65535), not {shown}")


def _check_ports(deployment: Deployment, faults: Faults) -> None:
    taken: dict[int, str] = {}
    for port, where in ports_of(deployment):
        if port == 0:  # could not be read: a fault already
            continue
        other = taken.setdefault(port, where)
        if other == where:
            continue
        hint = ""
        if port == deployment_metrics_default(deployment) and "metrics" in where:
            hint = "it is opened whether asked for or not: choose another with router.args.prometheus-port"
        elif where.endswith("bootstrap_port"):
            hint = "each instance needs its own; 8998 is the default of a prefill"
        faults.add(where, f"port {port} is used by {other} already", hint, placement=True)


def _check_fractions(deployment: Deployment, faults: Faults) -> None:
    """Shares of GPU memory that no process can have: `mem-fraction-static = 70`."""
    for path, args in _argument_tables(deployment):
        value = args.get(_MEMORY_FRACTION)
        if type(value) in (int, float) and not 0 < float(str(value)) <= 1:
            what = f"is a share of each GPU's memory, above 0 and up to 1, not {value}"
            faults.add(join_key(path, _MEMORY_FRACTION), what)


def deployment_metrics_default(deployment: Deployment) -> int | None:
    """The router's metrics port where the file does not choose one, else None."""
    router = deployment.router
    return None if router is None or "prometheus-port" in router.args else router.metrics_port


def check_together(deployments: Sequence[Deployment]) -> tuple[Fault, ...]:
    """What several deployments of one host may not share: names, ports, units one of them retires.

    GPUs that two deployments use are a matter of placement (plan.check_placement), since only one of
    them may be meant to run at a time.
    """
    faults: list[Fault] = []
    names: dict[str, Deployment] = {}
    ports: dict[int, tuple[str, str]] = {}
    for deployment in deployments:
        label = deployment.source or deployment.name
        other = names.setdefault(deployment.name, deployment)
        if other is not deployment:
            faults.append(
                Fault(
                    f"{label}: deployment.name",
                    f"{deployment.name!r} is the name of {other.source or other.name} already",
                )
            )
            continue
        for port, where in ports_of(deployment):
            owner, place = ports.setdefault(port, (deployment.name, where))
            if owner != deployment.name:
                what = f"port {port} is used by {owner} ({place}) already"
                faults.append(Fault(f"{label}: {where}", what, placement=True))
        for number, unit in enumerate(deployment.retires):
            for victim in deployments:
                if victim.name != deployment.name and victim.names.owns(unit):
                    where = f"{label}: deployment.retires[{number}]"
                    faults.append(Fault(where, f"{unit} belongs to the deployment {victim.name}"))
    return tuple(faults)


def together_code(faults: Sequence[Fault]) -> ExitCode:
    """The exit code of what `check_together` found: 12 if they only collide on the host, else 11."""
    return ExitCode.PLACEMENT if all(fault.placement for fault in faults) else ExitCode.INVALID


def lint(deployment: Deployment) -> tuple[Fault, ...]:
    """What is allowed and is likely to hurt, each with its key path and what to do."""
    return (
        *_lint_secrets(deployment),
        *_lint_environment(deployment),
        *_lint_user(deployment),
        *lint_flags(deployment.engine.sm120),
        *_lint_pair(deployment),
        *_lint_clocks(deployment),
        *_lint_router(deployment),
    )


def _argument_tables(deployment: Deployment) -> Iterator[tuple[str, Mapping[str, ArgValue]]]:
    yield "engine.args", deployment.engine.args
    yield from ((f"{each.where}.args", each.args) for each in deployment.instances)
    if deployment.router is not None:
        yield "router.args", deployment.router.args


def _environment_tables(deployment: Deployment) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "engine.environment", deployment.engine.environment
    yield "engine.sm120", deployment.engine.sm120
    yield from ((f"{each.where}.environment", each.environment) for each in deployment.instances)
    if deployment.router is not None:
        yield "router.environment", deployment.router.environment


def _lint_secrets(deployment: Deployment) -> Iterator[Fault]:
    hint = "put it into a file only root can read and name that in engine.environment_files"
    for path, variables in _environment_tables(deployment):
        for name, value in variables.items():
            if is_secret(name, value):
                what = "looks like a secret: every user of the host can read a unit's environment over D-Bus"
                yield Fault(join_key(path, name), what, hint)
    for path, args in _argument_tables(deployment):
        for name, arg in args.items():
            if is_secret(name, arg):
                what = "looks like a secret: every user of the host can read a unit's arguments"
                yield Fault(join_key(path, name), what, hint)


def _lint_environment(deployment: Deployment) -> Iterator[Fault]:
    transfers = bool(deployment.prefill)
    for path, variables in _environment_tables(deployment):
        for name, value in variables.items():
            where = join_key(path, name)
            if (
                transfers
                and "ALLOC_CONF" in name
                and "expandable_segments:true" in value.replace(" ", "").lower()
            ):
                yield Fault(
                    where,
                    "expandable segments keep UCX from CUDA IPC: the KV transfer falls back to slow TCP",
                    "leave it out: pd-units sets expandable_segments:False where KV is transferred",
                )
            if name in ("LD_PRELOAD", "PYTHONHOME", "PYTHONPATH"):
                yield Fault(
                    where, "changes what code the engine runs", "make sure that only root can write there"
                )
            if name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"):
                yield Fault(where, "overrides the GPU pin that pd-units renders", "use gpus and engine.pin")


def _lint_user(deployment: Deployment) -> Iterator[Fault]:
    if deployment.engine.user in ("root", "0"):
        what = "the engine runs as root, and so does any code that the model brings"
        yield Fault("engine.user", what, "name a user that can read the model and write its home")


def _lint_pair(deployment: Deployment) -> Iterator[Fault]:
    """Options in which prefill and decode must agree, or the KV cache of one means nothing to the other."""
    for option in _SAME_ON_BOTH:
        values: dict[str, Instance] = {}
        for instance in (*deployment.prefill, *deployment.decode):
            value = instance.args.get(option, deployment.engine.args.get(option))
            values.setdefault(repr(value), instance)
        if len(values) > 1:
            first, second = list(values.values())[:2]
            what = f"differs from {first.where}: prefill and decode must agree in it"
            yield Fault(join_key(f"{second.where}.args", option), what, "set it once, in engine.args")


def _lint_clocks(deployment: Deployment) -> Iterator[Fault]:
    readiness = deployment.readiness
    if readiness.no_progress_declared and readiness.no_progress_s > readiness.timeout_s:
        yield Fault("readiness.no_progress", "is longer than readiness.timeout and so never runs out")


def _lint_router(deployment: Deployment) -> Iterator[Fault]:
    router = deployment.router
    if router is None:
        return
    if router.python in (None, deployment.engine.python):
        yield Fault(
            "router.python",
            "is the engine's interpreter: the router then imports torch and starts 14 to 23 s late",
            "give the router a virtual environment of its own (pip install sglang-router)",
        )
    if router.port < 1024 and (router.user or deployment.engine.user) not in ("root", "0"):
        yield Fault("router.port", f"port {router.port} is below 1024, which only root may open")
