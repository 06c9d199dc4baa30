"""Processes and sockets, as the kernel shows them here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from pd_units.adapters import procfs


def listener():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock, sock.getsockname()[1]


def test_a_listening_port_belongs_to_its_process_alone():
    sock, port = listener()
    with sock:
        assert procfs.holds_port(os.getpid(), port)
        assert procfs.port_in_use(port)
        assert procfs.port_owner(port) == os.getpid()
    assert not procfs.port_in_use(port)
    assert not procfs.holds_port(os.getpid(), port)
    assert procfs.port_owner(port) is None


def test_a_connected_socket_is_no_listener():
    sock, port = listener()
    with sock, socket.create_connection(("127.0.0.1", port)) as client:
        assert not procfs.port_in_use(client.getsockname()[1])


def test_a_handle_tells_when_its_process_is_gone():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    handle = procfs.ProcessHandle(child.pid)
    assert handle.alive()
    handle.kill()
    child.wait(10)
    assert not handle.alive()
    handle.kill()  # of a process that is gone: nothing


def test_a_zombie_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", ""])
    handle = procfs.ProcessHandle(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.process_state(child.pid) == "Z"
    assert not handle.alive()
    child.wait(10)


def test_start_time_is_before_now_and_after_the_boot():
    started = procfs.start_time_us(os.getpid(), wall_s=time.time())
    assert 0 < started < time.time() * 1e6


def test_command_line_and_what_is_gone():
    assert procfs.command_line(os.getpid())[0]
    assert procfs.command_line(2**22 + 1) == ()
    assert procfs.process_state(2**22 + 1) == ""
