"""Owner of one box: mounts, cgroup and the systemd-nspawn process live and die with this process.

Run by `box.Box` as `unshare --mount ... python3 -I holder.py CONFIG` (JSON), in a mount namespace of its own,
so that no mount is ever seen outside and none is left behind, whatever becomes of the test process.
Commands come on stdin, one word a line: `start` boots, `kill` is the hard power loss (SIGKILL).
Answers go to stdout, one JSON object a line: {"event": "mounted" | "started" | "exited", ...}.
End of input ends the box: everything in it is killed and the cgroup removed. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
LIBC = ctypes.CDLL(None)
NSPAWN_STATE = Path("/run/systemd/nspawn")  # nspawn keeps propagation directories here; hidden behind a tmpfs
# What nspawn is started with: nothing of the caller's environment reaches the box.
CLEAN_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    # The box gets a pure cgroup v2 tree even where the host still mounts v1 controllers.
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
}


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True, stdin=subprocess.DEVNULL)


class Holder:
    """One box: `mount_root()`, then `start()` and `kill()` as often as needed, `close()` at the end."""

    def __init__(self, config: dict[str, object]) -> None:
        self.name = str(config["name"])
        self.space = Path(str(config["space"]))  # an empty directory; a tmpfs in our namespace only
        self.layers = [str(layer) for layer in config["layers"]]  # type: ignore[attr-defined]
        self.size = str(config["size"])
        self.cgroups = [Path(str(path)) for path in config["cgroups"]]  # type: ignore[attr-defined]
        self.extra = [str(word) for word in config["nspawn_args"]]  # type: ignore[attr-defined]
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1

    @property
    def root(self) -> Path:
        return self.space / "root"

    def mount_root(self) -> None:
        """The box's root: the image's layers below, a tmpfs that holds all changes on top."""
        mount("-t", "tmpfs", "-o", f"size={self.size},mode=0755", "pd-units-box", str(self.space))
        for name in ("upper", "work", "root"):
            (self.space / name).mkdir()
        lower = ":".join(reversed(self.layers))
        options = f"lowerdir={lower},upperdir={self.space}/upper,workdir={self.space}/work"
        mount("-t", "overlay", "-o", options, "pd-units-box", str(self.root))
        NSPAWN_STATE.mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "-o", "mode=0755", "pd-units-box", str(NSPAWN_STATE))

    def start(self) -> None:
        # A cgroup of its own, entered before nspawn starts: boxes that share one disturb each other.
        for cgroup in self.cgroups:
            cgroup.mkdir(exist_ok=True)
        console = (self.space / "console.log").open("ab")
        self.process = subprocess.Popen(
            [
                "systemd-nspawn",
                "--quiet",
                "--register=no",
                "--keep-unit",
                "--boot",
                "--private-network",
                "--resolv-conf=off",
                "--timezone=off",
                "--link-journal=no",
                "--console=pipe",
                f"--machine={self.name}",
                f"--directory={self.root}",
                *self.extra,
            ],
            env=CLEAN_ENV,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            preexec_fn=self._before_exec,
        )
        console.close()
        self.pidfd = os.pidfd_open(self.process.pid)
        say("started", pid=self.process.pid)

    def _before_exec(self) -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for cgroup in self.cgroups:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    def kill(self) -> None:
        """Hard power loss: nothing in the box gets to say a word."""
        if self.process is None or self.process.poll() is not None:
            return
        # PID 1 first, and with it the whole box: nspawn then reaps it and ends by itself.
        for pid in self._leaders():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _leaders(self) -> list[int]:
        assert self.process is not None
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in children.split()]

    def reap(self) -> None:
        assert self.process is not None
        code = self.process.wait()
        self._reap_orphans()
        os.close(self.pidfd)
        self.pidfd, self.process = -1, None
        self.remove_cgroups()
        say("exited", rc=code)

    def _reap_orphans(self) -> None:
        """What nspawn could not reap any more is ours, as the subreaper."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def remove_cgroups(self) -> None:
        """Removes the box's cgroups; the kernel needs a moment to let go of dead processes."""
        deadline = time.monotonic() + 10
        for top in self.cgroups:
            while top.exists():
                for directory in sorted(top.rglob("*/"), key=lambda path: -len(path.parts)):
                    with contextlib.suppress(OSError):
                        directory.rmdir()
                with contextlib.suppress(OSError):
                    top.rmdir()
                    break
                if time.monotonic() > deadline:
                    say("leak", cgroup=str(top))
                    return
                time.sleep(0.01)

    def close(self) -> None:
        self.kill()
        if self.process is not None:
            self.process.wait()
        self._reap_orphans()
        self.remove_cgroups()
        # The mounts would go with our namespace; the directory on which they lie would not.
        for place in (self.root, self.space):
            subprocess.run(["umount", "--lazy", str(place)], stderr=subprocess.DEVNULL)
        with contextlib.suppress(OSError):
            self.space.rmdir()

    def serve(self) -> None:
        """Answers commands until the end of input."""
        say("mounted", root=str(self.root))
        os.set_blocking(0, False)
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ, "stdin")
            watched = -1
            while True:
                if self.pidfd != watched and self.pidfd >= 0:
                    watched = self.pidfd
                    selector.register(watched, selectors.EVENT_READ, "exit")
                for key, _ in selector.select():
                    if key.data == "exit":
                        selector.unregister(watched)
                        watched = -1
                        self.reap()
                        continue
                    data = os.read(0, 4096)
                    if not data:
                        return
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        {b"start": self.start, b"kill": self.kill}[line]()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    holder = Holder(json.loads(sys.argv[1]))
    try:
        holder.mount_root()
        holder.serve()
    finally:
        holder.close()


if __name__ == "__main__":
    main()
