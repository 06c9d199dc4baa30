"""`pd-units diagnose`: verdict and cause of a start-up log, on any machine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from pd_units.cli.output import emit, envelope, json_option
from pd_units.diagnosis import Classifier, Diagnosis, ExitStatus, Rules, Verdict, load_rules
from pd_units.errors import DeploymentError, ExitCode
from pd_units.index import installed_names, read_index
from pd_units.verdicts import EndOfLife

_LONGEST_LINE = 4 * 1024 * 1024
_TEXT_WIDTH = 200


@dataclass(frozen=True, slots=True)
class UnitText:
    """The output of one unit's newest life: (text, written by PID 1) pairs, oldest first, and its end."""

    unit: str
    role: str | None
    entries: Iterable[tuple[str, bool]]
    exit_status: ExitStatus | None = None
    alive: bool | None = None


def read_lives(name: str) -> Sequence[UnitText]:
    """The newest life of each unit of the deployment `name`.

    Raises: DeploymentError 10 if there is none, HostError 30 without systemd, 42 for an unreadable journal.
    """
    from pd_units.access import connect
    from pd_units.adapters import journal
    from pd_units.observe import observe

    index = read_index(name)
    if index is None:
        raise DeploymentError(
            f"{name}: no such file, and no such deployment",
            detail=f"installed: {', '.join(installed_names()) or 'none'}",
            hint="give a log file, - for stdin, or the name of an installed deployment",
            exit_code=ExitCode.UNREADABLE,
        )
    if not journal.readable():
        raise journal.unreadable_error()
    manager = connect(needed=True)
    assert manager is not None
    texts = []
    for unit in observe(manager, index):
        life = journal.Life(
            unit=unit.unit,
            invocation_id=unit.status.invocation_id,
            main_pid=unit.status.exec_main_pid,
            since_mono_us=unit.status.exec_main_start_mono_us,
            namespace=unit.status.log_namespace,
        )
        killed = unit.end is not None and unit.end.by_watcher  # PID 1's lines would only tell of that
        lines = journal.read_life(life) if life.invocation_id else []
        texts.append(
            UnitText(
                unit=unit.unit,
                role=str(unit.declared.role),
                entries=[(line.text, line.of_manager) for line in lines if not (killed and line.of_manager)],
                exit_status=_recorded_exit(unit.end),
                alive=unit.status.main_pid != 0,
            )
        )
    return texts


def _recorded_exit(end: EndOfLife | None) -> ExitStatus | None:
    """How the recorded life ended; None if it runs, or if we ended it ourselves."""
    if end is None or not end.exit_status or end.requested or end.by_watcher:
        return None
    exited = end.exit_code == "exited"
    return ExitStatus.parse(end.exit_status if exited else f"SIG{end.exit_status.removeprefix('SIG')}")


class _Status(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    name = "status"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ExitStatus | None:
        if value is None or isinstance(value, ExitStatus):
            return value
        try:
            return ExitStatus.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(short_help="Say what became of a start, and why.")
@click.argument("source", metavar="[FILE|-|NAME]", required=False)
@click.option(
    "--exit-status",
    type=_Status(),
    help="How the process ended, a second witness beside the text: 2, 137, -9, SIGKILL.",
)
@json_option
def command(source: str | None, exit_status: ExitStatus | None, as_json: bool) -> int:
    """Say what became of a start: ready, failed and why, still starting, or unknown.

    Reads a log file, stdin (-), or the journal of the installed deployment NAME. Of several lives in one
    log the newest counts. A verdict is never a guess: what the text does not prove is starting or unknown.
    The exit code is 0 whatever the verdict.
    """
    if source is None:
        if sys.stdin.isatty():
            raise click.UsageError("give a log file, - for stdin, or the name of an installed deployment")
        source = "-"
    rules = load_rules(strict=True)
    if not _is_path(source):
        return _deployment(source, exit_status, rules, as_json)
    diagnosis = _file(source, exit_status, rules)
    message = headline(diagnosis, rules)
    emit(as_json, envelope(ExitCode.OK, message, **as_fields(diagnosis)), as_text(diagnosis, rules))
    return ExitCode.OK


def _is_path(source: str) -> bool:
    """Whether it names a file, or a pipe as `<(journalctl -u UNIT)` makes one; else it names a deployment."""
    return source == "-" or "/" in source or Path(source).is_file()


def _file(source: str, exit_status: ExitStatus | None, rules: Rules) -> Diagnosis:
    classifier = Classifier(rules)
    try:
        if source == "-":
            classifier.feed_many(_lines(sys.stdin.buffer))
        else:
            with Path(source).open("rb") as file:
                classifier.feed_many(_lines(file))
    except OSError as error:
        raise DeploymentError(f"{source}: {error.strerror or error}", exit_code=ExitCode.UNREADABLE) from None
    return classifier.diagnose(exit_status)


def _lines(file: BinaryIO) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        yield line.decode("utf-8", errors="replace").rstrip("\n")


def _deployment(name: str, exit_status: ExitStatus | None, rules: Rules, as_json: bool) -> int:
    units: list[dict[str, Any]] = []
    texts: list[str] = []
    for unit in read_lives(name):
        classifier = Classifier(rules, role=unit.role, cut_lives=False)
        for text, manager in unit.entries:
            classifier.feed(text, manager=manager)
        diagnosis = classifier.diagnose(exit_status or unit.exit_status, alive=unit.alive)
        units.append({"unit": unit.unit, "role": unit.role, **as_fields(diagnosis)})
        texts.append(f"{unit.unit}: {as_text(diagnosis, rules)}")
    worst = _worst(units)
    obj = envelope(ExitCode.OK, f"{name}: {worst.get('verdict', Verdict.UNKNOWN)}", **worst, units=units)
    emit(as_json, obj, "\n\n".join(texts))
    return ExitCode.OK


_BADNESS = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.STARTING, Verdict.READY)


