"""Command lines of engine and router: what pd-units derives, then the file's own options."""

from __future__ import annotations

from collections.abc import Sequence

from pd_units.engines.options import Program
from pd_units.model_types import ArgValue, Deployment, Engine, Instance
from pd_units.naming import Role
from pd_units.pinning import Placement
from pd_units.plan_checks import default_tensor_parallel_size
from pd_units.plan_environment import transfer_backend

Lines = tuple[tuple[str, ...], ...]

_WILDCARDS = ("0.0.0.0", "::", "")
#: The router's own defaults notice a dead worker after up to 180 s, keep a breaker open for 60 s after
#: it is back, and look for a late worker every 30 s.
_ROUTER_DEFAULTS: dict[str, ArgValue] = {
    "worker-startup-check-interval": 5,
    "health-check-interval-secs": 5,
    "health-failure-threshold": 2,
    "health-success-threshold": 1,
    "cb-timeout-duration-secs": 10,
}
#: The router gives a worker up for good after this: never sooner than its unit does.
_WORKER_STARTUP_S = 7200
_WORKER_STARTUP_MARGIN_S = 600


def url_of(host: str, port: int) -> str:
    """URL at which a process of this host is reached; loopback where it listens everywhere."""
    if host in ("::", "::0"):
        host = "::1"
    elif host in _WILDCARDS:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def engine_options(
    deployment: Deployment, instance: Instance, program: Program, placement: Placement
) -> dict[str, ArgValue]:
    """Options of a backend: what pd-units derives, then the file's own, which win."""
    engine = deployment.engine
    declared = program.resolve(((f"{instance.where}.args", instance.args), ("engine.args", engine.args)))
    host = str(declared.get("host", "127.0.0.1"))
    options: dict[str, ArgValue] = {"model-path": engine.model, "host": host, "port": instance.port}
    options["tensor-parallel-size"] = default_tensor_parallel_size(declared, len(instance.gpus))
    if placement.base_gpu_id is not None:
        options["base-gpu-id"] = placement.base_gpu_id
    if placement.gpu_id_step is not None:
        options["gpu-id-step"] = placement.gpu_id_step
    if instance.role is not Role.STANDALONE:
        options["disaggregation-mode"] = str(instance.role)
        options["disaggregation-transfer-backend"] = transfer_backend(deployment, instance)
        if instance.bootstrap_port is not None:
            options["disaggregation-bootstrap-port"] = instance.bootstrap_port
    if instance.dist_init_port is not None:
        # prefill opens its bootstrap port on this address's host, and decode dials the host of its URL
        options["dist-init-addr"] = url_of(host, instance.dist_init_port).removeprefix("http://")
    return options | declared


def engine_lines(engine: Engine, options: dict[str, ArgValue]) -> Lines:
    """argv of a backend, an option and its values a line."""
    return ((engine.python, "-m", "sglang.launch_server"), *option_lines(options))


def behind(words: tuple[str, ...], lines: Lines) -> Lines:
    """A command line behind the words of another program that executes it."""
    return ((*words, *lines[0]), *lines[1:])


def mounts_of(*paths: str) -> tuple[str, ...]:
    """What must be mounted for a start: each path that is one, once."""
    return tuple(dict.fromkeys(path for path in paths if path.startswith("/")))


def router_lines(
    deployment: Deployment,
    backends: Sequence[tuple[Role, str, int | None]],
    program: Program,
    longest_start_s: int,
) -> Lines:
    """argv of the router. `longest_start_s`: the longest start timeout of its backends."""
    router = deployment.router
    assert router is not None
    declared = program.resolve((("router.args", router.args),))
    lines: list[tuple[str, ...]] = [
        (router.python or deployment.engine.python, "-m", "sglang_router.launch_router"),
        ("--pd-disaggregation",),
    ]
    for role, url, bootstrap_port in backends:
        if role is Role.PREFILL:
            lines.append(("--prefill", url, str(bootstrap_port)))
    lines += [("--decode", url) for role, url, _ in backends if role is Role.DECODE]
    options: dict[str, ArgValue] = {"host": router.host, "port": router.port}
    patience_s = max(_WORKER_STARTUP_S, longest_start_s + _WORKER_STARTUP_MARGIN_S)
    defaults = _ROUTER_DEFAULTS | {"worker-startup-timeout-secs": patience_s}
    options |= {name: value for name, value in defaults.items() if program.has(name)}
    options |= declared
    return (*lines, *option_lines(options))


def option_lines(options: dict[str, ArgValue]) -> Lines:
    """Options as arguments. False leaves one out; a value that starts with a dash, and is no number, is
    joined with `=`, or argparse would take it for an option."""
    lines: list[tuple[str, ...]] = []
    for name, value in options.items():
        flag = f"--{name}"
        if value is False:
            continue
        if value is True:
            lines.append((flag,))
        elif isinstance(value, tuple):
            lines.append((flag, *map(_text, value)))
        elif isinstance(value, str) and value.startswith("-"):
            lines.append((f"{flag}={value}",))
        else:
            lines.append((flag, _text(value)))
    return tuple(lines)


def _text(value: str | int | float) -> str:
    return repr(value) if isinstance(value, float) else str(value)
