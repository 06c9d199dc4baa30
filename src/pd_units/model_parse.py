"""TOML text to Deployment, every fault of the file in one go."""

from __future__ import annotations

import posixpath
import re
import tomllib
from typing import Final

from pd_units.errors import DeploymentError, ExitCode
from pd_units.model_args import read_args
from pd_units.model_check import check_alone, check_roles
from pd_units.model_fields import INDEX_MAX, Faults, Table, kind_of, require_small_integers
from pd_units.model_types import (
    DEFAULT_BOOTSTRAP_PORT,
    Deployment,
    Engine,
    EngineKind,
    Instance,
    Numa,
    Pin,
    Readiness,
    Router,
)
from pd_units.naming import Names, Role, name_problem, unit_name_problem

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}\$?|\d{1,10}")
_HOST = re.compile(r"[A-Za-z0-9.:_-]+")
_INSTANCE_HINTS: Final = {
    "tp": "the tensor parallel size is the number of gpus; say args = { tensor-parallel-size = N } to differ",
    "host": "write args = { host = ... }",
    "python": "python belongs to [engine]",
    "model": "model belongs to [engine]",
    "user": "user belongs to [engine]",
}


def parse_deployment(text: str, *, source: str) -> Deployment:
    """Deployment that `text` describes; `source` names it in messages.

    Raises: DeploymentError 10 if the text is not TOML; 11 with every fault; 12 if all that is wrong are
    GPUs or ports used twice.
    """
    try:
        data = tomllib.loads(text)
        require_small_integers(data)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of more digits than int() takes
        raise DeploymentError(
            f"{source} is not TOML: {error or 'nested too deeply'}", exit_code=ExitCode.UNREADABLE
        ) from error
    faults = Faults()
    deployment = _deployment(Table(data, "", faults), source)
    check_roles({key for key in Role if data.get(key) not in (None, [])}, faults)
    check_alone(deployment, faults)
    if faults:
        count = len(faults.all)
        raise DeploymentError(
            f"{source} is not a valid deployment: {count} fault{'s' if count != 1 else ''}",
            faults=faults.all,
            exit_code=ExitCode.PLACEMENT if faults.placement_only else ExitCode.INVALID,
        )
    return deployment


def _deployment(root: Table, source: str) -> Deployment:
    """The deployment as far as it can be read. What cannot be read is a fault already, and is left empty
    ("", port 0, no GPUs), so that the rules over several keys can still look at the rest."""
    head = root.table("deployment", required=True)
    name, retires = _head(head) if head else ("", ())
    deployment = Deployment(
        name=name,
        retires=retires,
        engine=_engine(root),
        prefill=_instances(root, Role.PREFILL),
        decode=_instances(root, Role.DECODE),
        standalone=_instances(root, Role.STANDALONE),
        router=_router(root),
        readiness=_readiness(root),
        source=source,
    )
    root.finish()
    return deployment


def _head(table: Table) -> tuple[str, tuple[str, ...]]:
    name = table.text("name", required=True, check=name_problem) or ""
    retires = table.texts("retires", unit_name_problem)
    for number, unit in enumerate(retires):
        if name and Names(name).owns(unit):
            table.faults.add(
                f"{table.where('retires')}[{number}]",
                f"{unit} is one of this deployment's own units",
                "retires names units that the deployment replaces",
            )
    table.finish()
    return name, retires


def _engine(root: Table) -> Engine:
    table = root.table("engine", required=True)
    if table is None:
        return Engine(python="", model="")
    engine = Engine(
        kind=table.choice("kind", EngineKind, EngineKind.SGLANG),
        python=table.text("python", required=True, check=_executable_problem) or "",
        model=table.text("model", required=True, check=_model_problem) or "",
        user=table.text("user", check=_user_problem) or "root",
        pin=table.choice("pin", Pin, Pin.INDEX),
        environment_files=table.texts("environment_files", _environment_file_problem),
        environment=table.variables("environment"),
        sm120=table.variables("sm120"),
        args=read_args(table),
    )
    table.finish()
    return engine


def _instances(root: Table, role: Role) -> tuple[Instance, ...]:
    return tuple(_instance(table, role, number) for number, table in enumerate(root.tables(role)))


