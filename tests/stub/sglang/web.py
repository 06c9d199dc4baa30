"""A small HTTP/1.1 server: threads, keep-alive, streams. Enough for urllib and the real router."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass
class Request:
    """`path` without the query; `query` as text; `body` parsed from JSON, {} if none."""

    method: str
    path: str
    query: str
    body: Any
    peer: str


@dataclass
class Answer:
    """`body` is sent as JSON, or as it is if text; `stream` in its place sends server-sent events."""

    status: int = 200
    body: Any = ""
    stream: Iterable[str] | None = None
    after: list[Callable[[], None]] = field(default_factory=list)


Handler = Callable[[Request], Answer]


class Server:
    """Accepts in a thread, answers each connection in one of its own."""

    def __init__(
        self, listener: socket.socket, handler: Handler, note: Callable[[Request | None, int], None]
    ) -> None:
        self.listener, self.handler, self.note = listener, handler, note
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self.listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection, f"{peer[0]}:{peer[1]}"), daemon=True
            ).start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while self._one(connection, stream, peer):
                pass

    def _one(self, connection: socket.socket, stream: Any, peer: str) -> bool:
        """Answers one request; False when the connection is to be closed."""
        line = stream.readline(65536).decode("latin-1").split()
        if not line:
            return False
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            self.note(None, 400)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return False
        headers: dict[str, str] = {}
        while (header := stream.readline(65536).decode("latin-1").strip()) != "":
            key, _, value = header.partition(":")
            headers[key.lower()] = value.strip()
        raw = stream.read(int(headers.get("content-length", 0)))
        path, _, query = line[1].partition("?")
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = None
        request = Request(line[0], path, query, body, peer)
        answer = Answer(400, {"error": "not JSON"}) if body is None else self.handler(request)
        try:
            self._send(connection, answer)
            self.note(request, answer.status)
        finally:
            for action in answer.after:
                action()
        return headers.get("connection", "").lower() != "close"

    def _send(self, connection: socket.socket, answer: Answer) -> None:
        head = f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Error')}\r\nserver: stub-engine\r\n"
        if answer.stream is None:
            text = isinstance(answer.body, str)
            data = (answer.body if text else json.dumps(answer.body)).encode()
            kind = "text/plain" if text else "application/json"
            connection.sendall(
                f"{head}content-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
            )
            return
        connection.sendall(
            f"{head}content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        for event in answer.stream:
            data = f"data: {event}\n\n".encode()
            connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        connection.sendall(b"0\r\n\r\n")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises: OSError (EADDRINUSE)."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(128)
    return listener


def fetch(host: str, port: int, path: str, *, body: Any = None, timeout_s: float = 5.0) -> tuple[int, str]:
    """Status and body of a request to another stub. Raises: OSError, also at the timeout."""
    data = b"" if body is None else json.dumps(body).encode()
    verb = "GET" if body is None else "POST"
    head = (
        f"{verb} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
    )
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(head.encode() + data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    top, _, rest = received.partition(b"\r\n\r\n")
    words = top.split(b" ", 2)
    if len(words) < 2:
        raise ConnectionError(f"{host}:{port} hung up")
    return int(words[1]), rest.decode(errors="replace")
