"""Facts of this host that rendering depends on: versions of systemd, engine and router, our interpreter."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pd_units.adapters.interpreter import own_python
from pd_units.adapters.systemd_files import systemd_version
from pd_units.errors import ExitCode, HostError, TemplateError
from pd_units.model import Deployment
from pd_units.naming import under
from pd_units.plan import DEFAULT_SYSTEMD, HostFacts
from pd_units.ports import Manager
from pd_units.rendered import RenderedUnit
from pd_units.topology import HostTopology

_VERIFY_TIMEOUT_S = 60.0
# An operator's drop-in may have a key that this systemd ignores: that is no fault of the unit beside it.
_ABOUT_DROP_IN = re.compile(r"/\S+\.d/[^/:]+\.conf:\d+: .*ignoring")
# Whether a program is on this host is preflight's to say; the units may be for an image, or come first.
_NOT_HERE = re.compile(r"\S+: Command .+ is not executable: ")


def host_facts(
    deployment: Deployment, topology: HostTopology, manager: Manager | None, *, root: Path = Path("/")
) -> HostFacts:
    """What `make_plan` must know of the host at `root`. Versions that cannot be seen are None.

    Without a manager, systemd's version is that of the files installed at `root`: the same units come out.
    """
    version = manager.version() if manager is not None else systemd_version(root)
    router = deployment.router
    router_python = (router.python if router is not None else None) or deployment.engine.python
    return HostFacts(
        topology=topology,
        pd_units_python=own_python(),
        systemd_version=version or DEFAULT_SYSTEMD,
        engine_version=installed_version(root, deployment.engine.python, "sglang"),
        router_version=installed_version(root, router_python, "sglang_router"),
    )


def installed_version(root: Path, python: str, distribution: str) -> str | None:
    """The version of a distribution in an interpreter's environment, read from its metadata's folder name.

    Nothing of that environment is run: it may be writable by the engine's user. None if it is not seen.
    """
    prefix = under(root, Path(python).parent.parent)
    try:
        for folder in sorted(prefix.glob("lib/python3*/site-packages")) + sorted(
            prefix.glob("lib/python3/dist-packages")
        ):
            for info in sorted(folder.glob(f"{distribution}-*.dist-info")):
                return info.name.removesuffix(".dist-info").partition("-")[2]
    except OSError:
        return None  # a directory that this user may not look into, or no path at all
    return None


def verify_units(units: Sequence[RenderedUnit]) -> None:
    """Have systemd read the units before they are placed; the programs that they name need not be there.

    Raises: TemplateError 21, with systemd's own words. Source: systemd-analyze(1); without
    `--recursive-errors=` it exits 0 on unknown keys and bad values.
    """
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return
    with tempfile.TemporaryDirectory(prefix="pd-units-verify-") as folder:
        for unit in units:
            (Path(folder) / unit.name).write_text(unit.text, encoding="utf-8")
        # A template can only be verified as an instance, which the services' PartOf= loads.
        paths = [str(Path(folder) / unit.name) for unit in units if "@." not in unit.name]
        try:
            done = subprocess.run(
                [tool, "verify", "--recursive-errors=no", "--man=no", *paths],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_VERIFY_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise HostError(
                "systemd-analyze verify gave no answer", exit_code=ExitCode.UNIT_REJECTED
            ) from error
    said = [line for line in done.stderr.splitlines() if line.strip() and not _ABOUT_DROP_IN.match(line)]
    if any(map(_NOT_HERE.match, said)):  # enough for exit status 1, though the rest be about other units
        names = [unit.name for unit in units]
        said = [line for line in said if not _NOT_HERE.match(line) and any(name in line for name in names)]
    if done.returncode and said:
        raise TemplateError(
            "systemd rejects a rendered unit; nothing was changed",
            detail="\n".join(said).replace(folder + "/", ""),
            hint="a value in the deployment file, or a template, is at fault",
            exit_code=ExitCode.UNIT_REJECTED,
        )
