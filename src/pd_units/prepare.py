"""From a deployment file to the changes it needs: what `diff`, `install --check` and `install` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pd_units.adapters.host import host_facts, verify_units
from pd_units.changes import ChangeSet, Kind, plan_changes
from pd_units.claimed import claimed_by_others
from pd_units.errors import DeploymentError, ExitCode, Fault, HostError
from pd_units.generations import stored_deployment_path
from pd_units.goal import Goal, index_at_work, next_number
from pd_units.index import current_generation, deployment_path, known_names, read_index
from pd_units.installed import read_installed, refuse_foreign
from pd_units.manifest import manifest_path, read_manifest, read_operation
from pd_units.model import Deployment, check_together, lint, parse_deployment, together_code
from pd_units.naming import CONFIG_DIR, Names
from pd_units.pinning import moved_gpus
from pd_units.placing import require_safe
from pd_units.plan import Plan, make_plan
from pd_units.plan_index import index_of
from pd_units.ports import Manager
from pd_units.preflight import Check, Subject, require, run_checks
from pd_units.received import fragment_digest
from pd_units.render import render_units
from pd_units.schedule import drained_router, exchanged
from pd_units.shared import shared_units
from pd_units.topology import HostTopology


@dataclass(frozen=True, slots=True)
class Source:
    """A deployment file: its path, text, and what it says."""

    path: Path
    text: str
    deployment: Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A deployment ready to be installed; nothing was touched yet."""

    source: Source
    plan: Plan
    goal: Goal
    checks: tuple[Check, ...]

    @property
    def changes(self) -> ChangeSet:
        """What installing it changes."""
        return self.goal.changes

    @property
    def names(self) -> Names:
        """Its names."""
        return self.source.deployment.names


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the command line asks for."""

    skip: frozenset[str] = frozenset()
    adopt: bool = False
    start: bool = True
    force: bool = False
    root: Path = Path("/")

    @property
    def offline(self) -> bool:
        """Whether another root directory is meant, with no manager at work in it."""
        return self.root != Path("/")


def deployment_files(files: Sequence[str]) -> tuple[Path, ...]:
    """The files named, or every file of /etc/pd-units. A NAME stands for its installed file, before a file.

    Raises: DeploymentError 10.
    """
    if not files:
        found = tuple(sorted(CONFIG_DIR.glob("*.toml")))
        if not found:
            raise DeploymentError(
                f"there is no deployment file in {CONFIG_DIR}",
                hint="name one, or: pd-units init --preset dsv4-pd -o deployment.toml",
                exit_code=ExitCode.UNREADABLE,
            )
        return found
    return tuple(_named(word) for word in files)


def _named(word: str) -> Path:
    if word not in known_names():
        path = Path(word)
        if path.exists() or "/" in word or word.endswith(".toml"):
            return path
        raise DeploymentError(
            f"{word}: no such file, and no such deployment",
            detail=f"installed: {', '.join(known_names()) or 'none'}",
            hint="name a deployment file, or an installed deployment",
            exit_code=ExitCode.UNREADABLE,
        )
    names = Names(word)
    operation = read_operation(names)
    if operation is not None and operation.generation:
        begun = stored_deployment_path(names, operation.generation)
        if begun.exists():
            return begun  # what the interrupted operation was to install
    return deployment_path(names)


def read_sources(paths: Sequence[Path]) -> tuple[Source, ...]:
    """Read and check deployment files, one by one and together. Raises: DeploymentError 10, 11."""
    sources = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DeploymentError(
                f"cannot read {path}",
                detail=(error.strerror if isinstance(error, OSError) else "it is not UTF-8 text")
                or str(error),
                exit_code=ExitCode.UNREADABLE,
            ) from error
        sources.append(Source(path, text, parse_deployment(text, source=str(path))))
    deployments = [source.deployment for source in sources]
    faults = check_together(deployments)
    if faults:
        raise DeploymentError(
            "the deployments do not fit together", faults=faults, exit_code=together_code(faults)
        )
    return tuple(sources)


def plan_sources(
    sources: Sequence[Source], topology: HostTopology, manager: Manager | None, choices: Choices
) -> tuple[Plan, ...]:
    """The plans of several deployments on one host. Raises: DeploymentError 12."""
    plans = tuple(
        make_plan(
            source.deployment,
            host_facts(source.deployment, topology, manager, root=choices.root),
            skip_gpu="gpu" in choices.skip,
            skip_numa="numa" in choices.skip,
        )
        for source in sources
    )
    here = {plan.deployment.name for plan in plans}
    faults = list(gpus_claimed_twice(plans))
    for source, plan in zip(sources, plans, strict=True):
        names = Names(plan.deployment.name, choices.root)
        faults += claimed_by_others(names, index_of(plan, generation=0), source.text, but=here)
    if faults:
        raise DeploymentError(
            "two deployments want the same GPU or port", faults=faults, exit_code=ExitCode.PLACEMENT
        )
    return tuple(_with_moved_gpus(plan, topology, choices) for plan in plans)


def _with_moved_gpus(plan: Plan, topology: HostTopology, choices: Choices) -> Plan:
    """The plan, with a warning for each GPU that is not where it was when the units were installed."""
    index = read_index(plan.deployment.name, choices.root) if "gpu" not in choices.skip else None
    moved = [
        fault
        for unit in (index.units if index is not None else ())
        for fault in moved_gpus(unit.unit, unit.gpu_addresses, topology)
    ]
    return replace(plan, warnings=(*plan.warnings, *moved)) if moved else plan


def gpus_claimed_twice(plans: Sequence[Plan]) -> tuple[Fault, ...]:
    """GPUs that two deployments of one call claim."""
    claims: dict[int, str] = {}
    faults = []
    for plan in plans:
        for unit in plan.units:
            for gpu in unit.gpus:
                if gpu in claims:
                    what = f"GPU {gpu} belongs to {claims[gpu]} of another deployment"
                    faults.append(Fault(unit.unit, what, "give it other GPUs"))
        claims.update({gpu: unit.unit for unit in plan.units for gpu in unit.gpus})
    return tuple(faults)


def prepare(
    source: Source,
    plan: Plan,
    topology: HostTopology,
    manager: Manager | None,
    choices: Choices,
    *,
    strict: bool,
) -> Prepared:
    """Render, check and compare one deployment.

    With `strict`, a failed preflight check raises HostError 13. Raises: TemplateError 20, 21; HostError 32.
    """
    if strict:
        require_safe(Names(source.deployment.name, choices.root))
    deployment, names = source.deployment, Names(source.deployment.name, choices.root)
    rendered, shared = render_units(plan), shared_units()
    state = read_installed(names, rendered, shared, deployment.retires, manager, adopt=choices.adopt)
    fragments = {unit.name: fragment_digest(unit.text) for unit in rendered}
    index = index_of(plan, generation=0, topology=topology, fragments=fragments)
    state = replace(state, exchanged=exchanged(index_at_work(names, index), index))
    changes = plan_changes(rendered, shared, state, start=choices.start)
    if choices.offline:
        changes = ChangeSet(tuple(c for c in changes.changes if c.kind is not Kind.RELOAD))
    if not choices.force:
        changes = drained_router(changes, rendered, state)
    subject = subject_of(plan, topology, manager, root=choices.root)
    looks = _looks_at_host(changes) and not choices.offline
    checks = run_checks(subject, skip=choices.skip) if looks else ()
    if strict:
        require(checks)
    refuse_foreign(state, adopt=choices.adopt)
    if changes.of(Kind.WRITE, Kind.RELOAD, Kind.START, Kind.RESTART):
        # With the drop-ins that are on disk now: systemd-analyze finds them by the units' names.
        verify_units((*rendered, *shared))
    number = next_number(names, rendered, changes, current_generation(deployment.name, choices.root))
    goal = Goal(
        names=names,
        index=replace(index, generation=number),
        text=source.text,
        rendered=rendered,
        shared=shared,
        state=state,
        changes=changes,
        force=choices.force,
    )
    return Prepared(source=source, plan=plan, goal=goal, checks=checks)


def subject_of(
    plan: Plan, topology: HostTopology, manager: Manager | None, *, root: Path = Path("/")
) -> Subject:
    """What preflight looks at; units in pd-units' records are the deployment's own, declared or not."""
    deployment, names = plan.deployment, Names(plan.deployment.name, root)
    try:
        operation = read_operation(names)
        begun = operation.digests if operation is not None else {}
        installed = tuple(dict.fromkeys((*read_manifest(manifest_path(names)), *begun)))
    except HostError:
        installed = ()  # damaged, or of a newer pd-units: an install says so
    return Subject(
        plan=plan, topology=topology, manager=manager, retires=deployment.retires, installed=installed
    )


def _looks_at_host(changes: ChangeSet) -> bool:
    """A host that already runs the deployment as declared needs no preflight."""
    return bool(changes.of(Kind.WRITE, Kind.START, Kind.RESTART))


def warnings_of(source: Source, plan: Plan) -> tuple[Fault, ...]:
    """What the author of the file should know, once each."""
    return tuple(dict.fromkeys((*lint(source.deployment), *plan.warnings)))
