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


def test_start_time_is_on_the_monotonic_clock():
    before_s = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started_s = procfs.start_mono_us(child.pid) / 1e6
    child.communicate(b"\n", timeout=10)
    assert before_s - 0.05 < started_s < time.monotonic()
    assert procfs.start_mono_us(child.pid) == 0


def test_children_that_nobody_waited_for_are_seen():
    script = "import os, time\nif not os.fork(): os._exit(1)\nprint(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    child.stdout.readline()
    deadline = time.monotonic() + 10
    while not procfs.defunct_children(child.pid) and time.monotonic() < deadline:
        os.sched_yield()
    assert len(procfs.defunct_children(child.pid)) == 1
    child.kill()
    child.wait(10)
    assert procfs.defunct_children(child.pid) == ()


def test_the_most_specific_listener_answers():
    everywhere, everywhere6, local, local6 = 1, 2, 3, 4
    found = {everywhere: bytes(4), everywhere6: bytes(16), local: bytes([127, 0, 0, 1])}
    assert procfs.answering(found, "127.0.0.1") == {local}
    assert procfs.answering(found, "10.0.0.1") == {everywhere}
    assert procfs.answering(found, "::1") == {everywhere6}
    assert procfs.answering({everywhere6: bytes(16)}, "127.0.0.1") == {everywhere6}
    assert procfs.answering({local6: bytes(15) + b"\x01"}, "127.0.0.1") == set()
    assert procfs.answering(found, "a-name") == {everywhere, everywhere6, local}


def test_a_listener_beside_ours_on_the_very_address_is_not_ours():
    """Another process on 127.0.0.1 takes what is sent there from our listener on 0.0.0.0."""
    script = (
        "import socket, sys\ns = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); print(flush=True); input()"
    )
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("0.0.0.0", 0))
        ours.listen()
        port = ours.getsockname()[1]
        other = subprocess.Popen(
            [sys.executable, "-c", script, "127.0.0.1", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        other.stdout.readline()
        found = procfs.listeners(os.getpid(), port)
        mine = {os.fstat(ours.fileno()).st_ino}
        assert procfs.answering(found, "10.0.0.1") == mine
        assert procfs.answering(found, "127.0.0.1").isdisjoint(mine)
        other.communicate(b"\n", timeout=10)


def test_command_line_and_what_is_gone():
    assert procfs.command_line(os.getpid())[0]
    assert procfs.command_line(2**22 + 1) == ()
    assert procfs.process_state(2**22 + 1) == ""