def _worst(units: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The fields of the unit that is furthest from ready, for the top of the answer."""
    if not units:
        return {}
    return min(units, key=lambda unit: (_BADNESS.index(unit["verdict"]), unit["cause"] == "none"))


# ----------------------------------------------------------------------------------------------- rendering
def as_fields(diagnosis: Diagnosis) -> dict[str, Any]:
    """The JSON keys of one diagnosis."""
    progress, death = diagnosis.progress, diagnosis.death
    return {
        "verdict": diagnosis.verdict,
        "cause": diagnosis.cause,
        "phase": diagnosis.phase,
        "progress": {"done": progress.done, "total": progress.total, "what": progress.what}
        if progress
        else None,
        "evidence": [
            {"line": one.line, "text": one.text, "strength": one.strength, "rule": one.rule}
            for one in diagnosis.evidence
        ],
        "advice": diagnosis.advice,
        "warnings": [
            {"name": one.name, "text": one.text, "advice": one.advice, "count": one.count, "line": one.line}
            for one in diagnosis.warnings
        ],
        "capacity": dict(diagnosis.capacity),
        "was_ready": diagnosis.was_ready,
        "died": {"cause": death.cause, "line": death.line, "text": death.text} if death else None,
        "retryable": diagnosis.retryable,
        "lives": diagnosis.lives,
        "note": diagnosis.note,
    }


def headline(diagnosis: Diagnosis, rules: Rules) -> str:
    """One line: the verdict, and for a failure its cause in words."""
    if diagnosis.verdict is Verdict.READY and diagnosis.death is not None:
        return f"ready, then dead: {rules.words(diagnosis.cause)} ({diagnosis.cause})"
    if diagnosis.verdict is Verdict.FAILED:
        return f"failed: {rules.words(diagnosis.cause)} ({diagnosis.cause})"
    where = f", {diagnosis.phase}" if diagnosis.verdict is Verdict.STARTING and diagnosis.phase else ""
    bar = f" {diagnosis.progress}" if where and diagnosis.progress else ""
    note = f" ({diagnosis.note})" if diagnosis.note else ""
    return f"{diagnosis.verdict}{where}{bar}{note}"


def as_text(diagnosis: Diagnosis, rules: Rules) -> str:
    """The whole diagnosis for a reader in a hurry: what, why, what to do, then the rest."""
    lines = [headline(diagnosis, rules)]
    if diagnosis.verdict is Verdict.FAILED and diagnosis.phase:
        bar = f" {diagnosis.progress}" if diagnosis.progress else ""
        lines.append(f"  while {diagnosis.phase}{bar}")
    for one in diagnosis.evidence:
        where = f"line {one.line}: " if one.line is not None else ""
        lines.append(f"  {where}{_short(one.text)}")
    if diagnosis.advice and diagnosis.cause != "none":
        retry = "" if diagnosis.retryable else " (a restart alone will not help)"
        lines.append(f"  -> {diagnosis.advice}{retry}")
    if diagnosis.lives > 1:
        lines.append(f"  {diagnosis.lives} lives in this log; this is the newest")
    if diagnosis.capacity:
        lines.append("capacity: " + ", ".join(f"{key} {value}" for key, value in diagnosis.capacity.items()))
    for warning in diagnosis.warnings:
        times = f" ({warning.count} lines)" if warning.count > 1 else ""
        lines.append(f"warning: {warning.text}{times}: {warning.advice}")
    return "\n".join(lines)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _TEXT_WIDTH else flat[: _TEXT_WIDTH - 1] + "…"
