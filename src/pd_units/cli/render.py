"""`pd-units render`: the units of a deployment, without touching the host."""

from __future__ import annotations

from pathlib import Path

import click

from pd_units.adapters.host import host_facts
from pd_units.cli.options import topology_of, topology_option
from pd_units.cli.output import emit, envelope, json_option, warn
from pd_units.errors import ExitCode, HostError
from pd_units.model import lint, read_deployment
from pd_units.plan import make_plan
from pd_units.render import render_units
from pd_units.rendered import RenderedUnit, shipped_units


@click.command(short_help="Print the units of a deployment.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the units into DIR, not to stdout.",
)
@topology_option
@json_option
def command(file: Path, output: Path | None, topology_file: Path | None, as_json: bool) -> None:
    """Print the units of a deployment, each under a "# PATH" line, or write them into a directory.

    The same file on the same host, or with the same --topology, gives the same bytes.
    """
    deployment = read_deployment(file)
    facts = host_facts(deployment, topology_of(topology_file), None)
    plan = make_plan(deployment, facts)
    units = (*render_units(plan), *shipped_units())
    warnings = (*lint(deployment), *plan.warnings)
    warn(warnings)
    text = "\n".join(f"# {unit.path}\n{unit.text}" for unit in units).rstrip("\n")
    if output is not None:
        _write(output, units)
        text = "\n".join(str(output / unit.name) for unit in units)
    fields = {
        "deployment": deployment.name,
        "units": [
            {"unit": unit.name, "role": unit.role, "path": unit.path, "text": unit.text} for unit in units
        ],
        "warnings": [{"where": each.where, "what": each.what, "hint": each.hint} for each in warnings],
    }
    message = f"{len(units)} units" + (f" written into {output}" if output else "")
    emit(as_json, envelope(ExitCode.OK, message, **fields), text)


def _write(directory: Path, units: tuple[RenderedUnit, ...]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for unit in units:
            (directory / unit.name).write_text(unit.text, encoding="utf-8")
    except OSError as error:
        raise HostError(
            f"cannot write into {directory}: {error.strerror}", exit_code=ExitCode.WRITE_FAILED
        ) from error
