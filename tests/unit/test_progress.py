"""Progress: a line a change in a log, one live line a unit on a terminal, and never silence."""

from __future__ import annotations

import io

import pytest

from pd_units.cli.progress import Progress
from pd_units.index import Index, IndexUnit
from pd_units.naming import Role
from pd_units.observe import RouterView, UnitReport, UnitState
from pd_units.ports import ActiveState, UnitStatus
from pd_units.verdicts import LiveVerdict
from pd_units.waiting import DeploymentReport

UNIT = "a-decode.service"
DECLARED = IndexUnit(unit=UNIT, role=Role.DECODE, url="http://127.0.0.1:1", gpus=(0,), numa=(), cpus=None)
INDEX = Index(name="a", generation=1, units=(DECLARED,), timeout_s=60.0)


class FakeClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Screen:
    """Shows what is drawn, with a clock to move."""

    def __init__(self, *, live: bool, usual: float | None = None) -> None:
        self.clock, self.text = FakeClock(), io.StringIO()
        self.progress = Progress(self.clock, stream=self.text, live=live, typical=lambda _names, _unit: usual)

    def show(self, *, after: float = 0.0, state=UnitState.STARTING, detail: str = "", router=None) -> str:
        """What is written for this state of the unit, `after` seconds later."""
        self.clock.now += after
        at = len(self.text.getvalue())
        active = ActiveState.ACTIVE if state is UnitState.READY else ActiveState.ACTIVATING
        status = UnitStatus(
            unit=UNIT,
            load_state="loaded",
            active_state=active,
            sub_state="",
            inactive_exit_mono_us=100_000_000,
            active_enter_mono_us=int(self.clock.now * 1e6),
        )
        live = LiveVerdict(unit=UNIT, invocation_id="x", state="waiting", detail=detail)
        unit = UnitReport(declared=DECLARED, status=status, state=state, live=live)
        self.progress((DeploymentReport(index=INDEX, units=(unit,), router=router),))
        return self.text.getvalue()[at:]


def test_in_a_log_one_line_a_change():
    screen = Screen(live=False, usual=402.0)
    assert screen.show() == "[   0.0 s] a-decode: starting (ready after 6:42 as a rule)\n"
    assert screen.show(after=0.5) == ""
    assert (
        screen.show(after=0.5, detail="loading weights 1/46")
        == "[   1.0 s] a-decode: starting: loading weights 1/46\n"
    )
    assert screen.show(after=0.5, detail="loading weights 2/46") == ""
    assert "5/46" in screen.show(after=5.0, detail="loading weights 5/46")
    assert "warming up" in screen.show(after=0.1, detail="warming up")
    assert "a-decode: ready after 7." in screen.show(after=1.0, state=UnitState.READY)
    assert "\x1b" not in screen.text.getvalue()


@pytest.mark.parametrize("look_s", [0.5, 10.0])
def test_a_log_is_never_silent_for_thirty_seconds(look_s):
    screen = Screen(live=False)
    silent_since = screen.clock.now
    screen.show()
    while screen.clock.now < 400:
        if screen.show(after=look_s):
            assert screen.clock.now - silent_since <= 30
            silent_since = screen.clock.now
    assert "still waiting: a-decode: starting" in screen.text.getvalue()


def test_a_ready_unit_needs_no_sign_of_life():
    screen = Screen(live=False)
    screen.show(state=UnitState.READY)
    router = RouterView(unit="a-router.service", ready=False, detail="/readiness: 503")
    assert "a: /readiness: 503" in screen.show(state=UnitState.READY, router=router)
    assert screen.show(after=25.0, state=UnitState.READY, router=router).count("\n") == 1


def test_on_a_terminal_one_live_line_a_unit():
    screen = Screen(live=True, usual=402.0)
    first = screen.show(after=1.0, detail="loading weights 1/46")
    assert first == "\x1b[2Ka-decode: starting: loading weights 1/46  [1.0 s of about 6:42]\n"
    assert screen.show(after=1.0, detail="warming up").startswith(
        "\x1b[1A\r\x1b[2Ka-decode: starting: warming up"
    )
    assert screen.show(after=99.0, detail="warming up").count("\n") == 1
    assert "[1:41 of about 6:42]" in screen.text.getvalue()
    screen.progress.say("starting a-router.service")
    assert screen.text.getvalue().endswith("\x1b[1A\r\x1b[Jstarting a-router.service\n")
    assert not screen.show(after=1.0, state=UnitState.READY).startswith("\x1b[1A")


def test_more_units_than_the_terminal_has_lines(monkeypatch):
    monkeypatch.setenv("LINES", "4")
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen(live=True)
    screen.progress._draw([f"unit-{n} " + "x" * 99 for n in range(9)])
    lines = screen.text.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1].endswith("... and 7 more")
    assert all(len(line) <= 40 + len("\x1b[2K") for line in lines)


def test_only_what_is_waited_for_is_shown():
    screen = Screen(live=False)
    screen.progress = Progress(screen.clock, stream=screen.text, live=False, selected=lambda _unit: False)
    assert screen.show() == ""
