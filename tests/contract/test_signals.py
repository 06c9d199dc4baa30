"""A signal stops a verb once, wherever it comes: also where Python would drop what a handler raises."""

from __future__ import annotations

import os
import signal

import pytest

from pd_units.adapters.signals import Stopped, deal_with, raise_if_stopped, stoppable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_raises_and_its_name_is_kept(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as caught, stoppable():
        os.kill(os.getpid(), number)
    assert deal_name(caught.value) == number.name
    assert signal.getsignal(number) is before


def deal_name(error: Stopped) -> str:
    return error.signal


class Finalizer:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_in_a_finalizer_nothing_is_raised_but_soon_after(capfd: pytest.CaptureFixture[str]) -> None:
    with stoppable():
        thing = Finalizer()
        del thing
        assert capfd.readouterr().err == ""
        with pytest.raises(Stopped):
            raise_if_stopped()


def test_one_that_is_dealt_with_is_gone_and_no_second_one_disturbs(capfd: pytest.CaptureFixture[str]) -> None:
    with stoppable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as error:
            assert deal_with(error) == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        raise_if_stopped()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert deal_with.__doc__
    assert capfd.readouterr().err == ""


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
            raise_if_stopped()
    finally:
        signal.signal(signal.SIGHUP, before)
