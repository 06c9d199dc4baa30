"""Bad input, interleavings, floods: a verdict is never a guess, and nothing makes the classifier fall over."""

# ruff: noqa: E501  (lines of logs are as long as they are)
from __future__ import annotations

import re
import resource
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_cases import load_cases
from log_cases import settings as engine_settings

from pd_units.diagnosis import Cause, Classifier, Diagnosis, ExitStatus, Verdict, load_rules

RULES = load_rules(extra_dirs=())
CASES = {case.name: case for case in load_cases()}
READY = "[2026-01-02 03:04:05] The server is fired up and ready to roll!"
LAUNCH = f"[2026-01-02 03:04:05] server_args={engine_settings('call', '/m/x')}"
LOADING = "[2026-01-02 03:04:05 TP0] Load weight begin. avail mem=78.33 GB"
SIGQUIT = "[2026-01-02 03:04:05] Received sigquit from a child process. It usually means the child failed."

NOISE = (
    "Ignore import error when loading sglang.srt.models.x: No module named 'vllm'",
    "Using default MoE kernel config. Performance might be sub-optimal! Config file not found at /x",
    'INFO:     192.0.2.1:5 - "GET /health HTTP/1.1" 503 Service Unavailable',
    "box:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    "W0102 03:04:05.000000 140 torch/distributed/run.py:766] Setting OMP_NUM_THREADS",
    "Registering 2231 cuda graph addresses",
    "",
    "pd-units: engine: Segmentation fault, CUDA out of memory, fired up and ready to roll!",
    "AUTOTUNE mm(8x2048, 2048x16)",
    "<html>\u2028\u0000\ufffd\x1b[31m</html>",
)


def feed(lines) -> Classifier:
    classifier = Classifier(RULES)
    for line in lines:
        classifier.feed(line)
    return classifier


def said(diagnosis: Diagnosis) -> tuple[str, str]:
    return str(diagnosis.verdict), str(diagnosis.cause)


# ----------------------------------------------------------------------------------------- interleavings
@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_noise_between_the_lines_changes_nothing(data):
    case = CASES[data.draw(st.sampled_from(sorted(CASES)))]
    places = data.draw(st.lists(st.integers(0, len(case.lines)), max_size=12))
    lines = list(case.lines)
    for place in sorted(places, reverse=True):
        lines.insert(place, data.draw(st.sampled_from(NOISE)))
    assert said(feed(lines).diagnose()) == (case.verdict, case.cause)


def launch_of(case) -> int | None:
    """The line with which the engine's first life begins, None in a log that does not show it."""
    return next((n for n, line in enumerate(case.lines) if re.search("server_args(=|: {)", line)), None)


@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_earlier_life_changes_nothing(data):
    """Only the newest life counts, whatever the older ones were."""
    names = sorted(name for name, case in CASES.items() if launch_of(case) is not None)
    old = CASES[data.draw(st.sampled_from(sorted(CASES)))]
    new = CASES[data.draw(st.sampled_from(names))]
    cut = data.draw(st.integers(0, len(old.lines)))
    start = launch_of(new)
    lines = [*old.lines[:cut], "Jan 02 03:04:05 box systemd[1]: Started engine.service.", *new.lines[start:]]
    assert said(feed(lines).diagnose()) == (new.verdict, new.cause)


@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_prefix_is_ready_without_its_ready_line(data):
    case = CASES[data.draw(st.sampled_from(sorted(CASES)))]
    lines = [line for line in case.lines if "ready to roll" not in line]
    cut = data.draw(st.integers(0, len(lines)))
    if case.role != "router":
        assert feed(lines[:cut]).diagnose().verdict is not Verdict.READY


# --------------------------------------------------------------------------------------------- bad input
OUR_WORDS = ("erver_args", "erverArgs", "sglang", "SGLang")
STRANGE = st.text(max_size=300).filter(lambda text: not any(word in text for word in OUR_WORDS))


