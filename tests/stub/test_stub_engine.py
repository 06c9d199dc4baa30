"""Contract of the stub engine: what the units, the watcher and the real router rely on it for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from build import build_wheel

READY = "The server is fired up and ready to roll!"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stub:
    """A running stub: its process, port and everything that it printed so far."""

    def __init__(
        self, site: Path, state: Path, options: list[str], orders: str, port: int | None = None
    ) -> None:
        self.port = port or free_port()
        (state / f"{self.port}.toml").write_text(orders)
        argv = [
            sys.executable,
            "-S",
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(state),
            "--port",
            str(self.port),
        ]
        environment = {
            "PYTHONPATH": str(site),
            "STUB_ENGINE_DIR": str(state),
            "STUB_ENGINE_STATE": str(state),
        }
        self.process = subprocess.Popen(
            [*argv, *options],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.text = ""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill_all(self) -> None:
        """It and whatever it started: they are a session of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 65536):
            with self._changed:
                self.text += data.decode(errors="replace")
                self._changed.notify_all()

    def wait_text(self, wanted: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: wanted in self.text, 10), f"no {wanted!r} in:\n{self.text}"

    def wait_end(self) -> int:
        code = self.process.wait(10)
        self._reader.join(10)
        return code

    def get(self, path: str, body: object = None, timeout_s: float = 10) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for version in ("0.5.13", "0.5.23"):
        site = tmp_path_factory.mktemp("site")
        with zipfile.ZipFile(build_wheel(version, site)) as wheel:
            wheel.extractall(site)
        found[version] = site
    return found


@pytest.fixture
def start(sites: dict[str, Path], tmp_path: Path) -> Iterator[object]:
    with contextlib.ExitStack() as stack:

        def go(*options: str, orders: str = "", version: str = "0.5.13", port: int | None = None) -> Stub:
            stub = Stub(sites[version], tmp_path, list(options), orders, port)
            stack.callback(stub.process.wait)
            stack.callback(stub.kill_all)
            return stub

        yield go


PD = ("--disaggregation-transfer-backend", "nixl", "--disaggregation-mode")


def test_prints_the_recorded_milestones_in_order(start) -> None:
    stub = start(*PD, "prefill", "--disaggregation-bootstrap-port", str(free_port()))
    stub.wait_text(READY)
    milestones = [
        "UserWarning: 'python -m sglang.launch_server'",
        "server_args=ServerArgs(",
        "CommonKVBootstrapServer started successfully",
        "Init torch distributed begin.",
        "Load weight begin.",
        "Load weight end.",
        "KV Cache is allocated.",
        "Memory pool end.",
        "max_total_num_tokens=2580000",
        "NIXL KVManager initialized with backend: UCX",
        "Application startup complete.",
        "Uvicorn running on",
        "Start of pd disaggregation warmup",
        "End of disaggregation warmup",
        READY,
    ]
    positions = [stub.text.find(text) for text in milestones]
    assert -1 not in positions
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("version", "option"), [("0.5.23", "--cuda-graph-max-bs"), ("0.5.13", "--cuda-graph-max-bs-decode")]
)
def test_refuses_an_option_of_another_version_as_argparse_does(start, version: str, option: str) -> None:
    stub = start(option, "32", version=version)
    assert stub.wait_end() == 2
    assert "usage: sglang serve" in stub.text
    assert "sglang serve: error: " in stub.text
    assert option in stub.text.splitlines()[-1]


def test_refuses_a_choice_that_does_not_exist(start) -> None:
    stub = start("--disaggregation-transfer-backend", "pigeon")
    assert stub.wait_end() == 2
    assert "invalid choice: 'pigeon'" in stub.text


def test_missing_model_ends_with_1(start) -> None:
    stub = start("--model-path", "/models/nothing-here")
    assert stub.wait_end() == 1
    assert "OSError: Repo id must be in the form" in stub.text


def test_health_is_503_until_the_warm_up_is_over(start) -> None:
    stub = start(orders="delay = { warmup = 0.5 }")
    stub.wait_text("Uvicorn running on")
    assert stub.get("/health")[0] == 503
    assert stub.get("/model_info")[0] == 200
    stub.wait_text(READY)
    assert stub.get("/health")[0] == 200


@pytest.mark.parametrize(("version", "status"), [("0.5.13", -signal.SIGKILL), ("0.5.23", 0)])
def test_stops_as_its_version_does(start, version: str, status: int) -> None:
    stub = start(version=version)
    stub.wait_text(READY)
    children = stub.children()
    assert len(children) == 2
    stub.process.terminate()
    assert stub.wait_end() == status
    assert "Draining requests" in stub.text
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children):
        assert time.monotonic() < deadline, "children outlived their parent"


