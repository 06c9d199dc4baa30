"""Every start-up log with a known verdict: whole, with its exit status, line by line, in every wrapping."""

from __future__ import annotations

import json
import re

import pytest
from log_cases import LogCase, load_cases

from pd_units.diagnosis import Cause, Classifier, Diagnosis, ExitStatus, Verdict, load_rules

RULES = load_rules(extra_dirs=())
CASES = load_cases()
READY_LINE = "fired up and ready to roll"


def classify(lines: list[str] | tuple[str, ...]) -> Classifier:
    classifier = Classifier(RULES)
    for line in lines:
        classifier.feed(line)
    return classifier


def said(diagnosis: Diagnosis) -> tuple[str, str]:
    return str(diagnosis.verdict), str(diagnosis.cause)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request) -> LogCase:
    return request.param


def test_there_are_cases_of_every_verdict():
    assert len(CASES) >= 77
    assert {case.verdict for case in CASES} == {"ready", "failed", "starting"}


def test_whole(case):
    assert said(classify(case.lines).diagnose()) == (case.verdict, case.cause)


def test_with_the_exit_status_as_a_witness(case):
    status = ExitStatus.parse(case.exit_status or "")
    assert said(classify(case.lines).diagnose(status)) == (case.verdict, case.cause)


def test_evidence_names_lines_that_hold_it(case):
    diagnosis = classify(case.lines).diagnose()
    if case.verdict == "failed":
        assert diagnosis.evidence and diagnosis.advice
    for evidence in diagnosis.evidence:
        assert evidence.line is not None
        assert evidence.text[:40].strip() in case.lines[evidence.line - 1]


def test_fast_path_says_the_same(case):
    slow, fast = classify(case.lines), Classifier(RULES)
    fast.feed_many(case.lines)
    assert fast.diagnose() == slow.diagnose()
    assert (fast.progress_ticks, fast.phase) == (slow.progress_ticks, slow.phase)


def test_never_wrong_at_any_prefix(case):
    """Undecided is allowed, a wrong word never: the watcher acts on every line as it comes."""
    classifier = Classifier(RULES)
    ready_seen = False
    for number, line in enumerate(case.lines):
        if "server_args" in line:
            ready_seen = False
        ready_seen = ready_seen or READY_LINE in line
        classifier.feed(line)
        diagnosis = classifier.diagnose()
        if diagnosis.verdict is Verdict.READY and case.role != "router":
            assert ready_seen, f"ready at line {number + 1}"
        if number < case.newest_life:
            continue
        assert diagnosis.verdict in (case.verdict, Verdict.STARTING, Verdict.UNKNOWN), f"line {number + 1}"
        assert diagnosis.cause in (case.cause, Cause.NONE, Cause.UNKNOWN), f"line {number + 1}"
        if case.verdict != "failed" and case.cause == "none":
            assert classifier.decisive is None and not classifier.symptom, f"line {number + 1}"


def test_progress_only_grows(case):
    classifier = Classifier(RULES, cut_lives=False)
    ticks = 0
    for line in case.lines:
        classifier.feed(line)
        assert classifier.progress_ticks >= ticks
        assert classifier.allowed_silence_s >= 60
        ticks = classifier.progress_ticks


WRAPPINGS = {
    "syslog": lambda line: "Jan 02 03:04:05 box python3[4242]: " + line,
    "short-iso": lambda line: "2026-01-02T03:04:05+0000 box python3[4242]: " + line,
    "docker": lambda line: "2026-01-02T03:04:05.123456789Z " + line,
    "docker-json": lambda line: json.dumps({"log": line + "\n", "stream": "stderr"}),
    "compose": lambda line: "engine-prefill-1  | " + line,
    "cri": lambda line: "2026-01-02T03:04:05.123456789Z stderr F " + line,
    "ray": lambda line: "\x1b[36m(Engine pid=1234, ip=192.0.2.1)\x1b[0m " + line,
    "torchrun": lambda line: "[rank0]: " + line,
    "logger": lambda line: "2026-01-02 03:04:05,678 - engine.launcher - INFO - " + line,
    "recorder": lambda line: "   12.54 " + line,
    "dos": lambda line: line + "\r",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrapped(wrapping):
    """Prefixes of collectors change nothing."""
    wrong = [
        case.name
        for case in CASES
        if said(classify([WRAPPINGS[wrapping](line) for line in case.lines]).diagnose())
        != (case.verdict, case.cause)
    ]
    assert wrong == []


QUOTED = (
    '    raise RuntimeError(f"NCCL error: {error_str}")',
    "    return func(*args, **kwargs)",
    '    raise ValueError("CUDA out of memory. Please try to increase --mem-fraction-static")',
    '    assert False, "Segmentation fault"',
    '    self._say("Received sigquit from a child process")',
)


def quote_source(lines: tuple[str, ...], *, indented: bool) -> list[str]:
    """`lines` with the source that Python quotes below each frame, as real logs have it."""
    result: list[str] = []
    for number, line in enumerate(lines):
        result.append(line)
        frame = re.match(r'^(.*?)  File "[^"]+", line \d+, in ', line)
        if frame:
            quoted = QUOTED[number % len(QUOTED)]
            result.append(frame[1] + (quoted if indented else quoted.strip()))
            result.append(frame[1] + "           ^^^^^^^^^^^^^^")
    return result


@pytest.mark.parametrize("indented", [True, False], ids=["indented", "indentation lost"])
def test_source_quoted_in_tracebacks_is_no_evidence(case, indented):
    lines = quote_source(case.lines, indented=indented)
    assert said(classify(lines).diagnose()) == (case.verdict, case.cause)
