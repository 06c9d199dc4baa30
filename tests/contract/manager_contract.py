"""What every `ports.Manager` does. The fake is held to it in test_fake_manager.py, the real one inside a box:
there this file is run by itself, and prints one line a case."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pd_units.errors import ExitCode, HostError
from pd_units.ports import ActiveState, Manager

SLEEPER = "[Service]\nType=exec\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
FAILING = "[Service]\nType=exec\nExecStart=/bin/false\n"


class World:
    """A manager, and the directory that it reads unit files from."""

    def __init__(self, manager: Manager, unit_dir: Path) -> None:
        self.manager, self.unit_dir = manager, unit_dir

    def write(self, name: str, text: str) -> str:
        (self.unit_dir / name).write_text(text)
        self.manager.reload()
        return name

    def settled(self, name: str, *states: ActiveState) -> None:
        deadline = time.monotonic() + 10
        while (status := self.manager.unit(name)).active_state not in states or status.job_id:
            assert time.monotonic() < deadline, status
            self.manager.pump(0.05)


def an_unknown_unit_is_not_found(world: World) -> None:
    status = world.manager.unit("contract-nobody.service")
    assert (status.load_state, status.active_state) == ("not-found", ActiveState.INACTIVE)
    assert not status.exists
    assert status.unit_file_state == ""


def a_started_unit_is_active_with_an_invocation(world: World) -> None:
    name = world.write("contract-a.service", SLEEPER)
    world.manager.watch([name])
    assert world.manager.unit(name).invocation_id == ""
    world.manager.start(name)
    world.settled(name, ActiveState.ACTIVE)
    first = world.manager.unit(name)
    assert first.load_state == "loaded"
    assert first.sub_state == "running"
    assert len(first.invocation_id) == 32
    assert first.main_pid > 0
    assert first.seconds_to_ready is not None
    world.manager.start(name)
    world.settled(name, ActiveState.ACTIVE)
    assert world.manager.unit(name).invocation_id == first.invocation_id  # it runs already
    world.manager.restart(name)
    world.settled(name, ActiveState.ACTIVE)
    second = world.manager.unit(name)
    assert second.invocation_id != first.invocation_id
    assert second.main_pid != first.main_pid
    world.manager.stop(name)
    world.settled(name, ActiveState.INACTIVE)
    assert world.manager.unit(name).main_pid == 0
    world.manager.restart(name)  # one that is down is started
    world.settled(name, ActiveState.ACTIVE)
    world.manager.stop(name)
    world.settled(name, ActiveState.INACTIVE)


def a_failed_unit_is_failed_until_it_is_reset(world: World) -> None:
    name = world.write("contract-b.service", FAILING)
    world.manager.start(name)
    world.settled(name, ActiveState.FAILED, ActiveState.INACTIVE)
    world.manager.reset_failed(name)
    assert world.manager.unit(name).active_state is ActiveState.INACTIVE
    world.manager.reset_failed("contract-nobody.service")


def enabling_twice_changes_something_once(world: World) -> None:
    name = world.write("contract-c.service", SLEEPER)
    assert world.manager.unit(name).unit_file_state == "disabled"
    assert world.manager.enable([name]) is True
    assert world.manager.enable([name]) is False
    assert world.manager.unit_file_state(name) == "enabled", "before any reload"
    world.manager.reload()
    assert world.manager.unit(name).unit_file_state == "enabled"
    assert world.manager.disable([name]) is True
    assert world.manager.disable([name]) is False
    assert world.manager.unit_file_state(name) == "disabled"
    assert world.manager.unit_file_state("contract-nobody.service") == ""
    refused(lambda: world.manager.enable(["contract-nobody.service"]))


def a_changed_file_wants_a_reload(world: World) -> None:
    name = world.write("contract-d.service", SLEEPER)
    world.manager.start(name)
    world.settled(name, ActiveState.ACTIVE)
    before = world.manager.unit(name).invocation_id
    time.sleep(0.01)  # the manager compares times of files
    (world.unit_dir / name).write_text(SLEEPER + "# changed\n")
    assert world.manager.unit(name).need_daemon_reload
    world.manager.reload()
    after = world.manager.unit(name)
    assert not after.need_daemon_reload
    assert after.invocation_id == before
    world.manager.stop(name)
    world.settled(name, ActiveState.INACTIVE)


def a_masked_unit_is_not_started(world: World) -> None:
    name = "contract-e.service"
    (world.unit_dir / name).symlink_to("/dev/null")
    world.manager.reload()
    assert world.manager.unit(name).load_state == "masked"
    refused(lambda: world.manager.start(name))
    (world.unit_dir / name).unlink()
    world.manager.reload()


def what_is_not_there_is_not_started(world: World) -> None:
    refused(lambda: world.manager.start("contract-nobody.service"))


def a_wait_ends_in_time(world: World) -> None:
    began = time.monotonic()
    world.manager.pump(0.05)
    assert time.monotonic() - began < 5


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except HostError as error:
        assert error.exit_code is ExitCode.WRITE_FAILED, error.exit_code
    else:
        raise AssertionError("it was not refused")


CASES = (
    an_unknown_unit_is_not_found,
    a_started_unit_is_active_with_an_invocation,
    a_failed_unit_is_failed_until_it_is_reset,
    enabling_twice_changes_something_once,
    a_changed_file_wants_a_reload,
    a_masked_unit_is_not_started,
    what_is_not_there_is_not_started,
    a_wait_ends_in_time,
)


def main() -> int:
    from pd_units.adapters.dbus import SystemdManager
    from pd_units.adapters.patient import PatientManager

    for manager in (SystemdManager(), PatientManager(SystemdManager())):
        for case in CASES:
            case(World(manager, Path("/etc/systemd/system")))
            for path in Path("/etc/systemd/system").glob("contract-*"):
                path.unlink()
            manager.reload()
            print(f"{type(manager).__name__}: {case.__name__}: holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
