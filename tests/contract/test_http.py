"""The non-blocking request, against real servers on the loopback."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading

import pytest

from pd_units.adapters.http import fetch


@contextlib.contextmanager
def server(answer, family=socket.AF_INET):
    """A raw server: `answer(connection, request_bytes)` for each connection."""
    listener = socket.socket(family)
    listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    listener.listen(4)

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                answer(connection, connection.recv(65536))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    host = "[::1]" if family == socket.AF_INET6 else "127.0.0.1"
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def replying(data, hold=None):
    def answer(connection, _request):
        connection.sendall(data)
        if hold is not None:
            hold.wait(5)

    return answer


def test_a_real_server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "ready"}')

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(201)
            self.end_headers()
            self.wfile.write(body + self.headers["Authorization"].encode())

        def log_message(self, *_):
            pass

    real = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=real.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{real.server_address[1]}"
    try:
        answer = fetch(f"{url}/readiness")
        assert (answer.status, answer.json()) == (200, {"status": "ready"})
        answer = fetch(f"{url}/generate", method="POST", body=b"x" * 100_000, headers={"Authorization": "k"})
        assert (answer.status, answer.body) == (201, b"x" * 100_000 + b"k")
    finally:
        real.shutdown()
        real.server_close()


def test_ipv6():
    with server(replying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), socket.AF_INET6) as url:
        assert fetch(url + "/").body == b"ok"


def test_a_server_that_keeps_the_connection_is_not_waited_for():
    hold = threading.Event()
    with server(replying(b"HTTP/1.1 503 no\r\nContent-Length: 0\r\n\r\n", hold)) as url:
        try:
            assert fetch(url + "/health", timeout_s=20).status == 503
        finally:
            hold.set()


def test_chunks_are_joined():
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with server(replying(data)) as url:
        assert fetch(url + "/").body == b"abcde"


@pytest.mark.parametrize("data", [b"", b"\0\1\2", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_not_http_has_no_status(data):
    with server(replying(data)) as url:
        answer = fetch(url + "/")
    assert answer.status is None
    assert answer.error


def test_silence_ends_at_the_timeout():
    hold = threading.Event()
    with server(replying(b"", hold)) as url:
        try:
            answer = fetch(url + "/", timeout_s=0.3)
        finally:
            hold.set()
    assert answer.status is None
    assert "0.3 s" in answer.error


def test_nobody_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        answer = fetch(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert answer.status is None
    assert "refused" in answer.error
