"""`pd-units validate`: deployment files alone, every fault at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pd_units.cli.output import emit, envelope, json_option, warn
from pd_units.errors import DeploymentError, ExitCode, Fault
from pd_units.model import Deployment, check_together, lint, read_deployment, together_code
from pd_units.pinning import check_gpus_together


@click.command(short_help="Check deployment files, without a look at the host.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@json_option
def command(files: tuple[Path, ...], as_json: bool) -> int:
    """Check deployment files without a look at this host: schema and cross-field faults, all of them.

    Exit code 0, 10 (unreadable, or not TOML), 11 (invalid), or 12 if all that is wrong are GPUs or ports
    used twice; the highest of several files.
    """
    good: list[Deployment] = []
    reports: list[dict[str, Any]] = []
    lines: list[str] = []
    code = ExitCode.OK
    for path in files:
        try:
            deployment = read_deployment(path)
        except DeploymentError as error:
            code = max(code, error.exit_code)
            reports.append(_report(path, None, error.exit_code, error.brief, error.faults, ()))
            lines += [error.brief, *(f"  {fault}" for fault in error.faults)]
            continue
        warnings = lint(deployment)
        warn(Fault(f"{path}: {each.where}", each.what, each.hint) for each in warnings)
        good.append(deployment)
        reports.append(_report(path, deployment.name, ExitCode.OK, "valid", (), warnings))
        lines.append(f"{path}: {deployment.name} is valid")
    together = check_together(good)
    warn(check_gpus_together(good))
    if together:
        code = max(code, together_code(together))
        lines += ["the files do not fit together", *(f"  {fault}" for fault in together)]
    message = "valid" if code is ExitCode.OK else "invalid"
    faults = [{"file": each["file"], **fault} for each in reports for fault in each["faults"]]
    faults += [{"file": None, **_fault(each)} for each in together]
    fields = {"files": reports, "faults": faults}
    if as_json or code is ExitCode.OK:
        emit(as_json, envelope(code, message, **fields), "\n".join(lines))
    else:
        click.echo("\n".join(lines), err=True)
    return code


def _report(
    path: Path,
    name: str | None,
    code: ExitCode,
    message: str,
    faults: tuple[Fault, ...],
    warnings: tuple[Fault, ...],
) -> dict[str, Any]:
    return {
        "file": str(path),
        "name": name,
        "exit_code": int(code),
        "message": message,
        "faults": [_fault(each) for each in faults],
        "warnings": [_fault(each) for each in warnings],
    }


def _fault(fault: Fault) -> dict[str, str]:
    return {"where": fault.where, "what": fault.what, "hint": fault.hint}
