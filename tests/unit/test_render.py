"""What a template may not do, and what is rendered for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pd_units.errors import TemplateError
from pd_units.model import parse_deployment
from pd_units.plan import HostFacts, Plan, make_plan
from pd_units.render import render_units
from pd_units.rendered import shipped_units
from pd_units.resources import TEMPLATE_NAMES, read_templates
from pd_units.topology import UNKNOWN
from pd_units.unitfile import parse_unit

TEXT = """
deployment.name = "x"
engine = { python = "/usr/bin/python3", model = "/m" }
standalone = [{ gpus = [0], port = 1 }]
"""


@pytest.fixture
def plan() -> Plan:
    host = HostFacts(topology=UNKNOWN, pd_units_python="/usr/bin/python3")
    return make_plan(parse_deployment(TEXT, source="x"), host)


def render(plan: Plan, text: str) -> str:
    (unit,) = render_units(plan, templates={"standalone.service.j2": text})
    return unit.text


def test_given_templates_are_used(plan: Plan) -> None:
    assert render(plan, "{{ unit.unit }}\n") == "x-standalone.service\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{{ unit.nonsense }}", "nonsense"),
        ("{{ nonsense }}", "nonsense"),
        ("{% if unit.nonsense %}{% endif %}", "nonsense"),
        ("a\n{{ 'b\\nc' }}", "newline"),
        ("{{ 'b\\rc' }}", "newline"),
        ("{{ none }}", "is no text"),
        ("{{ true }}", "is no text"),
        ("{% for %}", "Expected"),
        ("{{ 'a' | nonsense }}", "nonsense"),
        ("{{ ' a' | value }}", "blanks"),
        ("{% include 'absent' %}", "absent"),
    ],
)
def test_bad_templates_are_refused(plan: Plan, text: str, what: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(plan, text)
    assert caught.value.exit_code == 20
    assert what in " ".join([caught.value.brief, *map(str, caught.value.faults)])


def test_a_fault_names_the_line(plan: Plan) -> None:
    with pytest.raises(TemplateError) as caught:
        render(plan, "a\nb\n{{ unit.nonsense }}\n")
    assert caught.value.faults[0].where == "standalone.service.j2:3"


def test_a_missing_template(plan: Plan) -> None:
    with pytest.raises(TemplateError, match=r"no template standalone\.service\.j2"):
        render_units(plan, templates={})


def test_no_value_of_the_plan_can_start_a_directive(plan: Plan) -> None:
    """Every text of the model is checked on its way in; this is the second wall."""
    (unit,) = plan.units
    for hostile in (
        replace(unit, description="a\nExecStartPre=/bin/evil"),
        replace(unit, environment=(("A", "b\nUser=root"),)),
        replace(unit, exec_start=(("/bin/x", "a\nb"),)),
        replace(unit, environment_files=("/a\n/b",)),
        replace(unit, requires_mounts_for=("/a\nb",)),
        replace(unit, user="a\nb"),
    ):
        with pytest.raises(TemplateError):
            render_units(replace(plan, units=(hostile,)))


def test_templates_decide_nothing() -> None:
    """Loops, and conditions on one flag: what differs is in the plan."""
    for name in TEMPLATE_NAMES:
        text = read_templates()[name]
        conditions = [part.split("%}")[0].strip() for part in text.split("{% if ")[1:]]
        assert all(condition.startswith("unit.") and " " not in condition for condition in conditions), name


def test_shipped_units_are_verbatim() -> None:
    target, unit_slice = shipped_units()
    assert (target.name, target.role) == ("pd-units@.target", None)
    parsed = parse_unit(target.text)
    assert parsed.last("Unit", "DefaultDependencies") == "no"
    assert parsed.last("Unit", "Conflicts") == parsed.last("Unit", "Before") == "shutdown.target"
    assert parsed.last("Install", "WantedBy") == "multi-user.target"
    assert unit_slice.name == "pd-units.slice"
    assert target.path == "/etc/systemd/system/pd-units@.target"


def test_start_limit_trips_for_the_slowest_loop(plan: Plan) -> None:
    (unit,) = plan.units
    assert unit.start_timeout_s is not None
    assert unit.start_limit_interval_s is not None
    slowest = unit.start_timeout_s + unit.stop_timeout_s + (unit.restart_max_s or unit.restart_s)
    assert unit.start_limit_interval_s > unit.start_limit_burst * slowest
