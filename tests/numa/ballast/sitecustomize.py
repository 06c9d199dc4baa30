"""Memory for the stub engine: every process of it, forked ones too, fills PD_BALLAST_MB of anonymous memory.

Python imports this by itself where it lies on PYTHONPATH. PD_BALLAST_ASTRAY=NODE makes the first process
that the main one forks bind itself to that NUMA node, whatever the unit's policy says, as a library may do.
"""

import ctypes
import mmap
import os

_MPOL_BIND = 2
_SET_MEMPOLICY = 238  # x86_64
_held = []
_forks = 0


def _fill():
    size = int(os.environ.get("PD_BALLAST_MB", "0")) << 20
    if not size:
        return
    _held.clear()
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block[:] = b"\1" * size
    _held.append(block)


def _bind(node):
    mask = ctypes.c_ulong(1 << node)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SET_MEMPOLICY, _MPOL_BIND, ctypes.byref(mask), 64):
        raise OSError(ctypes.get_errno(), "set_mempolicy")


def _count():
    global _forks
    _forks += 1


def _in_child():
    # What a child has from its parent is the parent's until it is written: so it is filled again.
    astray = os.environ.get("PD_BALLAST_ASTRAY")
    if astray and _forks == 1:
        _bind(int(astray))
    _fill()


_fill()
os.register_at_fork(before=_count, after_in_child=_in_child)
