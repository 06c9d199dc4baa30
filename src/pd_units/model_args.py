"""Reads an `args` table: engine and router options under their own names."""

from __future__ import annotations

import math
import re
from types import MappingProxyType
from typing import Final

from pd_units.model_fields import Table, kind_of, text_problem
from pd_units.model_types import ArgValue

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")

_ENGINE_DERIVED: Final = {
    "model-path": "engine.model",
    "model": "engine.model",
    "port": "port of the instance",
    "disaggregation-mode": "[[prefill]] and [[decode]]",
    "disaggregation-bootstrap-port": "bootstrap_port",
    "dist-init-addr": "dist_init_port",
    "nccl-init-addr": "dist_init_port",
}
_ROUTER_DERIVED: Final = {
    "pd-disaggregation": "[[prefill]] and [[decode]]",
    "prefill": "[[prefill]]",
    "decode": "[[decode]]",
    "host": "router.host",
    "port": "router.port",
}


def read_args(table: Table, *, router: bool = False) -> MappingProxyType[str, ArgValue]:
    """The options of `table`'s `args`, engine options unless `router`."""
    found: dict[str, ArgValue] = {}
    args = table.table("args")
    derived = _ROUTER_DERIVED if router else _ENGINE_DERIVED
    for name, value in args.data.items() if args else ():
        assert args is not None
        where = args.where(name)
        problem, hint = _name_problem(name, derived)
        if problem:
            args.faults.add(where, problem, hint)
            continue
        read = _value(args, where, value)
        if read is not None:
            found[name] = read
    return MappingProxyType(found)


def _name_problem(name: str, derived: dict[str, str]) -> tuple[str, str]:
    bare = name.lstrip("-")
    if bare != name:
        return "must be written without its dashes", f"write {bare}" if bare else ""
    if "_" in name:
        return "is spelt with a dash on the command line", f"write {name.replace('_', '-')}"
    if not _NAME.fullmatch(name):
        return "is not the name of an option", ""
    if name in derived:
        return "is set by pd-units itself", f"from {derived[name]}"
    return "", ""


def _value(args: Table, where: str, value: object) -> ArgValue | None:
    if type(value) is list:
        if not value:
            args.faults.add(where, "is an empty list", "write true for a bare flag, or name the values")
            return None
        items = [_scalar(args, f"{where}[{number}]", item, in_list=True) for number, item in enumerate(value)]
        return None if None in items else tuple(item for item in items if item is not None)
    if type(value) is bool:
        return value
    return _scalar(args, where, value, in_list=False)


def _scalar(args: Table, where: str, value: object, *, in_list: bool) -> str | int | float | None:
    problem, hint = None, ""
    if type(value) is float and not math.isfinite(value):
        problem = "must be a finite number"
    elif type(value) is str:
        problem = text_problem(value)
        if problem is None and in_list and value.startswith("-"):
            problem, hint = "starts with a dash and would be read as an option", "give a list no such value"
    elif type(value) is dict:
        problem, hint = "must not be a table", "an option that takes JSON is a string: '{\"a\": 1}'"
    elif type(value) not in (int, float):
        problem = f"must be a string, a number, true, false or a list of them, not {kind_of(value)}"
    if problem:
        args.faults.add(where, problem, hint)
        return None
    assert isinstance(value, str | int | float)
    return value
