"""Phases, progress, capacity and warnings: what a status line shows, and what the no-progress clock counts."""

# ruff: noqa: E501  (lines of logs are as long as they are)
from __future__ import annotations

import pytest
from log_cases import load_cases
from log_lines import RULES, stamp

from pd_units.diagnosis import Classifier

CASES = {case.name: case for case in load_cases()}


def bar(label: str, done: int, total: int) -> str:
    return f"{label}: {100 * done // total:3d}% Completed | {done}/{total} [00:09<00:09,  1.53it/s]"


def fresh() -> Classifier:
    classifier = Classifier(RULES, role="prefill", cut_lives=False)
    classifier.feed("server_args=ServerArgs(model_path='/m/x')")
    return classifier


def test_status_line_of_a_whole_start():
    classifier = fresh()
    seen = []
    for line in (
        stamp("Init torch distributed begin.", "TP0"),
        stamp("Load weight begin. avail mem=78 GB", "TP0"),
        bar("Loading safetensors checkpoint shards", 23, 46),
        stamp("Load weight end. elapsed=9 s, type=X, avail mem=60 GB, mem usage=18.5 GB.", "TP0"),
        stamp("Capture cuda graph begin. This can take up to several minutes. avail mem=9 GB", "TP0"),
        "Capturing batches (bs=8 avail_mem=9 GB):  34%|███       | 12/35 [00:01<00:03,  5.30it/s]",
        stamp("Capture cuda graph end. Time elapsed: 9 s.", "TP0"),
        stamp("NIXL KVManager initialized with backend: UCX"),
        stamp("INFO:     Started server process [7]"),
        stamp("INFO:     Application startup complete."),
    ):
        classifier.feed(line)
        seen.append(classifier.status_text)
    assert seen == [
        "joining the ranks", "loading weights", "loading weights 23/46", "allocating memory pools",
        "capturing CUDA graphs", "capturing CUDA graphs 12/35", "finishing the engine", "setting up KV transfer",
        "starting the HTTP server", "warming up",
    ]  # fmt: skip


def test_mere_output_is_no_progress():
    classifier = fresh()
    classifier.feed(stamp("Load weight begin. avail mem=78 GB", "TP0"))
    ticks = classifier.progress_ticks
    for number in range(50):
        classifier.feed(stamp(f"box: waiting for lock {number}"))
        classifier.feed(
            stamp(f'INFO:     192.0.2.1:{number} - "GET /health HTTP/1.1" 503 Service Unavailable')
        )
        classifier.feed(stamp("Ignore import error when loading sglang.srt.models.x: No module named 'vllm'"))
    assert classifier.progress_ticks == ticks


def test_a_moving_bar_is_progress_a_standing_one_is_not():
    classifier = fresh()
    classifier.feed(bar("Loading safetensors checkpoint shards", 1, 9))
    ticks = classifier.progress_ticks
    for _ in range(5):
        classifier.feed(bar("Loading safetensors checkpoint shards", 1, 9))
    assert classifier.progress_ticks == ticks
    classifier.feed(bar("Loading safetensors checkpoint shards", 2, 9))
    assert classifier.progress_ticks == ticks + 1


def test_a_new_capacity_line_is_progress_once():
    classifier = fresh()
    line = stamp("max_total_num_tokens=61204, max_running_requests=12, context_len=8192")
    classifier.feed(line)
    ticks = classifier.progress_ticks
    classifier.feed(line)
    assert classifier.progress_ticks == ticks


def test_the_furthest_rank_gives_the_phase():
    classifier = fresh()
    for tag in ("TP0", "TP1", "TP2"):
        classifier.feed(stamp("Load weight begin. avail mem=78 GB", tag))
    classifier.feed(stamp("Load weight end. type=X, mem usage=15.1 GB.", "TP0"))
    classifier.feed(stamp("Load weight begin. avail mem=78 GB", "TP3"))
    assert classifier.phase_name == "allocating"


