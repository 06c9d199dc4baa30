"""A deployment in a box, and the pd-units commands on it, for the tests of the whole."""

from __future__ import annotations

import re
from typing import Any

from rig.box import Box, BoxError, Result, until

NAME = "dsv4"
PREFILL, DECODE, ROUTER = f"{NAME}-prefill.service", f"{NAME}-decode.service", f"{NAME}-router.service"
BACKENDS = (PREFILL, DECODE)
UNITS = (*BACKENDS, ROUTER)
TARGET = f"pd-units@{NAME}.target"
PORTS = {PREFILL: 30000, DECODE: 30002, ROUTER: 30001}
FILE = f"/etc/pd-units/{NAME}.toml"
READY_LINE = "The server is fired up and ready to roll!"
COMPLETION = "Served by stub engine 30000 and 30002 for:"
DEPLOYMENT = """
[deployment]
name = "dsv4"

[engine]
kind = "sglang"
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"

[engine.environment]
NCCL_P2P_LEVEL = "PHB"

[engine.args]
trust-remote-code = true

[[prefill]]
gpus = [0, 1]
numa = "none"
port = 30000
bootstrap_port = 8998
dist_init_port = 30335
args = { mem-fraction-static = 0.70 }

[[decode]]
gpus = [2, 3]
numa = "none"
port = 30002
dist_init_port = 30435
args = { mem-fraction-static = 0.60 }

[router]
host = "0.0.0.0"
port = 30001
python = "/opt/router/bin/python"

[readiness]
timeout = "2min"
"""


def deployment(**replaced: str) -> str:
    """The deployment, with pieces of its text replaced: deployment(**{"port = 30002": "port = 40002"}).

    Raises: ValueError for a piece that is not there.
    """
    text = DEPLOYMENT
    for old, new in replaced.items():
        if old not in text:
            raise ValueError(f"the deployment has no {old!r}")
        text = text.replace(old, new)
    return text


def write_deployment(box: Box, text: str = DEPLOYMENT) -> None:
    box.write(FILE, text)


def pd_units(box: Box, *words: str, user: str = "root", timeout_s: float = 180.0) -> Result:
    return box.run(["pd-units", *words], user=user, timeout_s=timeout_s)


def install(box: Box, *words: str, timeout_s: float = 180.0) -> Result:
    """`pd-units install --skip gpu --json`; the box has no GPU driver."""
    return pd_units(box, "install", "--skip", "gpu", "--json", *words, timeout_s=timeout_s)


def installed(box: Box, text: str = DEPLOYMENT) -> Any:
    """Installs the deployment, which must become ready; the answer's object."""
    write_deployment(box, text)
    return install(box).check().json()


def order(box: Box, unit: str, orders: str) -> None:
    """Tells the stub behind `unit` what to do from its next start on; "" for nothing. Survives a reboot."""
    box.write(f"/etc/stub-engine/{PORTS[unit]}.toml", orders)


def starts(box: Box, unit: str) -> int:
    """How often the stub behind `unit` was started."""
    counter = f"/var/lib/stub-engine/{PORTS[unit]}.starts"
    return int(box.read(counter)) if box.exists(counter) else 0


def restart_quickly(box: Box) -> None:
    """An operator's drop-in: automatic restarts after a second. Drop-ins survive every install."""
    for unit in UNITS:
        box.write(f"/etc/systemd/system/{unit}.d/quick.conf", "[Service]\nRestartSec=1\nRestartSteps=0\n")
    box.run(["systemctl", "daemon-reload"]).check()


def unit_of(answer: Any, name: str) -> Any:
    """A unit's object in the answer of install, status or wait-ready."""
    units = [unit for each in answer["deployments"] for unit in each["units"]]
    return next(unit for unit in units if unit["unit"] == name)


def invocations(box: Box) -> dict[str, str]:
    return {unit: box.show(unit, "InvocationID")["InvocationID"] for unit in UNITS}


def complete(box: Box) -> str:
    """The text of one completion through the router. Raises: AssertionError unless it came back."""
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 32}}
    status, text = box.http("http://127.0.0.1:30001/generate", body, timeout_s=60)
    assert status == 200, (status, text)
    assert COMPLETION in text, text
    return text


def traces(box: Box) -> list[str]:
    """Everything of ours in the box: files, links, loaded units, processes."""
    places = "/etc/systemd /run/systemd/system /run/systemd/transient /var/lib /run /etc/pd-units"
    names = "-name '*dsv4*' -o -name 'pd-units*' -o -name 'pd.slice'"
    find = f"find {places} \\( {names} \\) -print 2>/dev/null || true"
    found = [path for path in box.sh(find).split() if not path.startswith("/etc/pd-units")]
    loaded = box.sh("systemctl list-units --all --plain --no-legend 'dsv4*' 'pd-units*' || true")
    found += [line.split()[0] for line in loaded.splitlines() if line.strip()]
    found += [line for line in box.processes() if re.search(r"sglang|pd_units|pd-units", line)]
    return found


def nothing_left(box: Box) -> None:
    """Until no trace of ours is left: systemd unloads a unit that ended a moment later.

    Raises: AssertionError with what is.
    """
    try:
        until("nothing of ours", lambda: not traces(box), timeout_s=10)
    except BoxError:
        left = traces(box)
        raise AssertionError(f"left behind: {left}") from None


def load_and_hang(box: Box, unit: str = DECODE, phase: str = "weights") -> None:
    """Starts the deployment with `unit` hanging in `phase`; returns when its watcher has spoken."""
    write_deployment(box)
    order(box, unit, f'hang = "{phase}"')
    install(box, "--no-wait").check()
    watched(box, unit)


def watched(box: Box, unit: str) -> None:
    """Until the unit is `activating` and its watcher, or gate, says what it waits for."""
    until(f"{unit} starts", lambda: box.show(unit, "ActiveState")["ActiveState"] == "activating")
    until(f"a word of {unit}'s watcher", lambda: box.show(unit, "StatusText").get("StatusText"))


def wait_restarted(box: Box, unit: str, before: str, *, timeout_s: float = 60.0) -> None:
    """Until the unit is active again under another invocation than `before`."""

    def probe() -> bool:
        shown = box.show(unit, "InvocationID", "ActiveState")
        return shown["InvocationID"] not in ("", before) and shown["ActiveState"] == "active"

    until(f"{unit} is active again", probe, timeout_s=timeout_s)
