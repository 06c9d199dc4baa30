"""Ctrl-C in a GLib callback is kept, and raised when the callback is over."""

from __future__ import annotations

import os
import signal

import pytest

from pd_units.adapters.interrupts import DeferredInterrupt


def test_an_interrupt_inside_is_raised_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        done.append(interrupt.requested)
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_one_nothing_is_changed():
    before = signal.getsignal(signal.SIGINT)
    with DeferredInterrupt() as interrupt:
        pass
    assert not interrupt.requested
    assert signal.getsignal(signal.SIGINT) is before
