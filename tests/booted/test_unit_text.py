"""systemd as the oracle of what is rendered: its verdict on every golden unit, what its manager reads, and
what a process started from a unit receives."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rig.box import Box, until
from rig.images import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from golden_cases import Case, quoting_deployment, read_cases

from pd_units.model import parse_deployment
from pd_units.model_fields import text_problem
from pd_units.plan import HostFacts, UnitPlan, make_plan
from pd_units.quoting import quote_argument, quote_word
from pd_units.render import render_units
from pd_units.rendered import shipped_units
from pd_units.topology import UNKNOWN

UNITS = "/etc/systemd/system"
DUMP = "/usr/local/bin/pdu-dump"
RECORD = "/run/pdu-dump.json"
#: Stands in for the engine's interpreter: writes down what it received, and stays.
DUMP_PROGRAM = f"""#!/usr/bin/python3 -I
import json, os, signal, sys
received = {{"argv": sys.argv, "environment": dict(os.environ)}}
with open("{RECORD}.new", "w", encoding="utf-8") as file:
    json.dump(received, file)
os.rename("{RECORD}.new", "{RECORD}")
signal.pause()
"""
NO_HELPERS = "[Service]\nExecStartPost=\nExecStopPost=\n"


@pytest.fixture(scope="module")
def shared_box(image: Image):
    """One box for this module: its tests only load and start units of their own."""
    with Box(image) as booted:
        booted.write(DUMP, DUMP_PROGRAM, mode=0o755)
        yield booted


def unit_property(box: Box, unit: str, name: str):
    """A property of org.freedesktop.systemd1.Service as the manager holds it."""
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    (path,) = (
        box.run(["busctl", "--json=short", "call", *manager, "LoadUnit", "s", unit]).check().json()["data"]
    )
    interface = "org.freedesktop.systemd1.Service"
    argv = ["busctl", "--json=short", "get-property", "org.freedesktop.systemd1", path, interface, name]
    return box.run(argv).check().json()["data"]


def as_manager_sees(box: Box, plan: UnitPlan) -> None:
    wanted = [f"{name}={value}" for name, value in plan.environment]
    assert unit_property(box, plan.unit, "Environment") == wanted
    ((path, argv, *_),) = unit_property(box, plan.unit, "ExecStart")
    assert path == plan.argv[0]
    assert [each.replace("$$", "$") for each in argv] == list(plan.argv)  # D-Bus shows it unexpanded


@pytest.mark.parametrize(
    "case", [case for case in read_cases() if not case.exit_code], ids=lambda case: case.name
)
def test_golden_units_are_read_as_meant(shared_box: Box, image: Image, case: Case) -> None:
    version = min(case.host.systemd_version, image.suite.systemd)
    case = replace(case, versions={**case.versions, "systemd": str(version)})
    plan, units = case.plan(), (*case.render(), *shipped_units())
    for unit in units:
        shared_box.write(f"{UNITS}/{unit.name}", unit.text)
    shared_box.run(["systemctl", "daemon-reload"]).check()
    paths = [f"{UNITS}/{unit.name}" for unit in units if "@." not in unit.name]
    done = shared_box.run(["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", *paths])
    assert (done.rc, done.err) == (0, "")
    for unit in plan.units:
        as_manager_sees(shared_box, unit)
    shared_box.run(["rm", *(f"{UNITS}/{unit.name}" for unit in units)]).check()


def received(box: Box, unit: str) -> dict:
    """What the dump program of a freshly started unit received."""
    box.run(["rm", "-f", RECORD]).check()
    box.run(["systemctl", "daemon-reload"]).check()
    box.run(["systemctl", "restart", unit]).check()
    return json.loads(until("the record", lambda: box.exists(RECORD) and box.read(RECORD)))


def test_a_process_receives_every_value(shared_box: Box) -> None:
    deployment = parse_deployment(quoting_deployment(python=DUMP), source="quoting")
    plan = make_plan(deployment, HostFacts(topology=UNKNOWN, pd_units_python="/usr/bin/python3"))
    (unit,) = render_units(plan)
    shared_box.write(f"{UNITS}/{unit.name}", unit.text)
    shared_box.write(f"{UNITS}/{unit.name}.d/no-helpers.conf", NO_HELPERS)
    got = received(shared_box, unit.name)
    assert got["argv"] == list(plan.units[0].argv)
    for name, value in plan.units[0].environment:
        assert got["environment"][name] == value
    as_manager_sees(shared_box, plan.units[0])
    shared_box.run(["systemctl", "stop", unit.name]).check()


def test_only_the_engine_gets_what_the_loader_reads(shared_box: Box) -> None:
    variables = {"LD_LIBRARY_PATH": "/opt/a b/$lib:50%", "NCCL_DEBUG": "WARN"}
    deployment = parse_deployment(quoting_deployment(python=DUMP), source="quoting")
    engine = replace(deployment.engine, environment=variables, environment_files=("/etc/loader.env",))
    deployment = replace(deployment, engine=engine)
    plan = make_plan(deployment, HostFacts(topology=UNKNOWN, pd_units_python="/usr/bin/python3"))
    (unit,) = render_units(plan)
    shared_box.write("/etc/loader.env", "LD_PRELOAD=/home/operator/evil.so\nNCCL_P2P_LEVEL=PHB\n")
    shared_box.write(f"{UNITS}/{unit.name}", unit.text)
    helper = f"{NO_HELPERS}ExecStartPost=+/bin/sh -c 'env >/run/helper-environment'\n"
    shared_box.write(f"{UNITS}/{unit.name}.d/no-helpers.conf", helper)
    got = received(shared_box, unit.name)["environment"]
    for name, value in {**variables, "NCCL_P2P_LEVEL": "PHB"}.items():
        assert got[name] == value
    seen = shared_box.read("/run/helper-environment").splitlines()
    assert "NCCL_DEBUG=WARN" in seen
    assert not [line for line in seen if line.startswith("LD_")]
    shared_box.run(["systemctl", "stop", unit.name]).check()


VALUES = st.text(
    alphabet=st.one_of(st.sampled_from("%$\"'\\;#{}[]()=~@-+:!| \t*?`&<>"), st.characters(codec="utf-8")),
    max_size=40,
).filter(lambda value: text_problem(value) is None)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(values=st.lists(VALUES, min_size=20, max_size=60))
def test_any_value_arrives(shared_box: Box, values: list[str]) -> None:
    arguments = " ".join(map(quote_argument, values))
    lines = [f"Environment={quote_word(f'V{number}={value}')}" for number, value in enumerate(values)]
    text = "\n".join(
        [
            "[Unit]",
            "StartLimitIntervalSec=0",
            "[Service]",
            "Type=exec",
            *lines,
            f"ExecStart={DUMP} {arguments}",
            "",
        ]
    )
    shared_box.write(f"{UNITS}/any-value.service", text)
    got = received(shared_box, "any-value.service")
    assert got["argv"][1:] == values
    assert [got["environment"][f"V{number}"] for number in range(len(values))] == values
