"""`pd-units install`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from pd_units.access import connect, require_root
from pd_units.adapters.clock import SystemClock
from pd_units.adapters.files import locked
from pd_units.adapters.offline import OfflineManager
from pd_units.adapters.signals import deal_with, stoppable
from pd_units.changes import ChangeSet
from pd_units.claimed import alone_on_host
from pd_units.cli.answers import broke_off, failed_before, interrupted, not_again, whole
from pd_units.cli.options import UNKNOWN_TOPOLOGY, skip_option, topology_of, topology_option
from pd_units.cli.output import emit, emit_error, envelope, json_option, warn
from pd_units.cli.progress import Progress
from pd_units.cli.waits import lock_timeout_option, timeout_option
from pd_units.errors import DeploymentError, ExitCode, PdUnitsError
from pd_units.generations import Generation
from pd_units.goal import Installed
from pd_units.index import known_names
from pd_units.install import Installer, conclude
from pd_units.manifest import read_operation
from pd_units.measuring import with_placement
from pd_units.naming import Names
from pd_units.placing import Guard
from pd_units.ports import Manager
from pd_units.prepare import (
    Choices,
    Prepared,
    Source,
    deployment_files,
    plan_sources,
    prepare,
    read_sources,
    warnings_of,
)
from pd_units.report import changes_text, status_text
from pd_units.rollback import (
    finish_rollback,
    known_to_fail,
    roll_back_failed,
    unfinished_rollback,
    way_back,
)


@click.command(name="install", short_help="Write, enable and start deployments; wait until ready.")
@click.argument("files", nargs=-1, metavar="[FILE|NAME...]")
@click.option("--check", is_flag=True, help="Show what would change, change nothing; a FILE needs no root.")
@click.option("--diff", is_flag=True, help="Show unified diffs too, secrets masked.")
@click.option(
    "--exit-code", "pending_code", is_flag=True, help="With --check: exit 50 if changes are pending."
)
@click.option(
    "--no-start",
    is_flag=True,
    help="Write and enable only: nothing is started, and what runs goes on until the next boot or install.",
)
@click.option("--no-wait", is_flag=True, help="Start, but do not wait for readiness.")
@click.option(
    "--root",
    type=click.Path(file_okay=False, exists=True, path_type=Path, resolve_path=True),
    default="/",
    metavar="DIR",
    help="Install into an image: files and enablement below DIR, nothing started.",
)
@click.option("--no-rollback", is_flag=True, help="Leave a failed install as it is.")
@click.option("--force", is_flag=True, help="Retry what failed before; restart everything at once.")
@timeout_option
@lock_timeout_option
@click.option(
    "--adopt",
    "--overwrite",
    "adopt",
    is_flag=True,
    help="Replace unit files of the same name that are not ours, or were changed by hand.",
)
@skip_option
@topology_option
@json_option
@whole
def command(
    files: tuple[str, ...],
    check: bool,
    diff: bool,
    pending_code: bool,
    no_start: bool,
    no_wait: bool,
    root: Path,
    no_rollback: bool,
    force: bool,
    timeout: float | None,
    lock_timeout: float,
    adopt: bool,
    skip: tuple[str, ...],
    topology_file: Path | None,
    as_json: bool,
) -> int:
    """Write, enable and start deployments in dependency order, and wait until they are ready.

    Without an argument: every /etc/pd-units/*.toml; NAME stands for the file of an installed deployment, as
    it was installed: name the FILE after you have edited it. A second install changes nothing and says so.
    """
    if not check:
        require_root("install")
    start = not no_start and root == Path("/")
    choices = Choices(skip=frozenset(skip), adopt=adopt, start=start, force=force, root=root)
    manager = OfflineManager(root) if choices.offline else connect(needed=not check)
    sources = read_sources(deployment_files(files))
    topology = UNKNOWN_TOPOLOGY if choices.offline and topology_file is None else topology_of(topology_file)

    def prepare_all(sources: Sequence[Source]) -> list[Prepared]:
        plans = plan_sources(sources, topology, manager, choices)
        return [
            prepare(source, plan, topology, manager, choices, strict=not check)
            for source, plan in zip(sources, plans, strict=True)
        ]

    if check:
        return show(prepare_all(sources), as_json=as_json, diff=diff, pending_code=pending_code)
    assert manager is not None
    how = How(wait=start and not no_wait, rollback=not no_rollback, timeout_s=timeout, diff=diff)
    done: list[Installed] = []
    with stoppable(), ExitStack() as stack:
        for source in sorted(sources, key=lambda each: each.deployment.name):
            path = Names(source.deployment.name, root).lock
            stack.enter_context(locked(path, timeout_s=lock_timeout))
        # Read again: who held a lock may have changed what a NAME stands for.
        named = any(word in known_names() for word in files)
        now = read_sources(deployment_files(files)) if named else sources  # a pipe can be read once only
        if {each.deployment.name for each in now} != {each.deployment.name for each in sources}:
            raise DeploymentError(
                "the deployment files have changed meanwhile",
                hint="run it again",
                exit_code=ExitCode.UNREADABLE,
            )
        todo = prepare_all(now)
        for number, prepared in enumerate(todo):
            later = {each.names.deployment for each in todo[number + 1 :]}
            done.append(_Run(prepared, manager, how, partial(alone_on_host, but=later)).install())
            if done[-1].exit_code is ExitCode.INTERRUPTED:
                break
    return _answer(done, as_json=as_json)


def show(prepared: Sequence[Prepared], *, as_json: bool, diff: bool, pending_code: bool) -> int:
    """The answer of --check and of `diff`."""
    for each in prepared:
        warn(warnings_of(each.source, each.plan))
        for result in each.checks:
            if not result.ok:
                click.echo(f"preflight {result.severity}: {result.name}: {result.evidence}", err=True)
    prepared = [_without_known_to_fail(each) for each in prepared]
    changed = any(each.changes.changed for each in prepared)
    code = ExitCode.CHANGES_PENDING if pending_code and changed else ExitCode.OK
    obj = envelope(
        code,
        "changes pending" if changed else "nothing to change",
        changed=changed,
        check=True,
        deployments=[
            {
                "name": each.names.deployment,
                "generation": each.goal.index.generation,
                "result": "would-change" if each.changes.changed else "unchanged",
                "changes": [change.to_json() for change in each.changes.changes],
                "units": [],
                "preflight": [result.to_json() for result in each.checks],
            }
            for each in prepared
        ],
    )
    text = "\n".join(changes_text(each.names.deployment, each.changes, diff=diff) for each in prepared)
    emit(as_json, obj, text)
    return code


def _without_known_to_fail(prepared: Prepared) -> Prepared:
    """As an install would do it: what failed before is not tried again, and changes nothing."""
    goal = prepared.goal
    failed = known_to_fail(goal) if goal.changes.changed and not goal.force else None
    if failed is None:
        return prepared
    _say(f"{goal.index.name}: {not_again(failed)}")
    return replace(prepared, goal=replace(goal, changes=ChangeSet(())))


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How changes are run."""

    wait: bool
    rollback: bool
    timeout_s: float | None
    diff: bool


class _Run:
    """The install of one deployment."""

    def __init__(self, prepared: Prepared, manager: Manager, how: How, guard: Guard = alone_on_host) -> None:
        self._prepared, self._goal, self._manager, self._how = prepared, prepared.goal, manager, how
        self._clock = SystemClock()
        progress = Progress(self._clock)
        self._installer = Installer(
            manager, self._clock, progress.say, progress, timeout_s=how.timeout_s, guard=guard
        )

    def install(self) -> Installed:
        """What came of it, an error too: other deployments of the same call have their own answers."""
        goal = self._goal
        warn(warnings_of(self._prepared.source, self._prepared.plan))
        if self._how.diff and goal.changes.changed:
            click.echo(changes_text(goal.index.name, goal.changes, diff=True), err=True)
        try:
            failed = known_to_fail(goal) if goal.changes.changed and not goal.force else None
            operation = read_operation(goal.names)
            if operation is not None:
                _say(f"finishing an interrupted {operation.kind} of generation {operation.generation}")
            done = self._apply() if failed is None else self._known(failed)
        except KeyboardInterrupt as error:
            return interrupted(goal, deal_with(error), self._manager)
        except PdUnitsError as error:
            return broke_off(goal, error, self._manager)
        if done.report is None:
            return done
        # Nothing has moved since the last measurement if nothing was changed.
        return replace(done, report=with_placement(done.report, measure=done.changed))

    def _apply(self) -> Installed:
        goal = self._goal
        outcome = self._installer.apply(goal, wait=self._how.wait)
        good = way_back(goal, outcome.exit_code) if self._how.rollback else None
        done = conclude(goal, outcome, self._clock, waited=self._how.wait, ends=good is None)
        if good is None:
            return done
        click.echo(status_text([done.report]) if done.report is not None else done.message, err=True)
        _say(f"{done.name}: generation {done.generation} failed; going back to generation {good.number}")
        return roll_back_failed(done, good, goal.names, self._manager, self._installer, self._clock)

    def _known(self, failed: Generation) -> Installed:
        """The answer for what is known to fail; the rollback from it is finished if it broke off."""
        goal = self._goal
        known = failed_before(goal, failed, self._manager)
        number = unfinished_rollback(goal.names, failed)
        if number is None:
            return known
        _say(f"{known.name}: generation {failed.number} failed; going back to generation {number}")
        return finish_rollback(known, number, goal.names, self._manager, self._installer, self._clock)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _answer(done: Sequence[Installed], *, as_json: bool) -> int:
    worst = max(done, key=lambda each: each.exit_code)
    changed = any(each.changed for each in done)
    message = worst.message if worst.exit_code else ("installed" if changed else "nothing to change")
    obj = envelope(worst.exit_code, message, changed=changed, deployments=[each.to_json() for each in done])
    obj |= worst.error.to_json() if worst.error is not None else {}
    emit(as_json, obj, "\n\n".join(text for each in done if (text := _text(each))))
    if worst.exit_code and not as_json:
        for each in done:
            if each.error is not None:
                if len(done) > 1:
                    click.echo(f"pd-units: {each.name} broke off:", err=True)
                emit_error(False, each.error)
            elif each.exit_code:
                click.echo(f"pd-units: {each.name}: {each.message}", err=True)
    return worst.exit_code


def _text(done: Installed) -> str:
    what = "installed" if done.changed else "nothing to change"
    if done.error is not None:
        return ""
    if done.report is None:
        if done.exit_code:
            return ""
        return f"{done.name}: {what} (generation {done.generation}); not waited for readiness"
    if done.exit_code:
        return status_text([done.report])
    return f"{done.name}: {what}\n{status_text([done.report])}"
