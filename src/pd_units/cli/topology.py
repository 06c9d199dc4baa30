"""`pd-units topology`: GPUs, NUMA nodes, CPUs and NICs of a host, and the units that were placed on them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pd_units.adapters.sysfs import read_topology
from pd_units.cli.output import emit, envelope, json_option, warn
from pd_units.errors import ExitCode, HostError
from pd_units.topology import HostTopology
from pd_units.topology_json import to_json
from pd_units.topology_text import Tenant, draw_text, summary, to_ascii


@click.command(short_help="Show GPUs, NUMA nodes, CPUs and NICs of this host.")
@click.option(
    "--sysroot",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    metavar="DIR",
    help="Read DIR/sys and DIR/proc in place of this host's.",
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw it into FILE too."
)
@json_option
def command(sysroot: Path, svg: Path | None, as_json: bool) -> None:
    """Show the GPUs, NUMA nodes, CPUs and NICs of this host, and which installed unit has which.

    GPUs count in PCI order, as nvidia-smi does. What is not known is null in --json, a question mark in the
    picture, and named in the notes. --json writes what --topology FILE of other verbs takes.
    """
    topology = read_topology(sysroot)
    tenants = _tenants(topology) if sysroot.resolve() == Path("/") else ()
    if svg is not None:
        from pd_units.topology_svg import draw_svg

        _write(svg, draw_svg(topology, tenants))
    fields = {
        **to_json(topology),
        "units": [
            {"unit": each.unit, "role": each.role, "gpus": list(each.gpus), "numa": list(each.numa)}
            for each in tenants
        ],
    }
    emit(
        as_json, envelope(ExitCode.OK, summary(topology), **fields), _for_stdout(draw_text(topology, tenants))
    )


def _tenants(topology: HostTopology) -> tuple[Tenant, ...]:
    """The installed units that have GPUs or NUMA nodes, with a warning for GPUs that moved since. A damaged
    index costs its own units only."""
    # half of this command's time, and not needed for a recorded tree
    from pd_units.index import installed_names, read_index
    from pd_units.pinning import moved_gpus

    found = []
    for name in installed_names():
        try:
            index = read_index(name)
        except HostError:
            continue
        for unit in index.units if index is not None else ():
            if unit.gpus or unit.numa:
                warn(moved_gpus(unit.unit, unit.gpu_addresses, topology))
                found.append(Tenant(unit=unit.unit, role=unit.role, gpus=unit.gpus, numa=unit.numa))
    return tuple(found)


def _for_stdout(text: str) -> str:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return to_ascii(text)
    return text


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}", exit_code=ExitCode.WRITE_FAILED) from error
