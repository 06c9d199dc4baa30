"""Every golden case: its own assertions, then the parsed units, then the text, then systemd's opinion."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from golden_cases import (
    EXPECTED,
    Case,
    quoting_deployment,
    quoting_values,
    quoting_variable,
    read_cases,
    read_topology_file,
)

from pd_units.errors import DeploymentError
from pd_units.model import parse_deployment
from pd_units.naming import stem
from pd_units.plan import HostFacts, make_plan
from pd_units.render import render_units
from pd_units.rendered import RenderedUnit, shipped_units
from pd_units.resources import preset_names, read_preset
from pd_units.topology import UNKNOWN
from pd_units.unitfile import UnitFile, parse_command, parse_unit

CASES = read_cases()
GOOD = [case for case in CASES if not case.exit_code]


def ids(case: Case) -> str:
    return case.name


def test_there_are_cases() -> None:
    assert len(GOOD) >= 10
    assert len(CASES) > len(GOOD)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_says_what_it_should(case: Case) -> None:
    if case.exit_code:
        with pytest.raises(DeploymentError) as caught:
            case.plan()
        assert caught.value.exit_code == case.exit_code
        found = [str(fault) for fault in caught.value.faults]
        assert case.faults, "a refused case names its faults"
    else:
        plan = case.plan()
        found = []
        warnings = [str(warning) for warning in plan.warnings]
        for wanted in case.warnings:
            assert any(warning.startswith(wanted) for warning in warnings), (wanted, warnings)
        assert len(warnings) == len(case.warnings), warnings
    for wanted in case.faults:
        assert any(fault.startswith(wanted) for fault in found), (wanted, found)
    assert len(found) == len(case.faults), found


@pytest.mark.parametrize("case", GOOD, ids=ids)
def test_assertions_hold(case: Case) -> None:
    units = {
        stem(unit.name).removeprefix(f"{case.deployment.name}-"): parse_unit(unit.text)
        for unit in case.render()
    }
    assert case.assertions, "a case asserts something"
    for word, rest in case.assertions:
        check(word, rest, units)


def check(word: str, rest: str, units: dict[str, UnitFile]) -> None:
    left, _, wanted = rest.partition(" = ")
    name, *what = left.split()
    unit = units[name]
    match word:
        case "assert":
            section, key = what
            assert unit.last(section, key) == wanted, rest
        case "assert-not":
            section, key = what
            assert unit.values(section, key) == (), rest
        case "assert-env":
            assert unit.environment.get(what[0]) == wanted, rest
        case "assert-no-env":
            assert what[0] not in unit.environment, rest
        case "assert-arg" | "assert-no-arg":
            (command,) = parse_command(unit.last("Service", "ExecStart") or "")
            starts = [index for index, each in enumerate(command.argv) if each == what[0]]
            if word == "assert-no-arg":
                assert not starts, rest
                return
            assert len(starts) == 1, (rest, command.argv)
            tail = command.argv[starts[0] + 1 :]
            stop = next((index for index, each in enumerate(tail) if each.startswith("--")), len(tail))
            assert " ".join(tail[:stop]) == wanted, rest


@pytest.mark.parametrize("case", GOOD, ids=ids)
def test_matches_the_expected_units(case: Case) -> None:
    rendered = {unit.name: unit.text for unit in case.render()}
    if os.environ.get("PD_UNITS_UPDATE_GOLDEN"):
        shutil.rmtree(EXPECTED / case.name, ignore_errors=True)
        (EXPECTED / case.name).mkdir(parents=True)
        for name, text in rendered.items():
            (EXPECTED / case.name / name).write_text(text, encoding="utf-8")
    expected = case.expected()
    assert rendered.keys() == expected.keys()
    for name, text in expected.items():
        wanted, got = parse_unit(text), parse_unit(rendered[name])
        assert [(each.section, each.key, each.value) for each in got.entries] == [
            (each.section, each.key, each.value) for each in wanted.entries
        ]
        assert rendered[name] == text


@pytest.mark.parametrize("case", GOOD, ids=ids)
def test_is_reproducible(case: Case) -> None:
    assert case.render() == case.render()
    for unit in case.render():
        assert case.deployment.name in unit.text.splitlines()[0]
        assert unit.text.endswith("\n") and not unit.text.endswith("\n\n")
        assert "\n\n\n" not in unit.text
        assert all(line == line.rstrip() for line in unit.text.splitlines()), "no blanks at line ends"


def verify(units: tuple[RenderedUnit, ...], folder) -> None:
    """systemd-analyze verify, which must have nothing to say. PD_UNITS_SYSTEMD_ANALYZE may name another."""
    tool = shutil.which(os.environ.get("PD_UNITS_SYSTEMD_ANALYZE", "systemd-analyze"))
    if tool is None:
        pytest.skip("no systemd-analyze on this machine")
    for unit in units:
        (folder / unit.name).write_text(unit.text, encoding="utf-8")
    names = [unit.name for unit in units if "@." not in unit.name]
    done = subprocess.run(
        [tool, "verify", "--recursive-errors=no", "--man=no", *(str(folder / name) for name in names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def systemd_version() -> int:
    """Version of the systemd-analyze at hand, 0 without one."""
    tool = shutil.which(os.environ.get("PD_UNITS_SYSTEMD_ANALYZE", "systemd-analyze"))
    if tool is None:
        return 0
    text = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    return int(text.split()[1])


# Those for a newer systemd are verified on a box that boots it (tests/booted/test_unit_text.py).
@pytest.mark.parametrize("case", [c for c in GOOD if c.host.systemd_version <= systemd_version()], ids=ids)
def test_systemd_accepts_it(case: Case, tmp_path) -> None:
    verify((*case.render(), *shipped_units()), tmp_path)


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("host", ["two-nodes", None])
def test_presets_render_and_verify(preset: str, host: str | None, tmp_path) -> None:
    text = read_preset(preset)
    for program in ("/opt/sglang/bin/python", "/opt/router/bin/python"):
        text = text.replace(program, "/usr/bin/python3")
    topology = read_topology_file(host) if host else UNKNOWN
    plan = make_plan(
        parse_deployment(text, source=preset),
        HostFacts(topology=topology, pd_units_python="/usr/bin/python3"),
    )
    verify((*render_units(plan), *shipped_units()), tmp_path)


def test_quoting_values_survive_a_unit_file(tmp_path) -> None:
    deployment = parse_deployment(quoting_deployment(), source="quoting")
    plan = make_plan(deployment, HostFacts(topology=UNKNOWN, pd_units_python="/usr/bin/python3"))
    (unit,) = render_units(plan)
    verify((unit, *shipped_units()), tmp_path)
    parsed = parse_unit(unit.text)
    (command,) = parse_command(parsed.last("Service", "ExecStart") or "")
    assert command.argv == plan.units[0].argv
    for name, value in quoting_values().items():
        assert parsed.environment[quoting_variable(name)] == value
        joined = f"--q-{name}={value}"
        assert joined in command.argv or command.argv[command.argv.index(f"--q-{name}") + 1] == value
