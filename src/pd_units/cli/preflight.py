"""`pd-units preflight`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pd_units.access import connect
from pd_units.cli.options import skip_option, topology_of, topology_option
from pd_units.cli.output import emit, envelope, json_option, warn
from pd_units.errors import ExitCode
from pd_units.preflight import CHECKS, Check, Severity, run_checks
from pd_units.prepare import (
    Choices,
    deployment_files,
    plan_sources,
    read_sources,
    subject_of,
    warnings_of,
)
from pd_units.report import table


@click.command(name="preflight", short_help="Check whether this host can run a deployment.")
@click.argument("files", nargs=-1, metavar="[FILE|NAME...]")
@click.option(
    "--list", "list_checks", is_flag=True, help="Name the checks and what each looks at, and check nothing."
)
@skip_option
@topology_option
@json_option
def command(
    files: tuple[str, ...],
    list_checks: bool,
    skip: tuple[str, ...],
    topology_file: Path | None,
    as_json: bool,
) -> int:
    """Check whether this host can run a deployment, each check with its evidence.

    Without an argument: every /etc/pd-units/*.toml; NAME stands for the file of an installed deployment, as
    it was installed. Needs no root, and sees more with it. Exit code 13 if a check of severity error failed.
    """
    if list_checks:
        rows = [(name, (check.__doc__ or "").split("\n")[0]) for name, check in CHECKS.items()]
        obj = envelope(ExitCode.OK, "checks", checks=[{"name": n, "what": what} for n, what in rows])
        emit(as_json, obj, table(rows))
        return ExitCode.OK
    manager = connect(needed=False)
    choices = Choices(skip=frozenset(skip))
    sources = read_sources(deployment_files(files))
    topology = topology_of(topology_file)
    plans = plan_sources(sources, topology, manager, choices)
    results: list[Check] = []
    for source, plan in zip(sources, plans, strict=True):
        warn(warnings_of(source, plan))
        results += run_checks(subject_of(plan, topology, manager), skip=choices.skip)
    bad = [check for check in results if not check.ok and check.severity is Severity.ERROR]
    code = ExitCode.PREFLIGHT if bad else ExitCode.OK
    message = f"failed: {', '.join(dict.fromkeys(c.name for c in bad))}" if bad else "this host can run it"
    lines = [
        ("ok" if c.ok else str(c.severity), c.name, c.evidence + (f" -> {c.advice}" if c.advice else ""))
        for c in results
    ]
    if os.geteuid() != 0:
        click.echo("note: without root, owners of ports and other users' files are not seen", err=True)
    obj = envelope(code, message, checks=[check.to_json() for check in results])
    emit(as_json, obj, table(lines) + f"\n{message}" if lines else message)
    return code
