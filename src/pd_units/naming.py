"""One identity object gives every name: units, target, directories.

The scheme of a deployment called NAME, which no other module spells out:
`NAME-prefill.service`, with several instances `NAME-prefill-0.service`, and so on for each role;
`pd-units@NAME.target` groups them; `/var/lib/pd-units/NAME` and `/run/pd-units/NAME` keep their state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

SLICE: Final = "pd-units.slice"
RECOVER: Final = "pd-units-recover.service"
TARGET_TEMPLATE: Final = "pd-units@.target"
UNIT_DIR: Final = Path("/etc/systemd/system")
STATE_ROOT: Final = Path("/var/lib/pd-units")
RUN_ROOT: Final = Path("/run/pd-units")
CONFIG_DIR: Final = Path("/etc/pd-units")

#: Longest unit name that systemd takes, in characters (UNIT_NAME_MAX less the NUL; unit-name.h).
UNIT_NAME_MAX: Final = 255
#: Longest deployment name: leaves room for `-standalone-NNN.service`.
NAME_MAX: Final = 200

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_UNIT_TYPES = "service|socket|target|timer|path|mount|automount|swap|slice|scope|device"
_UNIT = re.compile(rf"[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]+)?\.({_UNIT_TYPES})")


class Role(StrEnum):
    """What a unit of a deployment does."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"
    STANDALONE = "standalone"


@dataclass(frozen=True, slots=True)
class Names:
    """Every name and path that a deployment owns on a host; `root` is another one's, for image builds."""

    deployment: str
    root: Path = Path("/")

    def service(self, role: Role, index: int = 0, count: int = 1) -> str:
        """Name of the service of one instance; numbered only where there are several of the role."""
        number = f"-{index}" if count > 1 else ""
        return f"{self.deployment}-{role}{number}.service"

    @property
    def target(self) -> str:
        """Name of the target that groups the deployment's services."""
        return f"pd-units@{self.deployment}.target"

    @property
    def unit_dir(self) -> Path:
        """Directory of the unit files."""
        return under(self.root, UNIT_DIR)

    @property
    def state_dir(self) -> Path:
        """Directory of what must survive a reboot."""
        return under(self.root, STATE_ROOT) / self.deployment

    @property
    def shared_manifest(self) -> Path:
        """The manifest of the files that all deployments share."""
        return under(self.root, STATE_ROOT) / "shared.json"

    @property
    def lock(self) -> Path:
        """The lock that whoever changes the deployment holds; always below this host's /run."""
        where = "" if self.root == Path("/") else "@" + str(self.root).strip("/").replace("/", "-")
        return RUN_ROOT / f"{self.deployment}{where}.lock"

    @property
    def host_lock(self) -> Path:
        """The lock of what all deployments share: who has which GPU and port, and the units of all."""
        return self.lock.with_name(self.lock.name.replace(self.deployment, "@host", 1))

    @property
    def run_dir(self) -> Path:
        """Directory of live verdicts."""
        return under(self.root, RUN_ROOT) / self.deployment

    def owns(self, unit: str) -> bool:
        """Whether `unit` is a service or the target of this deployment, at any number of instances."""
        if unit == self.target:
            return True
        roles = "|".join(Role)
        return re.fullmatch(rf"{re.escape(self.deployment)}-({roles})(-\d+)?\.service", unit) is not None


def under(root: Path, path: Path) -> Path:
    """An absolute path of the host whose root directory is `root`."""
    return root / path.relative_to("/")


def stem(unit: str) -> str:
    """Unit name without its type: `a-prefill.service` -> `a-prefill`."""
    return unit.rpartition(".")[0] or unit


def name_problem(name: str) -> str | None:
    """Why `name` cannot name a deployment, or None.

    Narrower than systemd's own rule on purpose: `@` would make an instance of a template, a backslash
    an escape, a leading dash an option of every command line, a leading dot a hidden directory; a colon
    splits a file from its alias in `systemd-analyze verify`.
    """
    if not name:
        return "is empty"
    if len(name) > NAME_MAX:
        return f"is longer than {NAME_MAX} characters"
    if not _NAME.fullmatch(name):
        return "cannot name units: letters, digits and _ . - only, and a letter or digit first"
    return None


def unit_name_problem(unit: str) -> str | None:
    """Why `unit` is not the name of a unit that can be stopped, or None."""
    if len(unit) > UNIT_NAME_MAX:
        return f"is longer than {UNIT_NAME_MAX} characters"
    if _UNIT.fullmatch(unit):
        return None
    if re.fullmatch(rf"[^@/]+@\.({_UNIT_TYPES})", unit):
        return "is a template, not a unit that runs: name an instance"
    return "is not a unit name such as old-server.service"
