"""A host that is not running: unit files and their enablement below another root directory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from pd_units.adapters.systemd_files import systemd_version
from pd_units.errors import ExitCode, HostError
from pd_units.naming import UNIT_DIR, under
from pd_units.plan import DEFAULT_SYSTEMD
from pd_units.ports import ActiveState, UnitStatus


class OfflineManager:
    """`ports.Manager` for an image: enablement by `systemctl --root`; nothing runs, so starts do nothing.

    Raises: HostError 30 without systemctl, 32 if it fails.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tool = shutil.which("systemctl")
        if self._tool is None:
            raise HostError(
                "systemctl is not installed",
                hint="units are enabled in an image by systemctl --root: apt install systemd",
                exit_code=ExitCode.NO_MANAGER,
            )

    def _systemctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert self._tool is not None
        return subprocess.run(
            [self._tool, f"--root={self._root}", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def version(self) -> int:
        """The version of systemd in the image, from its files; the oldest supported if it is not seen."""
        return systemd_version(self._root) or DEFAULT_SYSTEMD

    def unit(self, name: str) -> UnitStatus:
        """A unit that does not run; whether it is there and enabled."""
        state = self._systemctl("is-enabled", name).stdout.strip().splitlines()
        there = bool(state) and state[0] not in ("not-found", "")
        return UnitStatus(
            unit=name,
            load_state="masked" if state[:1] == ["masked"] else ("loaded" if there else "not-found"),
            active_state=ActiveState.INACTIVE,
            sub_state="dead",
            unit_file_state=state[0] if there else "",
            fragment_path=str(UNIT_DIR / name) if under(self._root, UNIT_DIR / name).exists() else "",
        )

    def start(self, name: str) -> str:
        """Nothing runs in an image."""
        return name

    def stop(self, name: str) -> str:
        """Nothing runs in an image."""
        return name

    def restart(self, name: str) -> str:
        """Nothing runs in an image."""
        return name

    def job_result(self, job: str) -> str | None:
        """Nothing runs in an image."""
        return "done"

    def reset_failed(self, name: str) -> None:
        """Nothing fails in an image."""

    def reload(self) -> None:
        """The image's manager reads its files when it boots."""

    def enable(self, names: Sequence[str]) -> bool:
        """Make the symlinks of [Install]. Raises: HostError 32."""
        return self._change("enable", names)

    def disable(self, names: Sequence[str]) -> bool:
        """Remove them. Raises: HostError 32."""
        return self._change("disable", names)

    def _change(self, verb: str, names: Sequence[str]) -> bool:
        done = self._systemctl(verb, *names)
        if done.returncode:
            raise HostError(f"systemctl --root={self._root} {verb} failed", detail=done.stderr.strip())
        return "symlink" in done.stderr + done.stdout

    def unit_file_state(self, name: str) -> str:
        """Its links in the image."""
        return self.unit(name).unit_file_state

    def watch(self, names: Iterable[str]) -> None:
        """Nothing changes in an image."""

    def pump(self, timeout_s: float) -> None:
        """Nothing changes in an image."""
