"""Many watched starts in one box: a deployment of standalone servers, each with orders of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rig.box import Box, BoxError, Result, until
from rig.images import Image

FIRST_PORT = 31000
HEAD = """
[deployment]
name = "{name}"

[engine]
kind = "sglang"
python = "{python}"
model = "/models/tiny"
user = "sglang"

[readiness]
{readiness}
"""
INSTANCE = """
[[standalone]]
gpus = [{gpu}]
numa = "none"
port = {port}
{more}
"""
PYTHON = {"0.5.13": "/opt/sglang/bin/python", "0.5.23": "/opt/sglang-0.5.23/bin/python"}
LIVE, ENDS, STARTS = "/run/pd-units/{}/{}.json", "/var/lib/pd-units/{}/ends/{}.json", "{}/starts/{}.jsonl"


@dataclass(frozen=True)
class Server:
    """One unit of a lab, and what can be asked of it."""

    box: Box
    deployment: str
    unit: str
    port: int

    def order(self, text: str) -> None:
        """Tell the stub what to do from its next start on."""
        self.box.write(f"/etc/stub-engine/{self.port}.toml", text)

    def drop_in(self, text: str) -> None:
        """An operator's drop-in for the unit."""
        self.box.write(f"/etc/systemd/system/{self.unit}.d/test.conf", text)
        self.box.run(["systemctl", "daemon-reload"]).check()

    def begin(self, orders: str = "") -> None:
        """Start it with these orders, without waiting."""
        self.order(orders)
        self.box.run(["systemctl", "start", "--no-block", self.unit]).check()

    def ready(self, orders: str = "") -> None:
        """Start it with these orders; it must become ready."""
        self.order(orders)
        done = self.box.run(["systemctl", "start", self.unit])
        assert (done.rc, self.state) == (0, "active/running"), self.said()

    @property
    def state(self) -> str:
        return self.box.state(self.unit)

    def show(self, name: str) -> str:
        return self.box.show(self.unit, name).get(name, "")

    def live(self) -> dict[str, Any]:
        """The watcher's verdict on the present invocation, {} if there is none yet."""
        return self._of_now(LIVE.format(self.deployment, self.unit))

    def end(self) -> dict[str, Any]:
        """The recorded end of the present invocation with its log lines, {} if there is none."""
        paths = (ENDS.format(self.deployment, f"{self.unit}{kind}") for kind in ("", ".lines"))
        return {key: value for path in paths for key, value in self._of_now(path).items()}

    def _of_now(self, path: str) -> dict[str, Any]:
        text = self.box.run(["cat", path]).out
        value: dict[str, Any] = json.loads(text) if text else {}
        present = self.show("InvocationID")  # systemd forgets it with a unit that it unloads
        return value if present in ("", value.get("invocation_id")) else {}

    def start(self) -> dict[str, Any]:
        """The present invocation in the history of starts; it must be there once."""
        path = STARTS.format(f"/var/lib/pd-units/{self.deployment}", self.unit)
        starts = [json.loads(line) for line in self.box.read(path).splitlines()]
        now = self.show("InvocationID")
        (start,) = (start for start in starts if start["invocation_id"] == now)
        return dict(start)

    def said(self) -> str:
        """The journal of the present invocation, PID 1's lines included."""
        now = self.show("InvocationID")
        return self.box.journal(None, f"_SYSTEMD_INVOCATION_ID={now}", "+", f"INVOCATION_ID={now}")

    def until_phase(self, phase: str) -> None:
        """Until its watcher says that it is in this phase; polled in the box, to miss no short one."""
        file = LIVE.format(self.deployment, self.unit)
        now = f'grep -qs "$(systemctl show --value --property=InvocationID {self.unit})" {file}'
        loop = f'until grep -qs \'"phase": "{phase}"\' {file} && {now}; do sleep 0.02; done'
        self.box.run(["timeout", "30", "sh", "-c", loop]).check()

    def until_ended(self, *, timeout_s: float = 40.0) -> dict[str, Any]:
        """The recorded end of its present life, which must never have been active."""
        self.until_over(timeout_s=timeout_s)
        shown = self.box.show(self.unit, "ActiveEnterTimestampMonotonic", "ExecMainStartTimestampMonotonic")
        active, started = (int(shown[key]) for key in sorted(shown))
        assert active < started, "it was active"
        return self.end()

    def until_over(self, *, timeout_s: float = 40.0) -> None:
        self.box.wait_state(
            self.unit,
            "failed",
            "activating/auto-restart",
            "activating/auto-restart-queued",
            timeout_s=timeout_s,
        )

    def until_active(self, *, timeout_s: float = 40.0) -> dict[str, Any]:
        """The watcher's verdict, once the unit is active."""
        self.box.wait_state(self.unit, "active", timeout_s=timeout_s)
        return self.live()

    def main_pid(self) -> str:
        return str(
            until(
                f"{self.unit}'s main process",
                lambda: self.show("MainPID").strip("0") and self.show("MainPID"),
            )
        )

    def watcher_pid(self) -> str:
        """The watcher's PID, once it has spoken."""
        until(f"a word of {self.unit}'s watcher", lambda: self.show("StatusText"))
        return self.show("ControlPID")

    def children(self) -> list[str]:
        """The PIDs of the main process's children, detokenizer last."""
        return self.box.run(["pgrep", "-P", self.main_pid()]).out.split()

    def stop(self) -> None:
        self.box.run(["systemctl", "stop", self.unit]).check()