def _instance(table: Table, role: Role, index: int) -> Instance:
    bootstrap = table.port("bootstrap_port") if role is not Role.STANDALONE else None
    if role is Role.PREFILL and not table.has("bootstrap_port"):
        bootstrap = DEFAULT_BOOTSTRAP_PORT
    instance = Instance(
        role=role,
        index=index,
        gpus=table.integers("gpus", what="GPU index", plural="GPU indexes", required=True),
        numa=_numa(table),
        port=table.port("port", required=True) or 0,
        bootstrap_port=bootstrap,
        dist_init_port=table.port("dist_init_port"),
        args=read_args(table),
        environment=table.variables("environment"),
    )
    hints = dict(_INSTANCE_HINTS)
    if role is Role.STANDALONE:
        hints["bootstrap_port"] = "only prefill and decode have a bootstrap port"
    table.finish(hints)
    return instance


def _numa(table: Table) -> Numa:
    """`numa` in any of its forms: a node, a list of nodes, "auto", "none"."""
    if not table.has("numa"):
        table.value("numa")
        return "auto"
    value = table.value("numa")
    if value == "auto":
        return "auto"
    if value == "none":
        return "none"
    if type(value) is int and 0 <= value <= INDEX_MAX:
        return (value,)
    if type(value) is list:
        return table.integers("numa", what="NUMA node", plural="NUMA nodes", required=True) or "auto"
    shown = repr(value) if type(value) in (str, int) else kind_of(value)
    table.fault("numa", f'must be a NUMA node, a list of NUMA nodes, "auto" or "none", not {shown}')
    return "auto"


def _router(root: Table) -> Router | None:
    table = root.table("router")
    if table is None:
        return None
    router = Router(
        host=table.text("host", check=_host_problem) or "127.0.0.1",
        port=table.port("port", required=True) or 0,
        python=table.text("python", check=_executable_problem),
        user=table.text("user", check=_user_problem),
        environment_files=table.texts("environment_files", _environment_file_problem),
        environment=table.variables("environment"),
        args=read_args(table, router=True),
    )
    table.finish()
    return router


def _readiness(root: Table) -> Readiness:
    table = root.table("readiness")
    if table is None:
        return Readiness()
    defaults = Readiness()
    timeout, _ = table.duration("timeout", defaults.timeout_s)
    extend, _ = table.duration("extend", defaults.extend_s)
    no_progress, declared = table.duration("no_progress", defaults.no_progress_s)
    smoke_test = table.flag("smoke_test", default=defaults.smoke_test)
    table.finish()
    return Readiness(
        timeout_s=timeout,
        extend_s=extend,
        no_progress_s=no_progress,
        no_progress_declared=declared,
        smoke_test=smoke_test,
    )


def _path_problem(path: str) -> str | None:
    """systemd takes absolute paths, and rewrites those that are not in normal form."""
    if not path.startswith("/"):
        return "must be an absolute path"
    if path == "/":
        return "is the root directory"
    plain = posixpath.normpath(path)
    return f"must be a plain path, such as {plain}" if plain != path else None


def _executable_problem(path: str) -> str | None:
    """systemd refuses quotes and backslashes in the path of a command, and `$` in it is not expanded there
    but is in argv[0] (config_parse_exec, replace_env_argv), so that no spelling gives both right."""
    if bad := sorted(set(path) & set("\"'\\$\t")):
        return f"holds {' '.join(map(repr, bad))}, which systemd does not take in the path of a program"
    return _path_problem(path)


def _environment_file_problem(path: str) -> str | None:
    """The value of EnvironmentFile= is not unquoted and is a glob (config_parse_unit_env_file,
    exec_context_load_environment)."""
    if path.startswith("-"):
        return "must be an absolute path; a declared file must exist, so the dash of unit files is not taken"
    if bad := sorted(set(path) & set("*?[]\\\"'\t")):
        return f"holds {' '.join(map(repr, bad))}, which systemd does not take literally in EnvironmentFile="
    if path != path.strip():
        return "ends with a blank, which systemd strips"
    return _path_problem(path)


def _model_problem(model: str) -> str | None:
    if model.startswith("/"):
        return _path_problem(model)
    if model.startswith(("./", "../", "~")) or model in (".", ".."):
        return "must be an absolute path, or the name of a model on a hub"
    return "must not start with a dash" if model.startswith("-") else None


def _user_problem(user: str) -> str | None:
    return None if _USER.fullmatch(user) else "is not a user name or number"


def _host_problem(host: str) -> str | None:
    return None if _HOST.fullmatch(host) else "is not an address or host name"