@given(st.lists(STRANGE, max_size=20), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_text_is_unknown(lines, many):
    classifier = Classifier(RULES)
    if many:
        classifier.feed_many(lines)
    else:
        for line in lines:
            classifier.feed(line)
    diagnosis = classifier.diagnose()
    assert diagnosis.verdict is Verdict.UNKNOWN
    assert classifier.decisive is None or diagnosis.cause is Cause.UNKNOWN


@given(st.lists(st.binary(max_size=200), max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_survived(chunks):
    lines = [chunk.decode("utf-8", errors="replace") for chunk in chunks]
    assert feed([LAUNCH, *lines]).diagnose().verdict in (Verdict.STARTING, Verdict.FAILED)


def test_empty_log_is_unknown():
    assert said(feed([]).diagnose()) == ("unknown", "unknown")
    assert said(feed(["", "", ""]).diagnose()) == ("unknown", "unknown")


OTHERS = {
    "another engine": [
        "INFO 07-21 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: model='/m'",
        "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.00s/it]",
        "ERROR 07-21 10:00:01 [core.py:396] EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/v/vllm/v1/engine/core.py", line 387, in run_engine_core',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "INFO:     Application startup complete.",
    ],
    "a web server": [
        "2026/01/02 10:00:00 [error] 7#7: *1 connect() failed (111: Connection refused) while connecting",
        "nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)",
    ],
    "a script": [
        "Traceback (most recent call last):", '  File "app.py", line 3, in <module>', "RuntimeError: boom", "Killed",
    ],
    "the kernel": ["Out of memory: Killed process 77 (chrome) total-vm:1kB", "segfault at 0 ip 0 sp 0 error 4"],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_log_of_another_program_is_unknown(name):
    assert said(feed(OTHERS[name]).diagnose()) == ("unknown", "unknown")


def test_a_role_says_that_the_text_is_the_engines():
    classifier = Classifier(RULES, role="prefill", cut_lives=False)
    classifier.feed("Killed")
    assert said(classifier.diagnose()) == ("failed", "killed-by-kernel")


@pytest.mark.parametrize(
    "line",
    ["x" * 2_000_000, "a=1, " * 400_000, "CUDA error: " * 150_000, "'x': " * 400_000, "| " * 1_000_000, "\r" * 2_000_000],
    ids=["letters", "settings", "errors", "pairs", "bars", "returns"],
)  # fmt: skip
def test_a_line_of_two_megabytes(line):
    began = time.process_time()
    classifier = feed([LAUNCH, line, READY])
    assert classifier.diagnose().verdict is Verdict.READY
    assert time.process_time() - began < 5


def test_text_at_the_end_of_a_huge_line_is_seen():
    bars = "\r".join(f"Capturing batches:  {n}%|█| {n}/100 [00:{n:02d}<00:09,  1.53it/s]" for n in range(60))
    classifier = feed([LAUNCH, LOADING, bars * 40 + READY])
    assert classifier.diagnose().verdict is Verdict.READY


def test_own_output_is_never_matched():
    lines = [f"pd-units: engine: {text}" for text in (SIGQUIT, READY, "CUDA out of memory", "Killed")]
    lines += [f"Jan 02 03:04:05 box pd-units[7]: {text}" for text in (SIGQUIT, READY)]
    assert said(feed([LAUNCH, *lines]).diagnose()) == ("starting", "none")


def test_settings_are_never_matched():
    echo = "Segmentation fault, Received sigquit from a child process, CUDA out of memory, ready to roll!"
    settings_line = engine_settings("dict", "/m/x", template=echo)
    assert said(feed([f"server_args={settings_line}"]).diagnose()) == ("starting", "none")
    cut = len(f"server_args={settings_line}") // 3
    pieces = [f"server_args={settings_line}"[:cut], f"server_args={settings_line}"[cut:]]
    assert said(feed(pieces).diagnose()) == ("starting", "none")


# ----------------------------------------------------------------------------------------- PID 1's words
def journal(*lines: str) -> list[str]:
    return [f"Jan 02 03:04:05 box {line}" for line in lines]


START = ("systemd[1]: Starting engine.service - SGLang...", f"python[7]: {LAUNCH}", f"python[7]: {LOADING}")


def test_oom_killer_is_named():
    lines = journal(
        *START,
        "systemd[1]: engine.service: A process of this unit has been killed by the OOM killer.",
        f"python[7]: {SIGQUIT}",
        "systemd[1]: engine.service: Main process exited, code=killed, status=9/KILL",
        "systemd[1]: engine.service: Failed with result 'oom-kill'.",
    )
    assert said(feed(lines).diagnose()) == ("failed", "killed-by-kernel")


def test_exit_status_of_the_main_process_counts():
    lines = journal(*START, "systemd[1]: engine.service: Main process exited, code=dumped, status=11/SEGV")
    assert said(feed(lines).diagnose()) == ("failed", "segfault")


def test_stop_while_loading_is_no_failure():
    lines = journal(
        *START,
        "systemd[1]: Stopping engine.service - SGLang...",
        "systemd[1]: engine.service: Main process exited, code=killed, status=15/TERM",
        "systemd[1]: engine.service: Failed with result 'signal'.",
        "systemd[1]: Stopped engine.service - SGLang.",
    )
    assert said(feed(lines).diagnose()) == ("starting", "none")


def test_started_after_readiness_is_the_same_life():
    """A unit that is active only when ready: PID 1 says "Started" at the end of its start."""
    lines = journal(*START, f"python[7]: {READY}", "systemd[1]: Started engine.service - SGLang.")
    classifier = feed(lines)
    assert (classifier.lives, said(classifier.diagnose())) == (1, ("ready", "none"))


def test_restart_begins_a_new_life():
    died = "systemd[1]: engine.service: Main process exited, code=killed, status=9/KILL"
    again = "systemd[1]: engine.service: Scheduled restart job, restart counter is at 1."
    classifier = feed(journal(*START, f"python[7]: {READY}", died, again))
    assert classifier.diagnose().was_ready
    for line in journal(*START):
        classifier.feed(line)
    assert (classifier.lives, said(classifier.diagnose())) == (2, ("starting", "none"))


def test_units_of_others_cut_nothing():
    failed = ["systemd[1]: engine.service: Main process exited, code=exited, status=2/INVALIDARGUMENT"]
    others = [
        "systemd[1]: Starting logrotate.service - Rotate log files...",
        "systemd[1]: Started cron.service.",
    ]
    lines = journal(*START, *others, *failed, *others)
    assert feed(lines).diagnose().verdict is Verdict.FAILED


def test_manager_lines_can_be_fed_without_a_prefix():
    classifier = Classifier(RULES, role="decode", cut_lives=False)
    classifier.feed(LAUNCH)
    classifier.feed("Stopping engine.service - SGLang...", manager=True)
    assert classifier.stop_requested
    classifier.feed("engine.service: Main process exited, code=killed, status=9/KILL")
    assert classifier.diagnose().verdict is Verdict.STARTING


# ------------------------------------------------------------------------------- the watcher's questions
def test_symptom_waits_decisive_does_not():
    classifier = feed([LAUNCH, LOADING, SIGQUIT])
    assert (classifier.symptom, classifier.decisive) == (True, None)
    classifier = feed([LAUNCH, "Fatal Python error: Segmentation fault"])
    assert classifier.decisive is Cause.SEGFAULT


def test_ready_then_dead_is_decisive_again():
    classifier = feed([LAUNCH, LOADING, READY])
    assert (classifier.ready_line, classifier.decisive, classifier.symptom) == (True, None, False)
    classifier.feed(
        "[2026-01-02 03:04:05] Subprocess scheduler_0 (pid=9) crashed with exit code -9. Triggering"
    )
    assert classifier.symptom and classifier.was_ready
    assert said(classifier.diagnose()) == ("ready", "child-died")


def test_ready_line_after_a_failed_bind_or_warmup_is_not_ready():
    for text in (
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 1): address already in use",
        "Disaggregation warmup failed (mode=decode), status codes: [500]",
    ):
        classifier = feed([LAUNCH, LOADING, f"[2026-01-02 03:04:05] {text}", READY])
        assert (classifier.ready_line, classifier.warmup_failed) == (False, True)
        assert classifier.diagnose().verdict is Verdict.FAILED


def test_clocks_are_told():
    classifier = feed([LAUNCH, LOADING])
    assert said(classifier.diagnose(stalled="no-progress")) == ("failed", "no-progress")
    assert said(classifier.diagnose(stalled="timeout")) == ("failed", "timeout")
    classifier.feed("torch.OutOfMemoryError: CUDA out of memory.")
    assert said(classifier.diagnose(stalled="no-progress")) == ("failed", "oom-weights")


def test_life_and_death_of_the_process_are_witnesses():
    lines = [LAUNCH, LOADING, "RuntimeError: boom"]
    assert feed(lines).diagnose(alive=True).verdict is Verdict.STARTING
    assert feed(lines).diagnose(alive=False).verdict is Verdict.FAILED
    assert feed([LAUNCH]).diagnose(alive=False).verdict is Verdict.FAILED


def test_retries_are_not_for_every_cause():
    argument = feed([LAUNCH, "sglang serve: error: unrecognized arguments: --x"]).diagnose()
    assert (argument.cause, argument.retryable) == (Cause.BAD_ARGUMENT, False)
    assert feed([LAUNCH, LOADING, "Killed"]).diagnose().retryable


@pytest.mark.parametrize(
    ("text", "code", "signal"),
    [
        ("2", 2, None), ("137", None, 9), ("-9", None, 9), ("SIGKILL", None, 9), ("KILL", None, 9), ("9/KILL", None, 9),
        ("killed, status=15/TERM", None, 15), ("0", 0, None), ("203/EXEC", 203, None), ("2/INVALIDARGUMENT", 2, None),
    ],
)  # fmt: skip
def test_exit_statuses_in_every_spelling(text, code, signal):
    assert ExitStatus.parse(text) == ExitStatus(code=code, signal=signal)


def test_no_exit_status():
    assert ExitStatus.parse("-") is None and ExitStatus.parse("") is None
    with pytest.raises(ValueError, match="not an exit status"):
        ExitStatus.parse("often")


# ------------------------------------------------------------------------------------------------- floods
def test_memory_is_flat_in_a_flood():
    classifier = Classifier(RULES)
    classifier.feed(LAUNCH)

    def flood(count: int):
        for n in range(count):
            yield f"[2026-01-02 03:04:05 TP{n % 8}] line {n:x} of many {'abcdefgh'[n % 8] * (n % 50)}"
            if n % 3 == 0:
                yield f"RuntimeError: boom {n:x}"

    classifier.feed_many(flood(40_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    classifier.feed_many(flood(200_000))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 20_000, f"{after - before} KiB more"
