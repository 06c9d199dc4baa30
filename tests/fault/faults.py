"""A small deployment, the striker, and what must hold on a host after a fault."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rig.box import Box, Result

PYTHON = "/opt/pd-units/bin/python"
STRIKER = "/root/strike.py"
STATE = "/var/lib/pd-units"

PAIR = """
[deployment]
name = "two"

[engine]
kind = "sglang"
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"

[engine.args]
trust-remote-code = true
mem-fraction-static = {fraction}

[[standalone]]
gpus = [0]
numa = "none"
port = 31000
dist_init_port = 31335

[[standalone]]
gpus = [1]
numa = "none"
port = 31001
dist_init_port = 31435

[readiness]
timeout = "2min"
"""
TWO = ("two-standalone-0.service", "two-standalone-1.service")


def two(fraction: str) -> str:
    """Two ordinary servers: quick to start, no router; `fraction` tells one version of them from another."""
    return PAIR.replace("{fraction}", fraction)


class Host:
    """A box with one deployment at work in it, known by one file."""

    def __init__(self, box: Box, name: str, units: tuple[str, ...]) -> None:
        self.box, self.name, self.units = box, name, units
        self.file = f"/etc/pd-units/{name}.toml"
        box.write(STRIKER, Path(__file__).with_name("strike.py").read_text())

    def pd(self, *words: str, user: str = "root", timeout_s: float = 120.0) -> Result:
        """A pd-units command; no answer may be a traceback."""
        done = self.box.run(["pd-units", *words], user=user, timeout_s=timeout_s)
        assert not re.search("^Traceback", done.err, re.MULTILINE), (words, done.err)
        return done

    def write(self, text: str) -> None:
        self.box.write(self.file, text)

    def install(self, *words: str, timeout_s: float = 120.0) -> Result:
        return self.pd("install", "--skip", "gpu", "--json", *words, timeout_s=timeout_s)

    def strike(self, at: str, how: str, *words: str) -> Result:
        """pd-units, struck at a point; `install` without words."""
        argv = words or ("install", "--skip", "gpu", "--json")
        return self.box.run([PYTHON, STRIKER, "--at", at, "--how", how, "--", *argv])

    def points(self, *words: str) -> list[str]:
        """The points of a command that is run whole, but those of which nothing lasts."""
        argv = words or ("install", "--skip", "gpu", "--json")
        self.box.run(["rm", "-f", "/root/points"]).check()
        self.box.run([PYTHON, STRIKER, "--list", "/root/points", "--", *argv]).check()
        return telling(self.box.read("/root/points").splitlines())

    def texts(self) -> dict[str, str]:
        """The unit files as they are."""
        out = self.box.sh(
            "cd /etc/systemd/system; for unit in "
            + " ".join(self.units)
            + '; do printf "\\036%s\\n" "$unit"; [ -e "$unit" ] && cat "$unit"; done; true'
        )
        parts = [part.partition("\n") for part in out.split("\036") if part]
        return {name: text for name, _, text in parts}

    def index(self) -> Any:
        return json.loads(self.box.read(f"{STATE}/{self.name}/index.json"))

    def operation(self) -> Any:
        text = self.box.sh(f"cat {STATE}/{self.name}/operation.json 2>/dev/null || true")
        return json.loads(text) if text else None

    def status(self) -> Any:
        return self.pd("status", self.name, "--json", user="operator").check().json()["deployments"][0]

    def ready(self) -> None:
        self.pd("wait-ready", self.name, "--timeout", "60s", user="operator").check()

    def mains(self) -> dict[str, str]:
        """The main process of each unit, with its command line."""
        script = "".join(
            f'pid=$(systemctl show -P MainPID {unit}); printf "%s\\t%s\\t" {unit} "$pid"; '
            '[ "$pid" != 0 ] && tr "\\0" " " <"/proc/$pid/cmdline"; echo; '
            for unit in self.units
        )
        rows = [line.split("\t") for line in self.box.sh(script + "true").splitlines() if line]
        return {unit: f"{pid} {argv}" for unit, pid, argv in rows}

    def processes_have(self, word: str) -> bool:
        return all(word in argv for argv in self.mains().values())

    def leftovers(self) -> list[str]:
        """Files that a killed process left on their way."""
        find = f"find /etc/systemd/system {STATE} -regextype posix-extended -regex '.*/\\..*\\.[0-9a-f]{{8}}'"
        return self.box.sh(find).split()


def telling(points: list[str]) -> list[str]:
    """Points without those in /tmp and /run, of which nothing lasts, and with the first three waits only."""
    dull = re.compile(r" (/tmp|/run)(/|$)|chmod|a wait \((?![23]\))")
    return [point for point in points if not dull.search(point)]
