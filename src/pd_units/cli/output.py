"""What every verb prints: one JSON object on stdout, or text; prose about trouble on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from pd_units import SCHEMA, __version__
from pd_units.errors import ExitCode, Fault, PdUnitsError

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """The option `--json`, the same for every verb; the command receives `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")(
        function
    )


def envelope(exit_code: ExitCode | int, message: str, **fields: Any) -> dict[str, Any]:
    """The keys that every JSON answer has, and `fields`."""
    return {
        "schema": SCHEMA,
        "pd_units": __version__,
        "exit_code": int(exit_code),
        "message": message,
        **fields,
    }


def emit(as_json: bool, obj: Mapping[str, Any], text: str) -> None:
    """Print `obj` as one JSON object, or `text`, to stdout."""
    if as_json:
        click.echo(json.dumps(obj, ensure_ascii=False, indent=2))
    elif text:
        click.echo(text)


def warn(faults: Iterable[Fault]) -> None:
    """Print warnings to stderr, one a line."""
    for fault in faults:
        click.echo(f"warning: {fault}", err=True)


def emit_error(as_json: bool, error: PdUnitsError) -> None:
    """Print an error: JSON on stdout, or brief, faults, detail and hint on stderr."""
    if as_json:
        obj = envelope(error.exit_code, error.brief, **error.to_json())
        click.echo(json.dumps(obj, ensure_ascii=False, indent=2))
        return
    click.echo(f"pd-units: {error.brief}", err=True)
    for fault in error.faults:
        click.echo(f"  {fault}", err=True)
    if error.detail:
        click.echo("\n".join(f"  {line}" for line in error.detail.splitlines()), err=True)
    if error.hint:
        click.echo(f"  -> {error.hint}", err=True)