def test_a_draft_model_goes_back():
    classifier = fresh()
    for text in (
        "Load weight begin. x",
        "Load weight end. x",
        "Capture cuda graph begin. x",
        "Capture cuda graph end. x",
    ):
        classifier.feed(stamp(text, "TP0"))
    ticks = classifier.progress_ticks
    classifier.feed(stamp("Load weight begin. avail mem=9 GB", "TP0"))
    assert (classifier.phase_name, classifier.progress_ticks) == ("loading", ticks + 1)


@pytest.mark.parametrize(
    ("text", "phase", "minutes"),
    [
        ("Capture target decode CUDA graph begin. backend=full", "capturing", 25),
        ("Entering DeepGEMM JIT Pre-Compile session. It may take a long time", "compiling", 40),
        ("Start of pd disaggregation warmup ...", "warming", 30),
        ("Start of prefill warmup ...", "warming", 30),
        ("Init parallel begin.", "joining", 10),
    ],
)
def test_honest_silences(text, phase, minutes):
    classifier = fresh()
    classifier.feed(stamp(text, "TP0"))
    assert classifier.phase_name == phase
    assert classifier.allowed_silence_s >= minutes * 60


def test_downloads_are_progress():
    classifier = fresh()
    classifier.feed("model-00001-of-00030.safetensors:  15%|█▌        | 750M/5.00G [00:10<00:57, 74.0MB/s]")
    assert (classifier.phase, classifier.progress.done) == ("downloading the model", 750_000_000)


def test_bar_and_message_on_one_line():
    classifier = fresh()
    classifier.feed(
        "  0%|          | 0/13 [00:00<?, ?it/s]" + stamp("Capture cuda graph begin. avail mem=9 GB", "TP1")
    )
    assert classifier.phase_name == "capturing"


# ------------------------------------------------------------------------------------ capacity, warnings
def capacity(name: str):
    classifier = Classifier(RULES)
    classifier.feed_many(CASES[name].lines)
    return classifier.capacity


def test_capacity_of_old_and_new_wordings():
    assert capacity("001-health-503-then-ready") == {
        "weights_gb": 14.62, "kv_cache_gb": 50.28, "kv_tokens": 941312, "max_running_requests": 2048,
        "context_length": 32768, "available_gpu_memory_gb": 11.59, "chunked_prefill_size": 8192,
    }  # fmt: skip
    assert capacity("026-warmup-failed-after-uvicorn-02")["kv_tokens"] == 61204
    assert capacity("055-mamba-word-is-a-setting")["mamba_cache_gb"] == 3.31
    assert capacity("044-capture-oom-tp8-deepgemm-split")["kv_cache_gb"] == 4.0


WARNINGS = {
    "untuned-kernels": "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at /x/N=4096.json",
    "custom-all-reduce-off": "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, specify --disable-custom-all-reduce",
    "nixl-without-cuda-ipc": "UCX  WARN  transports 'cuda_ipc','cuda_copy' are not available, please use one or more of: tcp",
    "sm120-fallback": "FlashMLA has no SM120 kernel, falling back to the reference implementation",
    "kernel-fallback": "DeepGEMM is unavailable; falling back to Triton for this call.",
    "kv-scaling-factors": "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0.",
}


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings_once_each_with_advice(name):
    classifier = fresh()
    for rank in range(8):
        classifier.feed(stamp(WARNINGS[name], f"TP{rank}"))
    found = [warning for warning in classifier.warnings if warning.name == name]
    assert len(found) == 1
    assert found[0].count == 8 and found[0].line == 2 and found[0].advice
    assert classifier.diagnose().verdict == "starting"


def test_a_hundred_thousand_tuning_notices_collapse():
    classifier = fresh()
    classifier.feed_many(
        stamp(
            f"Using default MoE kernel config. Performance might be sub-optimal! Config file not found at /x/E={n}.json"
        )
        for n in range(100_000)
    )
    assert [(warning.name, warning.count) for warning in classifier.warnings] == [
        ("untuned-kernels", 100_000)
    ]
