"""A booted systemd box, as a context manager, and the handles that tests need on it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rig.images import Image

UNSHARE = ["unshare", "--mount", "--propagation", "private"]
HOLDER = Path(__file__).with_name("holder.py")
BUS_SOCKET = "run/dbus/system_bus_socket"
REBOOT = 133  # systemd-nspawn's exit status when the box asked for a reboot
BOX_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_PAGER": "",
}
T = TypeVar("T")


class BoxError(Exception):
    """The rig itself failed, or a checked command in the box did."""


@dataclass(frozen=True)
class Result:
    """What a command in the box did. Units: wall_s in seconds."""

    argv: tuple[str, ...]
    rc: int
    out: str
    err: str
    wall_s: float

    def check(self, *expected: int) -> Result:
        """Itself, if it ended with one of `expected` (default 0). Raises: BoxError with its output."""
        if self.rc not in (expected or (0,)):
            raise BoxError(
                f"{shlex.join(self.argv)}\nended with {self.rc} after {self.wall_s:.2f} s\n"
                f"--- stdout\n{self.out}\n--- stderr\n{self.err}"
            )
        return self

    def json(self) -> Any:
        """Standard output as JSON. Raises: BoxError showing what came instead."""
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise BoxError(f"not JSON ({error}): {shlex.join(self.argv)}\n{self.out}\n{self.err}") from error


def until(what: str, probe: Callable[[], T], *, timeout_s: float = 30.0, every_s: float = 0.02) -> T:
    """The first truthy value of `probe`, polled. Raises: BoxError at the deadline, naming `what`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise BoxError(f"not within {timeout_s:g} s: {what} (last seen: {value!r})")
        time.sleep(every_s)


