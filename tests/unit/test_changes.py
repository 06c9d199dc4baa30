"""Planning as data: a state of the host in, changes with reasons out; a second time, all KEEP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pd_units.changes import InstalledState, InstalledUnit, Kind, Ownership, plan_changes
from pd_units.differences import describe, main_changes, unified
from pd_units.masking import mask
from pd_units.ports import ActiveState, UnitStatus
from pd_units.rendered import RenderedUnit

UNIT = """[Unit]
Description=a
[Service]
ExecStart=/bin/engine --mem-fraction-static 0.70 --trust-remote-code
Environment=A=1
TimeoutStartSec=10
Restart=always
[Install]
WantedBy=x.target
"""


def rendered(name="a-prefill.service", text=UNIT):
    return RenderedUnit(name=name, text=text, role=None)


def status(name="a-prefill.service", **changes):
    values = {
        "unit": name,
        "load_state": "loaded",
        "active_state": ActiveState.ACTIVE,
        "sub_state": "running",
        "unit_file_state": "enabled",
        "invocation_id": "1" * 32,
    }
    return UnitStatus(**{**values, **changes})


def installed(name="a-prefill.service", text=UNIT, **changes):
    return InstalledUnit(name=name, text=text, ownership=Ownership.OURS, status=status(name, **changes))


def state(*units, **changes):
    target = installed("pd-units@a.target", None)
    values = {
        "units": {unit.name: unit for unit in units},
        "target": target,
        "shared": {},
        "obsolete": {},
        "retired": {},
    }
    return InstalledState(**{**values, **changes})


def kinds(changes):
    return [(change.kind, change.unit) for change in changes.changes]


def test_a_bare_host_gets_everything_in_order():
    absent = InstalledUnit(name="a-prefill.service", text=None, ownership=Ownership.ABSENT)
    target = InstalledUnit(name="pd-units@a.target", text=None, ownership=Ownership.ABSENT)
    changes = plan_changes([rendered()], [], state(absent, target=target), start=True)
    assert kinds(changes) == [
        (Kind.WRITE, "a-prefill.service"),
        (Kind.ENABLE, "a-prefill.service"),
        (Kind.ENABLE, "pd-units@a.target"),
        (Kind.RELOAD, "-"),
        (Kind.START, "a-prefill.service"),
        (Kind.START, "pd-units@a.target"),
    ]
    assert changes.changed


def test_what_is_as_declared_is_kept():
    changes = plan_changes([rendered()], [], state(installed()), start=True)
    assert kinds(changes) == [(Kind.KEEP, "a-prefill.service")]
    assert not changes.changed


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("0.70", "0.65", Kind.RESTART),
        ("A=1", "A=2", Kind.RESTART),
        ("TimeoutStartSec=10", "TimeoutStartSec=20", None),
        ("Restart=always", "Restart=on-failure", None),
        ("Description=a", "Description=b", None),
    ],
)
def test_only_what_the_main_process_received_restarts_it(old, new, kind):
    changes = plan_changes([rendered(text=UNIT.replace(old, new))], [], state(installed()), start=True)
    assert changes.units(Kind.WRITE) == ("a-prefill.service",)
    assert [c.kind for c in changes.of(Kind.START, Kind.RESTART)] == ([kind] if kind else [])


def test_the_reason_names_the_option_and_both_values():
    new = UNIT.replace("0.70", "0.65").replace(" --trust-remote-code", " --page-size 64")
    (change,) = plan_changes([rendered(text=new)], [], state(installed()), start=True).of(Kind.RESTART)
    assert "--mem-fraction-static 0.70 -> 0.65" in change.reason
    assert "--trust-remote-code removed" in change.reason
    assert "--page-size 64 added" in change.reason


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"active_state": ActiveState.INACTIVE, "sub_state": "dead"}, Kind.START),
        ({"active_state": ActiveState.FAILED, "sub_state": "failed"}, Kind.START),
        ({"active_state": ActiveState.ACTIVATING, "sub_state": "auto-restart"}, Kind.RESTART),
        ({"active_state": ActiveState.ACTIVATING, "sub_state": "start-post"}, None),
        ({"active_state": ActiveState.INACTIVE, "sub_state": "dead", "job_id": 7, "job_type": "start"}, None),
    ],
)
def test_what_does_not_run_is_started(changes, kind):
    planned = plan_changes([rendered()], [], state(installed(**changes)), start=True)
    assert [c.kind for c in planned.of(Kind.START, Kind.RESTART)] == ([kind] if kind else [])


def test_an_interrupted_install_restarts_what_still_runs_the_old_file():
    unit = replace(installed(), restart_pending=True)
    (change,) = plan_changes([rendered()], [], state(unit), start=True).of(Kind.RESTART)
    assert "interrupted" in change.reason


def test_no_start_starts_nothing():
    unit = installed(active_state=ActiveState.INACTIVE, sub_state="dead")
    assert not plan_changes([rendered()], [], state(unit), start=False).changed


def test_no_start_stops_nothing_and_the_next_boot_has_the_new_set():
    gone, old = installed("a-prefill-1.service"), status("old.service")
    before = state(installed(), obsolete={gone.name: gone}, retired={"old.service": old})
    planned = plan_changes([rendered()], [], before, start=False)
    assert kinds(planned) == [
        (Kind.DISABLE, "old.service"),
        (Kind.DISABLE, gone.name),
        (Kind.RELOAD, "-"),
        (Kind.KEEP, "a-prefill.service"),
    ]
    assert {"until the next install" in c.reason for c in planned.of(Kind.DISABLE)} == {True}


def test_no_start_again_changes_nothing_and_says_what_goes_on():
    gone = installed("a-prefill-1.service", unit_file_state="disabled")
    old = status("old.service", unit_file_state="disabled")
    before = state(installed(), obsolete={gone.name: gone}, retired={"old.service": old})
    planned = plan_changes([rendered()], [], before, start=False)
    assert not planned.changed
    assert planned.units(Kind.KEEP) == ("a-prefill.service", gone.name, "old.service")


def test_no_start_removes_and_retires_what_does_not_run():
    down = {"active_state": ActiveState.INACTIVE, "sub_state": "dead"}
    gone, old = installed("a-prefill-1.service", **down), status("old.service", **down)
    before = state(installed(), obsolete={gone.name: gone}, retired={"old.service": old})
    planned = plan_changes([rendered()], [], before, start=False)
    assert kinds(planned)[:3] == [
        (Kind.RETIRE, "old.service"),
        (Kind.DISABLE, gone.name),
        (Kind.REMOVE, gone.name),
    ]
    assert not planned.of(Kind.STOP)


def test_a_disabled_unit_is_enabled_again():
    changes = plan_changes([rendered()], [], state(installed(unit_file_state="disabled")), start=True)
    assert kinds(changes) == [(Kind.ENABLE, "a-prefill.service"), (Kind.RELOAD, "-")]


def test_an_instance_that_is_no_longer_declared_goes():
    gone = installed("a-prefill-1.service")
    changes = plan_changes([rendered()], [], state(installed(), obsolete={gone.name: gone}), start=True)
    assert [kind for kind, unit in kinds(changes) if unit == gone.name] == [
        Kind.STOP,
        Kind.DISABLE,
        Kind.REMOVE,
    ]
    assert Kind.RELOAD in [kind for kind, _ in kinds(changes)]


@pytest.mark.parametrize(
    ("changes", "retires"),
    [
        ({}, True),
        ({"active_state": ActiveState.INACTIVE}, True),
        ({"active_state": ActiveState.INACTIVE, "unit_file_state": "disabled"}, False),
        ({"active_state": ActiveState.INACTIVE, "unit_file_state": "", "load_state": "not-found"}, False),
    ],
)
def test_retired_units_are_stopped_and_disabled_once(changes, retires):
    old = {"old.service": status("old.service", **changes)}
    planned = plan_changes([rendered()], [], state(installed(), retired=old), start=True)
    assert bool(planned.of(Kind.RETIRE)) is retires


def test_files_changed_behind_systemds_back_are_loaded():
    changes = plan_changes([rendered()], [], state(installed(need_daemon_reload=True)), start=True)
    assert changes.of(Kind.RELOAD)


def test_comments_alone_restart_nothing_and_say_so():
    new = "# new words\n" + UNIT
    changes = plan_changes([rendered(text=new)], [], state(installed()), start=True)
    assert [c.reason for c in changes.of(Kind.WRITE)] == ["comments changed"]
    assert not changes.of(Kind.RESTART)


def test_secrets_are_masked_everywhere():
    secret = "hunter2"
    old = UNIT.replace("A=1", f"HF_TOKEN={secret}").replace("0.70", f"0.70 --api-key {secret}")
    new = old.replace(secret, secret + "3")
    assert "hunter" not in unified("a", old, new)
    assert "hunter" not in describe(old, new)
    assert "hunter" not in main_changes(old, new)
    assert mask("--api-key=x --port 1") == "--api-key=*** --port 1"
