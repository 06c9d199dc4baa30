"""`pd-units diff`."""

from __future__ import annotations

from pathlib import Path

import click

from pd_units.access import connect
from pd_units.cli.answers import whole
from pd_units.cli.install import show
from pd_units.cli.options import skip_option, topology_of, topology_option
from pd_units.cli.output import json_option
from pd_units.prepare import Choices, deployment_files, plan_sources, prepare, read_sources


@click.command(name="diff", short_help="Show what install would change, and why.")
@click.argument("files", nargs=-1, metavar="[FILE|NAME...]")
@click.option("--exit-code", "pending_code", is_flag=True, help="Exit 50 if changes are pending.")
@skip_option
@topology_option
@json_option
@whole
def command(
    files: tuple[str, ...],
    pending_code: bool,
    skip: tuple[str, ...],
    topology_file: Path | None,
    as_json: bool,
) -> int:
    """Show what install would change: a unified diff, and each change with its reason.

    Without an argument: every /etc/pd-units/*.toml; NAME stands for the file of an installed deployment, as
    it was installed. Needs no root, but for a NAME.
    """
    choices = Choices(skip=frozenset(skip), adopt=True)
    manager = connect(needed=False)
    sources = read_sources(deployment_files(files))
    topology = topology_of(topology_file)
    plans = plan_sources(sources, topology, manager, choices)
    prepared = [
        prepare(source, plan, topology, manager, choices, strict=False)
        for source, plan in zip(sources, plans, strict=True)
    ]
    return show(prepared, as_json=as_json, diff=True, pending_code=pending_code)
