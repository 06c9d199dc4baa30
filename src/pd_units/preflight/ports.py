"""Every port that the deployment listens on. A taken one otherwise shows only after minutes of loading."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from pd_units.adapters import procfs
from pd_units.model_types import port_of
from pd_units.naming import Role
from pd_units.plan import Plan
from pd_units.preflight.base import Result, Subject, bad, good
from pd_units.preflight.drop_ins import overrides_of
from pd_units.preflight.system import check_overrides

_LISTEN = "0A"
_PORT_OPTIONS = ("--nccl-port", "--gated-launch-port", "--prometheus-port")


def check_ports(subject: Subject) -> Result:
    """Every port is free, or held by the unit that it is for or by one that is replaced."""
    taken = False
    for port, unit in sorted(ports_of(subject.plan).items()):
        if not procfs.port_in_use(port):
            continue
        pid = procfs.port_owner(port)
        owner = procfs.unit_of(pid) if pid is not None else ""
        if owner in subject.ours or (pid is None and _runs(subject, unit)):
            continue
        taken = True
        advice = f"{subject.how_to_free(owner)}, or give {unit} another port"
        yield bad("ports", f"port {port} of {unit} is held by {_holder(port, pid, owner)}", advice)
    if not taken:
        yield good("ports", "free: " + ", ".join(str(port) for port in sorted(ports_of(subject.plan))))
    yield from check_overrides(overrides_of(subject), "ports")


def _runs(subject: Subject, unit: str) -> bool:
    """Whether the unit that the port is for, or one that it replaces, runs: the unseen holder is that one."""
    if subject.manager is None or subject.root:
        return False
    return any(subject.manager.unit(each).main_pid for each in (unit, *subject.replaced))


def _holder(port: int, pid: int | None, owner: str) -> str:
    if pid is None:
        user = socket_user(port)
        return (
            f"a process of {user}, which this user cannot see" if user else "a process that is not seen here"
        )
    argv = procfs.command_line(pid)
    command = f" {' '.join(argv)[:80]}" if argv else ""
    return f"process {pid}{command}" + (f" of {owner}" if owner else "")


def socket_user(port: int) -> str:
    """The name of the user whose socket listens on a TCP port; "" if there is none. Source: proc(5)."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{os.getpid()}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                uid = int(fields[7])
                try:
                    return pwd.getpwuid(uid).pw_name
                except KeyError:
                    return f"user {uid}"
    return ""


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
    for each in plan.units:
        for line in each.exec_start:
            port = port_of(line[1]) if line[0] in _PORT_OPTIONS and len(line) == 2 else None
            if port is not None:
                ports[port] = each.unit
    return ports
