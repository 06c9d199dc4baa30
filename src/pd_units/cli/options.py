"""Options and parameter types that several verbs share."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pd_units.adapters.sysfs import read_topology
from pd_units.errors import DeploymentError, ExitCode
from pd_units.preflight import CHECKS
from pd_units.topology import HostTopology
from pd_units.topology_json import topology_from_json

UNKNOWN_TOPOLOGY = HostTopology(numa_nodes=None, gpus=None, nics=None)

skip_option = click.option(
    "--skip",
    multiple=True,
    metavar="CHECK",
    type=click.Choice(tuple(CHECKS)),
    help="Leave a preflight check out (preflight --list names them); may be repeated.",
)
topology_option = click.option(
    "--topology",
    "topology_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Take GPUs and NUMA nodes from FILE (`pd-units topology --json`), not from this host.",
)


def topology_of(file: Path | None) -> HostTopology:
    """The topology of a file, or of this host. Raises: DeploymentError 10 for an unreadable file."""
    if file is None:
        return read_topology()
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeploymentError(
            f"cannot read {file}", detail=error.strerror or str(error), exit_code=ExitCode.UNREADABLE
        ) from error
    except (ValueError, RecursionError) as error:
        raise DeploymentError(
            f"{file} is not JSON",
            detail=str(error) or "nested too deeply",
            hint="write it with: pd-units topology --json > topology.json",
            exit_code=ExitCode.UNREADABLE,
        ) from error
    return topology_from_json(data, source=str(file))
