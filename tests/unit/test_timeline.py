"""The last start beside the earlier ones: rows, marks, words, and a drawing that is XML."""

from __future__ import annotations

from xml.etree import ElementTree

from pd_units.naming import Role
from pd_units.report import table
from pd_units.starts import PhaseTime, Start
from pd_units.timeline import offsets, timeline_text, unit_timeline
from pd_units.timeline_svg import draw_svg

UNIT = "a-decode.service"
PHASES = (("loading", "loading weights <x>", 1.0), ("capturing", "capturing CUDA graphs", 31.0))


def a_start(number: int, *, phases=PHASES, **changes) -> Start:
    values = {"unit": UNIT, "invocation_id": str(number), "began": 1000.0 * number, "outcome": "ready"}
    values |= {"seconds": 40.0, "phases": tuple(PhaseTime(*phase) for phase in phases)}
    return Start(**{**values, **changes})


def test_each_phase_beside_its_usual_time():
    slow = (("loading", "loading weights <x>", 1.0), ("capturing", "capturing CUDA graphs", 81.0))
    history = [a_start(1), a_start(2, outcome="failed", cause="nccl"), a_start(3, phases=slow, seconds=90.0)]
    unit = unit_timeline(UNIT, Role.DECODE, history, None)
    assert [(row.name, row.at_s, row.seconds, row.typical_s, row.is_slow) for row in unit.rows] == [
        ("loading", 1.0, 80.0, 30.0, True),
        ("capturing", 81.0, 9.0, 9.0, False),
    ]
    assert (unit.typical_s, unit.compared_with) == (40.0, 1)
    text = timeline_text("a", [unit], table=table)
    assert (
        "a-decode: ready after 90.0 s, usually 40.0 s (1 earlier start); began 1970-01-01T00:50:00Z" in text
    )
    assert "loading weights <x>    1.0 s   80.0 s  30.0 s   slower than usual" in text


def test_a_phase_that_came_twice_is_one_row():
    twice = (*PHASES, ("loading", "loading weights <x>", 35.0))
    (loading, capturing) = unit_timeline(UNIT, Role.DECODE, [a_start(1, phases=twice)], None).rows
    assert (loading.seconds, capturing.seconds, loading.typical_s) == (35.0, 4.0, None)


def test_a_start_under_way_is_the_last_one():
    under_way = a_start(9, outcome="starting", seconds=35.0)
    unit = unit_timeline(UNIT, Role.DECODE, [a_start(1)], under_way)
    assert (unit.last, unit.typical_s) == (under_way, 40.0)
    assert "a-decode: starting for 35.0 s, usually 40.0 s" in timeline_text("a", [unit], table=table)


def test_nothing_is_known_before_the_first_start():
    unit = unit_timeline(UNIT, Role.DECODE, [], None)
    assert "no start is known yet" in timeline_text("a", [unit], table=table)
    assert (unit.to_json()["outcome"], unit.to_json()["phases"]) == (None, [])
    ElementTree.fromstring(draw_svg("a", [unit]))


def test_a_failed_start_has_its_cause():
    unit = unit_timeline(UNIT, Role.DECODE, [a_start(1, outcome="failed", cause="nccl")], None)
    assert "a-decode: failed (nccl) after 40.0 s" in timeline_text("a", [unit], table=table)


def test_starts_of_one_deployment_share_an_axis_and_strangers_do_not():
    one, other = (
        unit_timeline(UNIT, Role.DECODE, [a_start(1, began=began)], None) for began in (100.0, 130.0)
    )
    assert offsets([one, other]) == [0.0, 30.0]
    stranger = unit_timeline(UNIT, Role.DECODE, [a_start(1, began=9999.0)], None)
    assert offsets([one, stranger]) == [0.0, 0.0]


def test_the_drawing_is_xml_with_a_title_for_each_span_and_always_the_same():
    failed = a_start(3, outcome="failed", cause="nccl")
    units = [unit_timeline(UNIT, Role.DECODE, [a_start(1), last], None) for last in (a_start(2), failed)]
    drawing = draw_svg("a & b", units)
    assert drawing == draw_svg("a & b", units)
    root = ElementTree.fromstring(drawing)
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "loading weights <x>: 30.0 s, from 1.0 s on" in titles
    assert "capturing CUDA graphs: usually 9.0 s" in titles
    assert len(root.findall(".//*[@class='end']")) == 1
    widths = [float(each.get("width")) for each in root.findall("{http://www.w3.org/2000/svg}rect")[1:]]
    assert max(widths) <= 920.1