def host_cgroups(name: str) -> list[Path]:
    """Where a new cgroup `name` belongs: the v2 root, or on a host with v1 the two trees that nspawn uses."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        return [top / name]
    return [top / tree / name for tree in ("unified", "systemd") if (top / tree / "cgroup.procs").exists()]


class Box:
    """One booted box on a copy-on-write copy of `image`; nothing of it is left after `close()`."""

    def __init__(
        self, image: Image, *, boot: bool = True, size: str = "2g", nspawn_args: Sequence[str] = ()
    ) -> None:
        self.image = image
        self.name = f"pd-units-box-{uuid.uuid4().hex[:8]}"
        self.leader = 0  # the box's PID 1, as the host numbers it
        self._size = size
        self._nspawn_args = list(nspawn_args)
        self._boot_on_enter = boot
        self._holder: subprocess.Popen[str] | None = None
        self._space: Path | None = None

    # -- life ----------------------------------------------------------------------------------------

    def __enter__(self) -> Box:
        try:
            self._hold()
            if self._boot_on_enter:
                self.boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self) -> None:
        self._space = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        config = {
            "name": self.name,
            "space": str(self._space),
            "layers": [str(layer) for layer in self.image.layers],
            "size": self._size,
            "cgroups": [str(path) for path in host_cgroups(self.name)],
            "nspawn_args": self._nspawn_args,
        }
        self._holder = subprocess.Popen(
            [*UNSHARE, sys.executable, "-I", str(HOLDER), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests; the box ends when they close it
        )
        self._event("mounted")

    def _event(self, expected: str) -> dict[str, Any]:
        assert self._holder is not None and self._holder.stdout is not None
        line = self._holder.stdout.readline()
        if not line:
            rc = self._holder.wait()
            raise BoxError(f"the holder of {self.name} ended with {rc} before saying {expected!r}")
        event: dict[str, Any] = json.loads(line)
        if event["event"] != expected:
            raise BoxError(f"{self.name}: expected {expected!r}, got {event}\n{self.console()}")
        return event

    def _command(self, word: str) -> None:
        assert self._holder is not None and self._holder.stdin is not None
        self._holder.stdin.write(f"{word}\n")
        self._holder.stdin.flush()

    def boot(self, *, timeout_s: float = 60.0) -> None:
        """Boots and returns once the system bus answers for PID 1 (units may still be starting)."""
        self._command("start")
        nspawn = int(self._event("started")["pid"])
        self.leader = until("PID 1", lambda: self._find_leader(nspawn), timeout_s=timeout_s, every_s=0.005)
        until("the system bus", self._bus_answers, timeout_s=timeout_s, every_s=0.01)

    def _find_leader(self, nspawn: int) -> int:
        try:
            children = Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split()
            for child in children:
                comm = Path(f"/proc/{child}/comm").read_text().strip()
                status = Path(f"/proc/{child}/status").read_text()
                inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
                if comm == "systemd" and len(inner) > 2 and inner[-1] == "1":
                    return int(child)
        except (FileNotFoundError, ProcessLookupError) as error:
            stat = Path(f"/proc/{nspawn}/stat")
            if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
                raise BoxError(f"{self.name} did not boot\n{self.console()}") from error
        return 0

    def _bus_answers(self) -> bool:
        path = f"/proc/{self.leader}/root/{BUS_SOCKET}"
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
            except OSError:
                return False
        manager = [
            "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager",
        ]
        return self.run(["busctl", "--timeout=5", "get-property", *manager, "Version"]).rc == 0

    def reboot(self) -> None:
        """A clean reboot from inside, onto the same disk."""
        self.run(["systemctl", "reboot"])
        rc = self._event("exited")["rc"]
        if rc != REBOOT:
            raise BoxError(f"{self.name} ended with {rc} instead of rebooting\n{self.console()}")
        self.boot()

    def power_loss(self) -> None:
        """SIGKILL of everything at once; `boot()` starts it again on the same disk."""
        self._command("kill")
        self._event("exited")

    def close(self) -> None:
        """Ends the box. Raises: BoxError if anything of it is still there."""
        if self._holder is not None:
            assert self._holder.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._holder.stdin.close()
            try:
                rest = self._holder.stdout.read() if self._holder.stdout else ""
                self._holder.wait(30)
            finally:
                if self._holder.poll() is None:
                    self._holder.kill()
                    self._holder.wait()
            self._holder = None
            if '"leak"' in rest:
                raise BoxError(f"{self.name} left something behind: {rest}")
        if self._space is not None:
            with contextlib.suppress(FileNotFoundError):  # the holder's last act, unless it was killed
                self._space.rmdir()
            self._space = None

    # -- commands ------------------------------------------------------------------------------------

    @property
    def outside_root(self) -> Path:
        """The box's root as this process can reach it, booted or not. Symlinks in it resolve on the host."""
        assert self._holder is not None and self._space is not None
        return Path(f"/proc/{self._holder.pid}/root{self._space}/root")

    def console(self) -> str:
        """The end of what the console showed: the only witness of a box that does not boot."""
        try:
            return self.outside_root.with_name("console.log").read_text(errors="replace")[-4000:]
        except OSError as error:
            return f"(no console: {error})"

    def argv(
        self, argv: Sequence[str], *, user: str = "root", env: Mapping[str, str] | None = None
    ) -> list[str]:
        """The host command that runs `argv` in the box: its namespaces, its cgroup, a clean environment."""
        home = "/root" if user == "root" else f"/home/{user}"
        variables = {**BOX_ENV, "HOME": home, "USER": user, "LOGNAME": user, **(env or {})}
        inside = ["env", "-i", "--default-signal=INT,QUIT"]
        inside += [f"{key}={value}" for key, value in variables.items()]
        # Dies with nsenter, which cannot pass a kill on through the PID namespace.
        inside += ["setpriv", "--pdeathsig", "KILL"]
        if user != "root":
            inside += [f"--reuid={user}", f"--regid={user}", "--init-groups"]
        # --root: where nspawn cannot pivot (in a chroot), the box's root is not its mount namespace's.
        enter = ["nsenter", "--all", "--root", f"--target={self.leader}"]
        enter += [f"--wd=/proc/{self.leader}/root{home}", "--"]
        join = f'echo $$ >{self._rig_cgroup()}/cgroup.procs; exec "$@"'
        return ["sh", "-c", join, "sh", *enter, *inside, *argv]

    def _rig_cgroup(self) -> Path:
        """A leaf beside the box's own slices, so that what the tests run counts as part of the box."""
        lines = Path(f"/proc/{self.leader}/cgroup").read_text().splitlines()
        inner = next(line.partition("::")[2] for line in lines if line.startswith("0::"))
        payload = Path(inner).parent if Path(inner).name == "init.scope" else Path(inner)
        cgroup = host_cgroups("")[0] / payload.relative_to("/") / "rig"
        cgroup.mkdir(exist_ok=True)
        return cgroup

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout_s: float = 120.0,
    ) -> Result:
        """Runs `argv` in the box and waits. Raises: BoxError at the timeout, with the output until then."""
        before = time.monotonic()
        try:
            done = subprocess.run(
                self.argv(argv, user=user, env=env),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            printed = b"\n".join(part for part in (error.stdout, error.stderr) if isinstance(part, bytes))
            text = printed.decode(errors="replace")
            raise BoxError(f"still running after {timeout_s:g} s: {shlex.join(argv)}\n{text}") from error
        return Result(tuple(argv), done.returncode, done.stdout, done.stderr, time.monotonic() - before)

    def sh(self, script: str, **options: Any) -> str:
        """Standard output of a shell script that must succeed."""
        return self.run(["sh", "-euc", script], **options).check().out

    def popen(
        self, argv: Sequence[str], *, user: str = "root", env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A command in the box beside the test; it dies with the returned process."""
        return subprocess.Popen(
            self.argv(argv, user=user, env=env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )

    # -- files and systemd ---------------------------------------------------------------------------

    def write(self, path: str, text: str, *, mode: int = 0o644, owner: str = "root:root") -> None:
        """Writes a file in the running box, with its directories."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1" && chown "$3" "$1"'
        self.run(["sh", "-euc", script, "sh", path, f"{mode:o}", owner], stdin=text).check()

    def read(self, path: str) -> str:
        return self.run(["cat", "--", path]).check().out

    def exists(self, path: str) -> bool:
        """Whether something is there, dangling symlinks included."""
        return self.run(["sh", "-c", '[ -e "$1" ] || [ -L "$1" ]', "sh", path]).rc == 0

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit as systemctl shows them."""
        out = self.run(["systemctl", "show", f"--property={','.join(properties)}", "--", unit]).check().out
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def state(self, unit: str) -> str:
        """`active/running`, `activating/start-post`, `failed/failed`, ..."""
        shown = self.show(unit, "ActiveState", "SubState")
        return f"{shown['ActiveState']}/{shown['SubState']}"

    def wait_state(self, unit: str, *states: str, timeout_s: float = 30.0) -> str:
        """The first of `states` that the unit is seen in; each is `active` or `active/sub`."""

        def probe() -> str:
            seen.append(self.state(unit))
            return seen[-1] if seen[-1] in states or seen[-1].split("/")[0] in states else ""

        seen: list[str] = []
        try:
            return until(f"{unit} {' or '.join(states)}", probe, timeout_s=timeout_s)
        except BoxError as error:
            states_seen = list(dict.fromkeys(seen))
            raise BoxError(f"{error}; states seen: {states_seen}\n{self.journal(unit)[-3000:]}") from None

    def journal(self, unit: str | None = None, *more: str) -> str:
        """The journal, messages only, oldest first; "" also when a --grep= finds nothing."""
        self.run(["journalctl", "--sync"])
        only = ["--unit", unit] if unit else []
        return self.run(["journalctl", "--no-pager", "--output=cat", "--all", *only, *more]).check(0, 1).out

    def http(self, url: str, body: Any = None, *, timeout_s: float = 30.0) -> tuple[int, str]:
        """Status and body of a GET, or of a POST of `body` as JSON, from inside the box; 0: no answer."""
        code = (
            "import json,sys,urllib.request as r,urllib.error as e\n"
            "u,b,t=json.loads(sys.argv[1])\n"
            "d=None if b is None else json.dumps(b).encode()\n"
            "q=r.Request(u,d,{'Content-Type':'application/json'})\n"
            "try: a=r.urlopen(q,timeout=t); o=(a.status,a.read().decode())\n"
            "except e.HTTPError as x: o=(x.code,x.read().decode())\n"
            "except OSError as x: o=(0,str(x))\n"
            "print(json.dumps(o))"
        )
        argv = ["python3", "-I", "-c", code, json.dumps([url, body, timeout_s])]
        status, text = self.run(argv, timeout_s=timeout_s + 10).check().json()
        return int(status), str(text)

    def processes(self) -> list[str]:
        """Command lines of all processes in the box except PID 1's and the rig's own."""
        return [line for line in self.sh("ps -eo pid=,user=,args= --sort=pid").splitlines() if line.strip()]


def running_as_root() -> bool:
    return os.geteuid() == 0