class Lab:
    """A box with deployments of standalone servers, none of them started."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self._ports = itertools.count(FIRST_PORT)
        self._free: dict[str, list[Server]] = {}
        self._taken: list[Server] = []

    def install(
        self,
        name: str,
        count: int,
        *,
        version: str = "0.5.13",
        readiness: str = 'timeout = "60s"',
        args: str = "",
    ) -> None:
        """Install a deployment of `count` servers, without starting any."""
        ports = list(itertools.islice(self._ports, count))
        text = HEAD.format(name=name, python=PYTHON[version], readiness=readiness)
        more = f"args = {{ {args} }}" if args else ""
        text += "".join(INSTANCE.format(gpu=port - FIRST_PORT, port=port, more=more) for port in ports)
        self.box.write(f"/etc/pd-units/{name}.toml", text)
        words = ["install", "--skip", "gpu", "--no-start", "--json", f"/etc/pd-units/{name}.toml"]
        self.box.run(["pd-units", *words]).check()
        numbers = [f"-{index}" if count > 1 else "" for index in range(count)]
        servers = [
            Server(self.box, name, f"{name}-standalone{number}.service", port)
            for number, port in zip(numbers, ports, strict=True)
        ]
        self._free[name] = servers

    def take(self, name: str, count: int | None = None) -> Any:
        """A server that is as installed, or `count` of them."""
        taken = [self._free[name].pop(0) for _ in range(count or 1)]
        self._taken += taken
        return taken if count is not None else taken[0]

    def clear(self) -> None:
        """Put what was taken back: stopped, without orders and drop-ins."""
        units = [server.unit for server in self._taken]
        drop_ins = [f"/etc/systemd/system/{unit}.d/test.conf" for unit in units]
        orders = [f"/etc/stub-engine/{server.port}.toml" for server in self._taken]
        self.box.run(["systemctl", "stop", "--no-block", *units])
        self.box.run(["systemctl", "kill", "--signal=KILL", *units])
        self.box.run(["rm", "-f", *orders, *drop_ins])
        self.box.run(["systemctl", "stop", "squatter-*"])
        self.box.run(["systemctl", "daemon-reload"]).check()
        self.box.run(["systemctl", "stop", *units])
        self.box.run(["systemctl", "reset-failed", *units])
        for server in self._taken:
            self._free[server.deployment].append(server)
        self._taken = []

    def wait_ready(self, *words: str, user: str = "operator") -> Result:
        return self.box.run(["pd-units", "wait-ready", "--json", *words], user=user)


@contextlib.contextmanager
def lab(image: Image, prepare: Callable[[Box], None] = lambda box: None) -> Iterator[Lab]:
    """A lab on a fresh box."""
    with Box(image) as box:
        prepare(box)
        yield Lab(box)


def all_of(checks: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Run every check, and fail with all that failed: of many starts under way one must not hide the rest."""
    failures = []
    for name, check in checks:
        try:
            check()
        except (AssertionError, BoxError) as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n\n".join(failures)
