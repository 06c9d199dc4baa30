"""Results as text: the status table, one line a change of state, the story of a failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pd_units.changes import ChangeSet, Kind
from pd_units.naming import stem
from pd_units.observe import UnitReport, UnitState, is_backend
from pd_units.readiness import Source
from pd_units.waiting import DeploymentReport

_MARKS = {
    Kind.WRITE: "+",
    Kind.REMOVE: "-",
    Kind.ENABLE: "+",
    Kind.DISABLE: "-",
    Kind.RELOAD: "*",
    Kind.START: ">",
    Kind.RESTART: ">",
    Kind.STOP: "x",
    Kind.RETIRE: "x",
    Kind.KEEP: "=",
}


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, two blanks apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def status_text(reports: Iterable[DeploymentReport]) -> str:
    """The table of `status`, a block a deployment."""
    return "\n\n".join(_deployment_text(report) for report in reports)


def _deployment_text(report: DeploymentReport) -> str:
    head = f"{report.index.name}: {report.state} (generation {report.index.generation})"
    rows = [("UNIT", "STATE", "READY IN", "GPUS", "NUMA", "RESTARTS", "DETAIL")]
    for unit in report.units:
        seconds = unit.seconds_to_ready
        rows.append(
            (
                stem(unit.unit),
                _shown_state(report, unit),
                f"{seconds:.1f} s" if seconds is not None else "-",
                ",".join(map(str, unit.declared.gpus)) or "-",
                ",".join(map(str, unit.declared.numa)) or "-",
                str(unit.status.n_restarts),
                _detail(report, unit),
            )
        )
    lines = [head, table(rows)]
    if report.router is not None and report.router.smoke == "passed":
        lines.append("A generation came back through the router.")
    lines += _placement_lines(report.units)
    if report.interrupted:
        lines.append(report.interrupted)
    for unit in report.units:
        if unit.cause != "none":
            lines += ["", failure_text(unit)]
        lines += [f"warning: {stem(unit.unit)}: {row['text']}" for row in _warnings(unit)]
    return "\n".join(lines)


def _placement_lines(units: Sequence[UnitReport]) -> list[str]:
    """What was measured of the placement: every deviation, or that there is none."""
    measured = [unit.placement for unit in units if unit.placement is not None]
    lines = [f"wrong placement: {each}" for found in measured for each in found.deviations]
    verified = [found for found in measured if found.verified]
    if verified and not lines:
        processes = sum(found.processes for found in verified)
        flags = sorted({f"{k}={v}" for found in verified for k, v in found.sm120.items()})
        with_flags = f", with {' '.join(flags)}" if flags else ""
        lines.append(f"Placement verified on {processes} running processes{with_flags}.")
    return lines


def _shown_state(report: DeploymentReport, unit: UnitReport) -> str:
    return str(UnitState.STARTING if _is_useless(report, unit) else unit.state)


def _is_useless(report: DeploymentReport, unit: UnitReport) -> bool:
    """Whether it is a router that is up, but through which no request would be served now."""
    router = report.router
    up = router is not None and router.unit == unit.unit and unit.state is UnitState.READY
    return up and router is not None and not router.ready


def _detail(report: DeploymentReport, unit: UnitReport) -> str:
    router = report.router
    if router is not None and router.unit == unit.unit and router.asked and router.detail:
        return router.detail
    if unit.state is UnitState.READY and unit.live is not None:
        tokens = unit.live.capacity.get("kv_tokens")
        if is_backend(unit):
            size = f"{tokens:,.0f} KV tokens" if tokens else ""
            how = "by HTTP alone" if unit.live.source == Source.HTTP_ALONE else ""
            return ", ".join(filter(None, (size, how)))
        return unit.live.detail.partition(": ")[2]
    if unit.state is UnitState.STARTING:
        # A verdict of "ready" is that of the life before, while this one is queued.
        spoken = unit.live is not None and unit.live.state != "ready"
        return unit.live.detail if spoken and unit.live is not None else (unit.phase or "")
    return unit.cause if unit.cause != "none" else ""


def _warnings(unit: UnitReport) -> Sequence[dict[str, str]]:
    source = unit.live or unit.end
    return [dict(row) for row in source.warnings] if source is not None else []


def failure_text(unit: UnitReport) -> str:
    """Why a unit failed: cause, advice, evidence, and the last lines of its journal."""
    state = {UnitState.READY: "failed", UnitState.STARTING: "failed"}.get(unit.state, str(unit.state))
    hidden = not unit.end.evidence if unit.end is not None else True
    lines = [f"{unit.unit}: {state}, cause: {unit.cause}"]
    end = unit.end
    if end is not None and end.advice:
        lines.append(f"  -> {end.advice}")
    if unit.state is UnitState.RESTARTING:
        lines.append("  systemd restarts it by itself")
    if hidden or end is None:
        lines.append(f"  journalctl -u {unit.unit} -n 50 shows its last lines, to the journal's readers")
        return "\n".join(lines)
    shown = set()
    for row in end.evidence:
        lines.append(f"  {row['source']}: {row['text'].strip()}")
        shown.add(row["text"].strip())
    rest = [line for line in end.last_lines if line.strip() not in shown][-6:]
    if rest:
        lines.append("  last lines:")
        lines += [f"    {line[:200]}" for line in rest]
    return "\n".join(lines)


def progress_line(report: DeploymentReport, unit: UnitReport) -> str:
    """One unit's state and phase in a line."""
    name, state = stem(unit.unit), unit.state
    if _is_useless(report, unit):
        return f"{name}: {UnitState.STARTING}: {_detail(report, unit)}"
    if state is UnitState.READY:
        seconds = unit.seconds_to_ready
        return f"{name}: ready" + (f" after {seconds:.1f} s" if seconds is not None else "")
    if state is UnitState.STARTING:
        detail = unit.live.detail if unit.live is not None and unit.live.detail else unit.phase
        return f"{name}: starting" + (f": {detail}" if detail else "")
    cause = f": {unit.cause}" if unit.cause not in ("none", "unknown") else ""
    return f"{name}: {state}{cause}"


def changes_text(name: str, changes: ChangeSet, *, diff: bool) -> str:
    """The changes of one deployment, one a line, with unified diffs if asked."""
    lines = [f"{name}: " + ("changes:" if changes.changed else "nothing to change")]
    for change in changes.changes:
        unit = "systemd" if change.kind is Kind.RELOAD else change.unit
        lines.append(f"  {_MARKS[change.kind]} {change.kind} {unit}: {change.reason}")
        if diff and change.diff:
            lines += ["    " + line for line in change.diff.splitlines()]
    return "\n".join(lines)
