"""`pd-units history`."""

from __future__ import annotations

import click

from pd_units.cli.output import emit, envelope, json_option
from pd_units.errors import DeploymentError, ExitCode
from pd_units.generations import Generation, iso, read_generations
from pd_units.index import installed_names, read_index
from pd_units.manifest import operation_words, read_operation
from pd_units.naming import Names, stem
from pd_units.report import table


@click.command(name="history", short_help="Show the generations of a deployment.")
@click.argument("name")
@json_option
def command(name: str, as_json: bool) -> int:
    """Show the generations of a deployment: when, what changed, what came of it, and the time to ready.

    Needs no root. A star marks the generation that is installed.
    """
    names = Names(name)
    generations = read_generations(names)
    index = read_index(name)
    if not generations and index is None:
        raise DeploymentError(
            f"no deployment {name!r} is known on this host",
            detail=f"installed: {', '.join(installed_names()) or 'none'}",
            exit_code=ExitCode.UNREADABLE,
        )
    current = index.generation if index is not None else None
    rows = [generation.to_json(current=generation.number == current) for generation in generations]
    obj = envelope(ExitCode.OK, f"{len(rows)} generations", name=name, current=current, generations=rows)
    emit(as_json, obj, _text(generations, current, names))
    return ExitCode.OK


def _text(generations: tuple[Generation, ...], current: int | None, names: Names) -> str:
    rows = [("", "GENERATION", "WHEN", "RESULT", "READY IN", "WHAT")]
    for generation in generations:
        seconds = generation.seconds_to_ready
        rows.append(
            (
                "*" if generation.number == current else "",
                str(generation.number),
                iso(generation.began),
                _result(generation),
                f"{seconds:.1f} s" if seconds is not None else "-",
                _what(generation),
            )
        )
    lines = [table(rows)]
    for generation in generations:
        if not generation.good and generation.message:
            lines.append(f"generation {generation.number}: {generation.message}")
    operation = read_operation(names)
    if operation is not None:
        lines.append(operation_words(names.deployment, operation))
    return "\n".join(lines)


def _what(generation: Generation) -> str:
    """What it changed, in a few words: the first restart and why, and how many more there were."""
    told = [change for change in generation.changes if not change.endswith(": not there yet")]
    if len(told) < len(generation.changes) and not generation.replaces:
        return "first install"
    restarts = [change.removeprefix("restart ") for change in told if change.startswith("restart ")]
    restarts = [change for change in restarts if "no other pair serves" not in change]
    writes = [change.removeprefix("write ") for change in told if change.startswith(("write ", "remove "))]
    first, *more = restarts or writes or [""]
    unit, _, reason = first.partition(": ")
    words = f"{stem(unit)}: {reason.removeprefix('ExecStart changed: ')}" if reason else first
    return words + (f" (and {len(more)} more)" if more else "")


def _result(generation: Generation) -> str:
    if generation.result == "ready":
        return "good" if generation.good else "unstable"
    return f"{generation.result}, rolled back" if generation.rolled_back else str(generation.result)
