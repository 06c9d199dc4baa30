"""The readers of placement against processes of this host, and an nvidia-smi that speaks as the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pd_units.adapters import gpu_memory, placement

HOLD = "held = bytes(8 << 20); held = bytearray(b'x') * (8 << 20); print('ready', flush=True); input()"


@pytest.fixture
def child(monkeypatch) -> Iterator[subprocess.Popen[str]]:
    """A process that holds 8 MiB; its control group is taken to be its own."""
    environment = {"CUDA_VISIBLE_DEVICES": "4,5", "SGLANG_SM120_X": "1", "HF_TOKEN": "secret", "OTHER": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**environment, "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    monkeypatch.setattr(placement, "control_group_pids", lambda pid: {pid, os.getpid()})
    yield process
    process.kill()
    process.communicate()


def test_a_process_as_the_kernel_shows_it(child):
    (found,), complete = placement.read_processes(child.pid)
    assert complete
    assert found.pid == child.pid
    assert sum(found.cpus.values()) == 1
    assert list(found.cpus) == [str(min(os.sched_getaffinity(0)))]
    assert found.environment == {"CUDA_VISIBLE_DEVICES": "4,5", "SGLANG_SM120_X": "1"}
    if Path("/proc/self/numa_maps").exists():
        assert sum(found.pages.values()) >= 2048
        assert found.policies
    assert found.gpu_memory is None


def test_flags_of_other_names_are_looked_at_when_asked_for(child):
    (found,), _ = placement.read_processes(child.pid, flags=["OTHER"])
    assert found.environment["OTHER"] == "1"
    assert "HF_TOKEN" not in found.environment


def test_a_process_that_ended_is_left_out(child):
    child.kill()
    child.wait()
    assert placement.read_processes(child.pid) == ((), True)


def test_what_may_not_be_read_is_said(child, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(placement, "_numa_maps", refuse)
    assert placement.read_processes(child.pid) == ((), False)


SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) printf '00000000:41:00.0, 97887, 89123\\n00000000:C2:00.0, 97887, [N/A]\\nnonsense\\n' ;;
--query-compute-apps=*) printf '00000000:41:00.0, 4711, 88000\\n00000000:41:00.0, 4712, [N/A]\\n' ;;
esac
"""


def test_nvidia_smi_in_its_own_words(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu_memory, "_from_nvml", lambda: None)
    found = gpu_memory.read_gpu_memory()
    assert found is not None
    assert found["0000:41:00.0"].used_bytes == 89123 << 20
    assert found["0000:41:00.0"].by_pid == {4711: 88000 << 20, 4712: 0}
    assert found["0000:c2:00.0"].used_bytes == 0
    assert gpu_memory.read_gpu_memory(smi=False) is None


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 9\n", "#!/nowhere\n"])
def test_an_nvidia_smi_that_fails_is_none(tmp_path, monkeypatch, text):
    (tmp_path / "nvidia-smi").write_text(text)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_memory, "_from_nvml", lambda: None)
    assert gpu_memory.read_gpu_memory() is None
