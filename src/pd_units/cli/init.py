"""`pd-units init`: a deployment file from a preset and this host's topology."""

from __future__ import annotations

from pathlib import Path

import click

from pd_units.cli.options import topology_of, topology_option
from pd_units.cli.output import emit, envelope, json_option, warn
from pd_units.errors import ExitCode, Fault, HostError
from pd_units.model import Instance, Numa, parse_deployment
from pd_units.propose import description, propose
from pd_units.resources import preset_names, read_preset
from pd_units.topology import format_cpu_list


@click.command(short_help="Write a deployment file for this host.")
@click.option(
    "--preset",
    type=click.Choice(preset_names()),
    default="dsv4-pd",
    show_default=True,
    metavar="NAME",
    help="The preset to begin with.",
)
@click.option("--list", "list_presets", is_flag=True, help="Name the presets, and write nothing.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write into FILE, not to stdout."
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
@topology_option
@json_option
def command(
    preset: str,
    list_presets: bool,
    output: Path | None,
    force: bool,
    topology_file: Path | None,
    as_json: bool,
) -> None:
    """Write a deployment file: a preset, with GPUs and NUMA nodes proposed for this host."""
    if list_presets:
        known = [{"name": name, "description": description(read_preset(name))} for name in preset_names()]
        width = max(len(each["name"]) for each in known)
        text = "\n".join(f"{each['name']:<{width}}  {each['description']}" for each in known)
        emit(as_json, envelope(ExitCode.OK, f"{len(known)} presets", presets=known), text)
        return
    topology = topology_of(topology_file)
    text = propose(read_preset(preset), topology)
    deployment = parse_deployment(text, source=preset)
    if topology.gpus is None:
        warn([Fault("gpus", "the GPUs of this host are not known: the preset's numbers stay")])
    else:
        click.echo("\n".join(map(_proposal_line, deployment.instances)), err=True)
    if output is not None:
        _write(output, text, force=force)
    message = f"{output}: {deployment.name}; now edit python, model and user" if output else deployment.name
    fields = {
        "preset": preset,
        "name": deployment.name,
        "file": str(output) if output else None,
        "proposal": [
            {"role": each.role, "gpus": list(each.gpus), "numa": _numa_json(each.numa)}
            for each in deployment.instances
        ],
        "text": text,
    }
    emit(as_json, envelope(ExitCode.OK, message, **fields), message if output else text.rstrip("\n"))


def _numa_json(numa: Numa) -> list[int] | str:
    return list(numa) if isinstance(numa, tuple) else numa


def _proposal_line(instance: Instance) -> str:
    numa = (
        f"NUMA node {format_cpu_list(instance.numa)}" if isinstance(instance.numa, tuple) else "no one node"
    )
    return f"proposed: {instance.where} on GPU {format_cpu_list(instance.gpus)}, {numa}"


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise HostError(
            f"{path} is there already",
            hint="--force overwrites it",
            exit_code=ExitCode.WRITE_FAILED,
        ) from error
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}", exit_code=ExitCode.WRITE_FAILED) from error