def test_sigterm_while_loading_is_not_handled(start) -> None:
    stub = start(orders='hang = "weights"')
    stub.wait_text("Load weight begin")
    stub.process.terminate()
    assert stub.wait_end() == -signal.SIGTERM


def test_a_failing_rank_kills_the_tree(start) -> None:
    stub = start(orders='fail = { phase = "kv", text = "RuntimeError: Not enough memory." }')
    assert stub.wait_end() == -signal.SIGKILL
    assert "Scheduler hit an exception: Traceback" in stub.text
    assert "Received sigquit from a child process." in stub.text


def test_a_killed_rank_is_reported_and_ends_with_1(start) -> None:
    stub = start(orders='fail = { phase = "weights", rank_signal = "KILL" }')
    assert stub.wait_end() == 1
    assert "Rank 0 scheduler died during initialization (exit code: -9)" in stub.text


def test_a_rank_killed_after_ready_wedges_and_then_kills(start) -> None:
    stub = start(orders="crash_s = 0.2")
    stub.wait_text(READY)
    os.kill(stub.children()[0], signal.SIGKILL)
    assert stub.wait_end() == -signal.SIGKILL
    assert "crashed with exit code -9" in stub.text


def test_failed_warm_up_still_says_fired_up_and_stays_unhealthy(start) -> None:
    stub = start(*PD, "decode", orders='warmup = "fail"')
    stub.wait_text(READY)
    assert "Disaggregation warmup failed (mode=decode)" in stub.text
    assert stub.get("/health")[0] == 503


@pytest.mark.parametrize(("version", "status"), [("0.5.13", None), ("0.5.23", 3)])
def test_port_taken_by_another_engine_lies_after_the_load(start, version: str, status: int | None) -> None:
    first = start()
    first.wait_text(READY)
    second = start(version=version, port=first.port)
    second.wait_text(READY)
    assert "[Errno 98] error while attempting to bind on address" in second.text
    if status is None:
        assert second.process.poll() is None
    else:
        assert second.wait_end() == status


def test_a_pair_serves_only_together(start) -> None:
    bootstrap = free_port()
    prefill = start(*PD, "prefill", "--disaggregation-bootstrap-port", str(bootstrap))
    decode = start(*PD, "decode", orders="bootstrap_tries = 1\nbootstrap_pause_s = 0")
    prefill.wait_text(READY)
    decode.wait_text(READY)
    request = {
        "text": "hello",
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": bootstrap,
        "bootstrap_room": 7,
        "sampling_params": {"max_new_tokens": 32},
    }
    halves: list[tuple[int, str]] = []
    other = threading.Thread(target=lambda: halves.append(prefill.get("/generate", request)))
    other.start()
    status, text = decode.get("/generate", request)
    other.join(10)
    assert (status, halves[0][0]) == (200, 200)
    assert f"Served by stub engine {prefill.port} and {decode.port} for: hello" in json.loads(text)["text"]
    prefill.process.kill()
    prefill.wait_end()
    assert decode.get("/generate", request)[0] == 500
    decode.wait_text("Could not fetch prefill parallel info")
    assert decode.get("/generate", {"text": "alone"})[0] == 400


def test_streams_as_server_sent_events(start) -> None:
    stub = start()
    stub.wait_text(READY)
    status, text = stub.get(
        "/v1/chat/completions", {"messages": [{"content": "hi"}], "stream": True, "max_tokens": 3}
    )
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert status == 200
    assert events[-1] == "[DONE]"
    assert len(events) == 4


def test_only_the_first_starts_misbehave(start) -> None:
    orders = 'first = 1\nfail = { phase = "args", text = "ImportError: no", exit = 1 }'
    first = start(orders=orders)
    assert first.wait_end() == 1
    second = start(orders=orders, port=first.port)
    second.wait_text(READY)


def test_log_level_warning_is_silent(start) -> None:
    stub = start("--log-level", "warning")
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError):
            if stub.get("/health")[0] == 200:
                break
        assert time.monotonic() < deadline
    assert READY not in stub.text
    assert "Load weight" not in stub.text


def test_replays_a_recording_and_ends_as_it_ended(start, tmp_path: Path) -> None:
    recording = tmp_path / "recorded.log"
    recording.write_text("   1.25 [2026-01-01 00:00:00] one\n   2.50 two\rthree\n")
    stub = start(orders=f'replay = {{ file = "{recording}", signal = "SEGV" }}')
    assert stub.wait_end() == -signal.SIGSEGV
    assert "\n[2026-01-01 00:00:00] one\ntwo\rthree\n" in stub.text


def test_floods(start) -> None:
    stub = start(orders='flood = { phase = "weights", lines = 20000 }')
    stub.wait_text(READY)
    assert stub.text.count("flood line") == 20000


def test_is_ready_in_a_fraction_of_a_second(start) -> None:
    before = time.monotonic()
    start().wait_text(READY)
    assert time.monotonic() - before < 1.0
