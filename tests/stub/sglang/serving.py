"""What the server answers: health, model facts, and generations that need both halves of a pair."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang.control import Control
from sglang.output import Output
from sglang.web import Answer, Request, fetch

FAKE_BOOTSTRAP_HOST = "2.2.2.2"
GENERATIONS = ("/generate", "/v1/chat/completions", "/v1/completions")
SHOWN_VARIABLES = ("CUDA_", "NVIDIA_", "SGLANG_", "UCX_", "NCCL_", "NIXL_", "PYTHON")


@dataclass
class Room:
    """A prefill's side of one request: the KV cache waits here until decode has taken it."""

    prompt: str
    taken: threading.Event = field(default_factory=threading.Event)


class Rooms:
    """Rooms by number; either side may come first."""

    def __init__(self) -> None:
        self._rooms: dict[int, Room] = {}
        self._changed = threading.Condition()

    def offer(self, number: int, prompt: str) -> Room:
        with self._changed:
            room = self._rooms[number] = Room(prompt)
            self._changed.notify_all()
        return room

    def take(self, number: int, timeout_s: float) -> Room | None:
        with self._changed:
            self._changed.wait_for(lambda: number in self._rooms, timeout_s)
            room = self._rooms.pop(number, None)
        if room is not None:
            room.taken.set()
        return room


def prompt_of(body: dict[str, Any]) -> str:
    if body.get("messages"):
        content = body["messages"][-1].get("content", "")
        return content if isinstance(content, str) else json.dumps(content)
    text = body.get("text") or body.get("prompt") or body.get("input_ids") or ""
    return text if isinstance(text, str) else json.dumps(text)


