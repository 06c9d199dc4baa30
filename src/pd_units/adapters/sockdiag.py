"""TCP sockets that listen on a port, asked of the kernel: /proc/net/tcp walks through every connection."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2
_LISTEN = 1 << 10
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_REQUEST = struct.Struct("=BBBxI" + "2s2s" + "16s16s" + "I8s")  # inet_diag_req_v2
_MESSAGE = struct.Struct("=BBBB" + "2s2s" + "16s16s" + "I8s" + "IIIII")  # inet_diag_msg


def listeners(port: int) -> dict[int, bytes]:
    """Inode -> address (4 or 16 bytes) of the listeners on `port` in our own network namespace.

    Raises: OSError where the kernel has no sock_diag. Source: sock_diag(7).
    """
    found: dict[int, bytes] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            link.sendto(_question(family, port), (0, 0))
            length = 4 if family == socket.AF_INET else 16
            for source_port, address, inode in _answers(link):
                if source_port == port:
                    found[inode] = address[:length]
    return found


def _question(family: int, port: int) -> bytes:
    source, nowhere, any_cookie = struct.pack("!H", port), b"", b"\xff" * 8
    protocol = socket.IPPROTO_TCP
    body = _REQUEST.pack(family, protocol, 0, _LISTEN, source, *(nowhere,) * 3, 0, any_cookie)
    size = _HEADER.size + len(body)
    return _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, family, 0) + body


def _answers(link: socket.socket) -> Iterator[tuple[int, bytes, int]]:
    """(port, address, inode) of each socket, until the kernel says that it is done."""
    while True:
        data = link.recv(65536)
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            if kind == _ERROR:
                number = -struct.unpack_from("=i", data, _HEADER.size)[0]
                raise OSError(number, os.strerror(number))
            fields = _MESSAGE.unpack_from(data, _HEADER.size)
            yield struct.unpack("!H", fields[4])[0], fields[6], fields[14]
            data = data[(length + 3) & ~3 :]
