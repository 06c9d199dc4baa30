"""What PID 1 writes about a unit, as evidence: starts, stops, and how its processes ended."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from pd_units.evidence import ExitStatus

_UNIT = r"(?P<unit>[\w@.:\\-]{1,200}\.(?:service|scope)): "
_EXITED = re.compile(_UNIT + r"Main process exited, code=(?P<code>\w+), status=(?P<status>[\w/.-]+)")
_OOM = re.compile(
    _UNIT + r"A process of this unit has been killed by the OOM killer|"
    r"[\w@.\\-]+\.service: Failed with result 'oom-kill'"
)
_RESULT = re.compile(_UNIT + r"Failed with result '(?P<result>[\w-]+)'")
_OVER = re.compile(
    _UNIT
    + r"(?:Deactivated successfully|Succeeded\.|Scheduled restart job|Start request repeated too quickly)"
)
_SPAWN = re.compile(_UNIT + r"Failed (?:at step (?P<step>\w+) spawning|to locate executable) ?(?P<path>\S*)")
_VERB = re.compile(r"(?P<verb>Starting|Started|Stopping|Stopped|Failed to start) (?P<what>[^\r\n]{1,300})")
_NAME = re.compile(r"[\w@.:\\-]{1,200}\.(?:service|scope)")
_OF_THE_HOST = re.compile(
    r"(?:user@\d+|user-runtime-dir@\d+|session-\w+|systemd-[\w@-]+|[sg]etty@\w+|dbus|dbus-broker|ssh|sshd|cron|crond|"
    r"anacron|rsyslog|chrony|chronyd|polkit|NetworkManager|ModemManager|accounts-daemon|apt-daily|apt-daily-upgrade|"
    r"packagekit|fwupd|fwupd-refresh|logrotate|man-db|fstrim|e2scrub_all|udisks2|upower|snapd|multipathd|"
    r"unattended-upgrades|motd-news|phpsessionclean|containerd|nvidia-persistenced|nvidia-fabricmanager)\.(?:service|scope)"
)


class Manager(StrEnum):
    """What PID 1 said."""

    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"
    STOPPED = "stopped"
    EXITED = "exited"
    OOM = "oom"
    RESULT = "result"
    OVER = "over"
    SPAWN = "spawn"


@dataclass(frozen=True, slots=True)
class ManagerLine:
    """One of PID 1's lines: what, about which unit ("" where only its description is given), how it ended."""

    said: Manager
    unit: str
    status: ExitStatus | None = None
    result: str = ""


def of_the_host(unit: str) -> bool:
    """True for a unit of the distribution or a session: its life, in a journal of all, is not ours."""
    return _OF_THE_HOST.fullmatch(unit) is not None


def parse_manager_line(body: str, *, surely: bool) -> ManagerLine | None:
    """What PID 1 says in `body`; None if it is not such a line.

    `surely`: the text is known to be PID 1's, so that the short forms count too.
    """
    if ".service" in body or ".scope" in body:
        line = _about_unit(body)
        if line is not None:
            return line
    if not surely:
        return None
    verb = _VERB.match(body)
    if verb is None:
        return None
    name = _NAME.search(verb["what"])
    said = {
        "Starting": Manager.STARTING,
        "Started": Manager.STARTED,
        "Stopping": Manager.STOPPING,
        "Stopped": Manager.STOPPED,
        "Failed to start": Manager.RESULT,
    }[verb["verb"]]
    return ManagerLine(said, name.group(0) if name else verb["what"].strip(". "), result="failed")


def _about_unit(body: str) -> ManagerLine | None:
    match = _OOM.search(body)
    if match is not None:
        return ManagerLine(Manager.OOM, match["unit"] or "")
    match = _EXITED.search(body)
    if match is not None:
        return ManagerLine(Manager.EXITED, match["unit"], _status(match["code"], match["status"]))
    match = _RESULT.search(body)
    if match is not None:
        return ManagerLine(Manager.RESULT, match["unit"], result=match["result"])
    match = _SPAWN.search(body)
    if match is not None:
        return ManagerLine(Manager.SPAWN, match["unit"], ExitStatus(code=203))
    match = _OVER.search(body)
    if match is not None:
        return ManagerLine(Manager.OVER, match["unit"])
    return None


def _status(code: str, status: str) -> ExitStatus | None:
    number = status.split("/", 1)[0]
    if not number.isdigit():
        return None
    if code in ("killed", "dumped"):
        return ExitStatus(signal=int(number))
    return ExitStatus(code=int(number))
