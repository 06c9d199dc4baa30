"""One HTTP request that never blocks its caller: for a loop that also watches a process and a journal."""

from __future__ import annotations

import http.client
import io
import json
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `status` is None if nothing usable did, and `error` says why."""

    status: int | None
    body: bytes = b""
    error: str = ""

    def json(self) -> Any:
        """The body as JSON, None if it is not."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(slots=True)
class Request:
    """A request under way. Call `step()` when `fileno()` is ready as `events()` says; `answer` is then set.

    Connections are not kept; the body of the answer is read to its end, at most 1 MiB.
    """

    url: str
    method: str = "GET"
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    answer: Answer | None = None
    _socket: socket.socket | None = None
    _out: bytes = b""
    _in: bytearray = field(default_factory=bytearray)
    _deadline: float = 0.0

    def start(self) -> Request:
        """Begin to connect; the request itself, for chaining."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        self._deadline = time.monotonic() + self.timeout_s
        lines = [f"{self.method} {parts.path or '/'} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        self._out = "\r\n".join([*lines, "", ""]).encode() + self.body
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            self._socket = socket.socket(family, kind)
            self._socket.connect((host, port))
        except BlockingIOError:
            pass
        except OSError as error:
            self._finish(Answer(None, error=error.strerror or str(error)))
        return self

    def fileno(self) -> int:
        """The socket's descriptor, -1 when the request has ended."""
        return self._socket.fileno() if self._socket is not None else -1

    def events(self) -> int:
        """What to poll for: POLLOUT while sending, then POLLIN."""
        return select.POLLOUT if self._out else select.POLLIN

    def step(self) -> Answer | None:
        """Do what can be done without blocking; the answer, if it is complete."""
        if self.answer is not None or self._socket is None:
            return self.answer
        if time.monotonic() >= self._deadline:
            return self._finish(Answer(None, error=f"no answer in {self.timeout_s:g} s"))
        try:
            if self._out:
                self._send()
            if not self._out and self._receive():
                return self._finish(_parse(bytes(self._in)))
        except BlockingIOError:
            return None
        except OSError as error:
            return self._finish(Answer(None, error=error.strerror or str(error)))
        return None

    def wait(self, timeout_s: float) -> Answer | None:
        """Go on for at most `timeout_s`; the answer, if it is complete by then."""
        until = time.monotonic() + timeout_s
        while self.step() is None and (left := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self, self.events())
            poll.poll(1000 * min(left, max(0.0, self._deadline - time.monotonic()) + 0.01))
        return self.answer

    def _send(self) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, _strerror(code))
        sent = self._socket.send(self._out)
        self._out = self._out[sent:]

    def _receive(self) -> bool:
        """Read what is there; whether the answer is complete."""
        assert self._socket is not None
        while len(self._in) < _MAX_BYTES:
            data = self._socket.recv(65536)
            if not data:
                return True
            self._in += data
            if _complete(self._in):
                return True
        return True

    def _finish(self, answer: Answer) -> Answer:
        self.close()
        self.answer = answer
        return answer

    def close(self) -> None:
        """Give the request up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _strerror(code: int) -> str:
    import os

    return os.strerror(code)


def _complete(data: bytearray) -> bool:
    """Whether a response with a Content-Length is all there, so that a server that keeps the connection
    open is not waited for."""
    head, separator, body = bytes(data).partition(b"\r\n\r\n")
    if not separator:
        return False
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return len(body) >= int(value)
    return False


class _Bytes:
    """What http.client wants of a socket, over bytes already read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_args: Any, **_kwargs: Any) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parse(data: bytes) -> Answer:
    response = http.client.HTTPResponse(_Bytes(data))  # type: ignore[arg-type]
    try:
        response.begin()
        return Answer(response.status, response.read(_MAX_BYTES))
    except (http.client.HTTPException, OSError, ValueError) as error:
        return Answer(None, error=f"not HTTP: {error!r}")


def fetch(
    url: str,
    *,
    method: str = "GET",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 5.0,
) -> Answer:
    """One request, waited for. Never raises: an unreachable server is an Answer without a status."""
    request = Request(url, method, body, headers or {}, timeout_s).start()
    while (answer := request.wait(timeout_s)) is None:
        pass  # its own deadline ends it
    return answer