class Serving:
    """Answers requests. `status` is Starting, Up or UnHealthy, as the real server keeps it."""

    def __init__(self, args: argparse.Namespace, control: Control, out: Output, version: str) -> None:
        self.args, self.control, self.out, self.version = args, control, out, version
        self.status = "Starting"
        self.draining = False
        self.wedged = False  # a child died: nothing answers any more until the process goes
        self.in_flight = 0
        self.rooms = Rooms()
        self._lock = threading.Lock()

    # -- the HTTP port -----------------------------------------------------------------------------------

    def handle(self, request: Request) -> Answer:
        while self.wedged:
            time.sleep(0.05)
        if request.method == "POST" and request.path in GENERATIONS:
            self._count(1)
            try:
                answer = self._generate(request)
            except BaseException:
                self._count(-1)
                raise
            answer.after.append(lambda: self._count(-1))  # also a stream counts until its end
            return answer
        if request.path in ("/health", "/health_generate"):
            return self._health()
        if request.path == "/ready" and self.version == "0.5.23":
            return Answer(200 if self.status == "Up" else 503)
        facts = {
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/models": self._models,
        }
        return (
            Answer(200, facts[request.path]())
            if request.path in facts
            else Answer(404, {"detail": "Not Found"})
        )

    def _count(self, change: int) -> None:
        with self._lock:
            self.in_flight += change

    def note(self, request: Request | None, status: int) -> None:
        """The access line, as uvicorn writes it to stdout."""
        if request is None:
            self.out.line("WARNING:  Invalid HTTP request received.", "warning")
            return
        reasons = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error"}
        reason = reasons.get(status, "Service Unavailable")
        query = f"?{request.query}" if request.query else ""
        line = (
            f'INFO:     {request.peer} - "{request.method} {request.path}{query} HTTP/1.1" {status} {reason}'
        )
        self.out.line(line, access=True)

    def _health(self) -> Answer:
        mode, _, seconds = self.control.health.partition(":")
        if mode == "hang":
            time.sleep(3600)
        if mode == "slow":
            time.sleep(float(seconds or 30))
        if mode == "503":
            return Answer(503)
        if mode == "200":
            return Answer(200)
        if self.draining:
            self.out.line("Health check request received during shutdown. Returning 503.")
            return Answer(503)
        if self.status == "Up":
            time.sleep(self.control.health_delay_s)
        return Answer(200 if self.status == "Up" else 503)

    def _model_info(self) -> dict[str, Any]:
        return {
            "model_path": self.args.model_path,
            "tokenizer_path": self.args.tokenizer_path or self.args.model_path,
            "served_model_name": self.args.served_model_name or self.args.model_path,
            "is_generation": True,
            "tp_size": self.args.tp,
            "dp_size": self.args.dp,
            "disaggregation_mode": self.args.mode or "null",
        }

    def _server_info(self) -> dict[str, Any]:
        """The real keys that clients read, and under `stub` what a test wants to know of this process."""
        with Path("/proc/self/status").open() as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        shown = {key: value for key, value in os.environ.items() if key.startswith(SHOWN_VARIABLES)}
        return {
            **self._model_info(),
            "version": self.version,
            "max_total_num_tokens": self.control.kv_tokens,
            "status": "ready" if self.status == "Up" else "starting",
            "stub": {
                "pid": os.getpid(),
                "uid": os.getuid(),
                "environment": shown,
                "cpus": status.get("Cpus_allowed_list"),
            },
        }

    def _models(self) -> dict[str, Any]:
        name = self.args.served_model_name or self.args.model_path
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "sglang"}]}

    # -- generations -------------------------------------------------------------------------------------

    def _generate(self, request: Request) -> Answer:
        body = request.body
        source = f"{self.args.port}"
        time.sleep(self.control.generate_delay_s)
        if self.args.mode:
            host, port, room = (body.get(f"bootstrap_{key}") for key in ("host", "port", "room"))
            if isinstance(host, list):  # the warm-up's batch form
                host, room = host[0], (room or [0])[0]
            if host is None or room is None:
                what = "Disaggregated request received without bootstrap_host and bootstrap_room"
                return Answer(400, {"error": {"message": what}})
            if host != FAKE_BOOTSTRAP_HOST:
                refused = self._prefill(room, body) if self.args.mode == "prefill" else None
                if self.args.mode == "decode":
                    taken = self._transfer(str(host), int(port or 8998), int(room))
                    if isinstance(taken, Answer):
                        return taken
                    source = f"{taken} and {self.args.port}"
                if refused is not None:
                    return refused
        return self._completion(request.path, body, source)

    def _prefill(self, room: int, body: dict[str, Any]) -> Answer | None:
        """Holds the request until decode has fetched its KV cache."""
        self.out.line("Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0, token usage: 0.00")
        if self.rooms.offer(room, prompt_of(body)).taken.wait(self.control.transfer_timeout_s):
            return None
        self.out.line("Some requests timed out when bootstrapping...", "error")
        return Answer(500, {"error": {"message": f"Request {room} timed out in KVPoll.Bootstrapping"}})

    def _transfer(self, host: str, port: int, room: int) -> str | Answer:
        """Dials the prefill's bootstrap server, as the real decode does, and fetches the room's KV cache."""
        where, tries = f"{host}:{port}", self.control.bootstrap_tries
        for attempt in range(tries):
            try:
                fetch(host, port, "/route?prefill_dp_rank=-1&target_tp_rank=-1")
                break
            except OSError as error:
                self.out.line(f"Error fetching prefill server info from bootstrap: {error}", "error")
                if attempt + 1 < tries:
                    time.sleep(self.control.bootstrap_pause_s)
        else:
            self.out.line(
                f"Could not fetch prefill parallel info from {where} after {tries} attempts", "error"
            )
            return Answer(500, {"error": {"message": f"KVTransferError: no prefill at {where}"}})
        try:
            wait_s = self.control.transfer_timeout_s
            status, text = fetch(host, port, f"/kv?room={room}", timeout_s=wait_s + 1)
        except OSError as error:
            lost = f"Lost connection with prefill instance (bootstrap_addr: {where}), 1 requests affected"
            self.out.line(lost, "error")
            return Answer(500, {"error": {"message": f"KVTransferError: {error}"}})
        if status != 200:
            return Answer(500, {"error": {"message": f"KVTransferError: {text}"}})
        return str(json.loads(text)["prefill"])

    def bootstrap(self, request: Request) -> Answer:
        """The prefill's bootstrap server: up before the weights load, and no sign of readiness."""
        if request.path == "/health":
            return Answer(200, "OK")
        if request.path == "/route":
            return Answer(200, {"prefill": self.args.port, "pid": os.getpid()})
        if request.path == "/kv":
            number = int(request.query.partition("room=")[2])
            room = self.rooms.take(number, self.control.transfer_timeout_s)
            if room is None:
                return Answer(404, "no such room")
            return Answer(200, {"prefill": self.args.port, "prompt": room.prompt})
        return Answer(404, "")

    def _completion(self, path: str, body: dict[str, Any], source: str) -> Answer:
        limits = {**body, **(body.get("sampling_params") or {})}
        names = ("max_new_tokens", "max_tokens", "max_completion_tokens")
        limit = next((int(limits[name]) for name in names if limits.get(name)), 16)
        words = f"Served by stub engine {source} for: {prompt_of(body)[:200]}".split()[:limit]
        identity = uuid.uuid4().hex
        chat = path == "/v1/chat/completions"
        if body.get("stream"):
            return Answer(200, stream=self._stream(path, identity, words))
        usage = {"prompt_tokens": 4, "completion_tokens": len(words), "total_tokens": 4 + len(words)}
        text = " ".join(words)
        if path == "/generate":
            meta = {
                "id": identity,
                "finish_reason": {"type": "length", "length": len(words)},
                "cached_tokens": 0,
            }
            meta.update({key: usage[key] for key in ("prompt_tokens", "completion_tokens")})
            return Answer(200, {"text": text, "output_ids": list(range(len(words))), "meta_info": meta})
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
        kind = "chat.completion" if chat else "text_completion"
        model = self.args.served_model_name or self.args.model_path
        return Answer(
            200, {"id": identity, "object": kind, "model": model, "choices": [choice], "usage": usage}
        )

    def _stream(self, path: str, identity: str, words: list[str]) -> Iterator[str]:
        for count, word in enumerate(words, start=1):
            last = "length" if count == len(words) else None
            if path == "/generate":
                reason = {"type": "length", "length": count} if last else None
                meta = {
                    "id": identity,
                    "finish_reason": reason,
                    "prompt_tokens": 4,
                    "completion_tokens": count,
                }
                text = " ".join(words[:count])
                yield json.dumps({"text": text, "output_ids": list(range(count)), "meta_info": meta})
            else:
                delta = {"role": "assistant", "content": f"{word} "}
                choice: dict[str, Any] = {"index": 0, "finish_reason": last}
                choice.update({"delta": delta} if path == "/v1/chat/completions" else {"text": f"{word} "})
                yield json.dumps({"id": identity, "object": "chat.completion.chunk", "choices": [choice]})
        yield "[DONE]"
