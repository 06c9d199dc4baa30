"""The main process: the start in the real order, serving, and the real ways to stop and to die."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import select
import signal
import socket
import time
from pathlib import Path
from types import FrameType

from sglang.control import Control
from sglang.output import Output, die_now
from sglang.ranks import Child, Children, Death
from sglang.serving import Serving
from sglang.trouble import SITE, Trouble, signal_number
from sglang.web import Server, fetch, listen

WANTED_FILES = 65535  # what the real one raises its soft limit to
DERIVED = ("tp", "dp", "mode", "level")  # our own names, not options
READY = "The server is fired up and ready to roll!"


class Engine:
    """One server from its command line on. `version` decides wording, exit statuses and endpoints."""

    def __init__(self, args: argparse.Namespace, control: Control, version: str) -> None:
        self.args, self.control, self.version = args, control, version
        self.newer = version == "0.5.23"
        self.out = Output(args.level)
        self.trouble = Trouble(control, self.out)
        self.serving = Serving(args, control, self.out, version)
        self.children: Children | None = None
        self.term = self.launched = False
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)

    def run(self) -> None:
        if self.control.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._before_ranks()
        bootstrap = self._open_bootstrap()
        signal.signal(signal.SIGQUIT, self._on_quit)
        own = [self.wake_read, self.wake_write] + ([bootstrap.fileno()] if bootstrap else [])
        self.children = Children(self.args, self.control, newer=self.newer, closing=own)
        if bootstrap is not None:
            Server(bootstrap, self.serving.bootstrap, lambda request, status: None)
        self._load()
        listener = self._open_http()
        if listener is not None:
            Server(listener, self.serving.handle, self.serving.note)
            self._warm_up()
        self._ready_and_serve()

    # -- the start, in order -----------------------------------------------------------------------------

    def _before_ranks(self) -> None:
        where = f"{SITE.removesuffix('/srt')}/launch_server.py:54"
        self.out.raw(
            f"{where}: UserWarning: 'python -m sglang.launch_server' is still supported, but "
            "'sglang serve' is the recommended entrypoint.\n"
            "  Example: sglang serve --model-path <model> [options]\n  warnings.warn(\n"
        )
        time.sleep(float(self.control.delay.get("args", 0.0)))
        self.trouble.at("args")
        if self.control.replay:
            self._replay()
        self._check_model()
        if self.args.mode == "decode":
            self.out.line("KV cache is forced as chunk cache for decode server")
        if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < WANTED_FILES:
            self.out.line("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit", "warning")
        values = {key: value for key, value in vars(self.args).items() if key not in DERIVED}
        if self.newer:
            self.out.line(f"server_args={values}")
        else:
            self.out.line(
                f"server_args=ServerArgs({', '.join(f'{key}={value!r}' for key, value in values.items())})"
            )
        self.out.line("No HuggingFace chat template found", "warning")

    def _check_model(self) -> None:
        path = self.args.model_path
        if path.startswith("/") and not Path(path).is_dir():
            self.out.raw(
                "Traceback (most recent call last):\n"
                f'  File "{SITE}/server_args.py", line 8009, in prepare_server_args\n'
                f"OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. "
                "Use `repo_type` argument if needed.\n"
            )
            die_now(code=1)

    def _replay(self) -> None:
        """A recorded log in place of a story: printed line by line, then the recorded end."""
        order = self.control.replay
        with Path(order["file"]).open(encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                self.out.raw(re.sub(r"^ *\d+\.\d\d ", "", line))
                time.sleep(float(order.get("pause_s", 0.0)))
        if "exit" in order or "signal" in order:
            die_now(code=order.get("exit"), signal=signal_number(order.get("signal")))
        if order.get("serve", False):
            self.serving.status = "Up"
            Server(listen(self.args.host, self.args.port), self.serving.handle, self.serving.note)
        while True:
            time.sleep(3600)

    def _open_bootstrap(self) -> socket.socket | None:
        if self.args.mode != "prefill":
            return None
        host, port = self.args.host, self.args.disaggregation_bootstrap_port
        try:
            listener = listen(host, port)
        except OSError as error:  # not fatal in the real one either
            self.out.line(
                f"Server error: [Errno {error.errno}] error while attempting to bind on address", "error"
            )
            return None
        self.out.line(f"CommonKVBootstrapServer started successfully on {host}:{port}")
        return listener

    def _load(self) -> None:
        assert self.children is not None
        trouble = self.children.wait_ready()
        if isinstance(trouble, Death):
            self.children.kill()
            die_now(code=trouble.code, signal=trouble.signal)
        if isinstance(trouble, Child):
            self._died_while_loading(trouble)
        if self.newer:
            self.out.line(
                "Engine startup timings (s): load_weight=0.10, kv_cache_allocation=0.02, scheduler_e2e=0.30, "
                "cuda_graph={}, tokenizer_e2e=0.05"
            )

    def _died_while_loading(self, child: Child) -> None:
        assert self.children is not None
        time.sleep(0.05)  # a rank that sends SIGQUIT and one that just dies look alike for a moment
        self.out.line(
            f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}"
        )
        self.children.kill()
        rank = child.name.rpartition("_")[2]
        self.out.raw(
            "Traceback (most recent call last):\n"
            f'  File "{SITE}/entrypoints/engine.py", line 1362, in _wait_for_scheduler_ready\n'
            f"RuntimeError: Rank {rank} scheduler died during initialization (exit code: {child.status}). "
            "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
            "Run `dmesg -T | grep -i oom` to check.\n"
        )
        die_now(code=1)

    def _open_http(self) -> socket.socket | None:
        out, host, port = self.out, self.args.host, self.args.port
        self.launched = True
        out.line(f"INFO:     Started server process [{os.getpid()}]")
        out.line("INFO:     Waiting for application startup.")
        time.sleep(float(self.control.delay.get("uvicorn", 0.0)))
        self.trouble.at("uvicorn")
        out.line("INFO:     Application startup complete.")
        try:
            listener = listen(host, port)
        except OSError:
            self._port_taken()
            return None
        out.line(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        return listener

    def _port_taken(self) -> None:
        """Only seen after the whole load; 0.5.13 stays alive, 0.5.23 leaves with 3; both may lie first."""
        out, host, port = self.out, self.args.host, self.args.port
        out.line(
            f"ERROR:    [Errno 98] error while attempting to bind on address ('{host}', {port}): "
            "address already in use",
            "error",
        )
        out.line("INFO:     Waiting for application shutdown.")
        with contextlib.suppress(OSError, ValueError):
            if fetch("127.0.0.1", port, "/model_info")[0] == 200:  # another engine: the warm-up "succeeds"
                out.line(READY)
        if self.newer:
            die_now(code=3)

    def _warm_up(self) -> None:
        out, control = self.out, self.control
        out.line('INFO:     127.0.0.1:41788 - "GET /model_info HTTP/1.1" 200 OK', access=True)
        if self.args.skip_server_warmup:
            self.serving.status = "Up"
            return
        if self.args.mode:
            out.line("Start of pd disaggregation warmup ...")
        if not control.ignore_term:  # the real one has no handler before its first request
            signal.signal(signal.SIGTERM, self._on_term)
        time.sleep(float(control.delay.get("warmup", 0.0)))
        self.trouble.at("warmup")
        if control.warmup == "error":
            text = "requests.exceptions.ReadTimeout: Read timed out. (read timeout=600)"
            traceback = f"Traceback (most recent call last):\n{text}"
            out.line(f"Initialization failed. warmup error: {traceback}", "error")
            self._kill_tree()
        if not self.args.mode:
            out.line("Prefill batch, #new-seq: 1, #new-token: 3, #cached-token: 0, token usage: 0.00")
            self.serving.status = "Up"
            return
        if control.warmup == "fail":
            what = "status codes: [500]" if self.newer else "status code: 500"
            out.line(f"Disaggregation warmup failed (mode={self.args.mode}), {what}")
            self.serving.status = "UnHealthy"
            return
        done = "request completed with status 200, resp: [{'output_ids': [2396]}]"
        done = "requests completed for all 1 DP ranks" if self.newer else done
        out.line(f"Disaggregation warmup {done}")
        out.line("End of disaggregation warmup")
        self.serving.status = "Up"

    # -- serving, stopping, dying ------------------------------------------------------------------------

    def _ready_and_serve(self) -> None:
        assert self.children is not None
        if self.serving.status != "Starting":
            self.trouble.at("ready")
            self.out.line(READY)
        end = self.control.die_after_ready
        deadline = time.monotonic() + float(end.get("after_s", 0.0)) if end else None
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.wake_read, *self.children.pipes()], [], [], left)
            if self.term:
                self._drain()
            death = self.children.read(ready)
            lost = self.children.lost()
            if death is not None:
                die_now(code=death.code, signal=death.signal)
            if lost is not None:
                self._child_crashed(lost)
            if deadline is not None and time.monotonic() >= deadline:
                self.trouble.fail(end)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.term = True
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"t")

    def _on_quit(self, number: int, frame: FrameType | None) -> None:
        if self.launched:
            self.out.line(
                "SIGQUIT received. signum=3, frame=None. It usually means one child failed.", "error"
            )
        else:
            self.out.line(
                "Received sigquit from a child process. It usually means the child failed.", "error"
            )
        self._kill_tree()

    def _kill_tree(self) -> None:
        pid = os.getpid()
        self.out.line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
        if self.children is not None:
            self.children.kill()
        die_now(signal=signal.SIGKILL)

    def _drain(self) -> None:
        """Finishes what is in flight, without a bound; then 0.5.13 kills itself and 0.5.23 leaves with 0."""
        assert self.children is not None
        out, serving = self.out, self.serving
        out.line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        serving.draining = True
        while True:
            time.sleep(self.control.drain_s)
            if self.children.lost() is None:
                self.children.read(select.select(self.children.pipes(), [], [], 0)[0])
            if (lost := self.children.lost()) is not None:
                self._child_crashed(lost)
            rest = serving.in_flight
            left = f"Remaining number of requests {rest}. Remaining requests remaining_rids=[]."
            out.line(f"Gracefully exiting... {left}")
            if not rest:
                break
        if self.newer:
            self.children.kill()
            die_now(code=0)
        self._kill_tree()

    def _child_crashed(self, child: Child) -> None:
        self.serving.wedged = True
        self.out.line(
            f"Subprocess {child.name} (pid={child.pid}) crashed with exit code {child.status}. "
            "Triggering SIGQUIT for cleanup...",
            "error",
        )
        self.out.line(
            "SIGQUIT received. signum=None, frame=None. It usually means one child failed.", "error"
        )
        self.out.line("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        time.sleep(self.control.crash_s)
        self._kill_tree()
