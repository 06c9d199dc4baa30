"""What logs look like after collectors, pagers and quoting were at them, and the kinds of text met in them."""

# ruff: noqa: E501  (lines of logs are as long as they are)
from __future__ import annotations

import pytest
from log_lines import frame, read, stamp

from pd_units.logtext import parse_message

SETTINGS = stamp("server_args=ServerArgs(model_path='/m/oak', tp_size=2, log_level='info')")
LOADING = [SETTINGS, stamp("Load weight begin. avail mem=70.01 GB", "TP0")]
READY = stamp("The server is fired up and ready to roll!")
MAIN = ["Traceback (most recent call last):", *frame("sglang/launch_server.py", "<module>", "run_server(a)")]
DIED = [stamp("Scheduler hit an exception: Traceback (most recent call last):", "TP0")]


# ------------------------------------------------------------------------- other programs in the same log
READY_LINE = "The server is fired up and ready to roll!"


@pytest.mark.parametrize(
    "echo",
    [
        f"+ grep -c '{READY_LINE}' /tmp/oak.log",
        f'+ # ready when: "{READY_LINE}"',
        f"+ grep -c {READY_LINE} /tmp/oak.log",
        f"Jan 02 03:04:05 box sudo[7]: operator : PWD=/ ; USER=root ; COMMAND=/usr/bin/journalctl -g {READY_LINE}",
        f"until grep -q `{READY_LINE}` oak.log; do",
    ],
)
def test_a_ready_line_that_is_looked_for_is_not_one(echo: str) -> None:
    assert read(*LOADING, echo).verdict == "starting"
    assert (
        read(
            *LOADING, echo, "OSError: oak does not appear to have a file named preprocessor_config.json"
        ).cause
        == "missing-model"
    )
    assert read(*LOADING, echo, f"oak-wrapper: {READY_LINE}").verdict == "ready"


@pytest.mark.parametrize(
    "shape", ['{"level":"info","message":"%s"}', '{"MESSAGE": "%s"}', 'level=info msg="%s"']
)
def test_a_ready_line_in_a_collectors_quotes_is_one(shape: str) -> None:
    assert read(*LOADING, shape % READY_LINE).verdict == "ready"


def test_an_engine_in_somebodys_session_can_be_killed_there() -> None:
    killed = "Jan 02 03:04:05 box systemd[1]: session-3.scope: A process of this unit has been killed by the OOM killer."
    found = read(*(f"Jan 02 03:04:05 box python3[7]: {line}" for line in LOADING), killed)
    assert (found.verdict, found.cause) == ("failed", "killed-by-kernel")


def test_other_containers_of_a_compose_file_say_nothing_about_the_engine() -> None:
    def of(name: str, *lines: str) -> list[str]:
        return [f"{name:<12} | {line}" for line in lines]

    web = of("webui-1", MAIN[0], *frame("uvicorn/main.py", "<module>"), "RuntimeError: no upstream", "Killed")
    lines = [*of("engine-1", *LOADING), *web, "webui-1 exited with code 1 (restarting)"]
    assert read(*lines).verdict == "starting"
    ready = read(*lines, *of("engine-1", READY), "webui-1 exited with code 137")
    assert (ready.verdict, ready.cause) == ("ready", "none")
    for name in ("engine-1", "project_engine-1"):
        assert read(*lines, f"{name} exited with code 137").verdict == "failed"
    died = read(
        *lines,
        *of("engine-1", *DIED, *frame("x.py", "f"), "AssertionError: oak"),
        "engine-1 exited with code 1",
    )
    assert (died.verdict, died.cause) == ("failed", "assertion")


def test_what_the_kernel_and_systemd_did_to_other_programs_is_no_death() -> None:
    at = "Jan 02 03:04:05 box "
    others = [
        at + "kernel: chrome invoked oom-killer: gfp_mask=0x140cca, order=0, oom_score_adj=300",
        at + "kernel: oom-kill:constraint=CONSTRAINT_NONE,cpuset=user.slice,task=chrome,pid=8123,uid=1000",
        at + "kernel: Out of memory: Killed process 8123 (chrome) total-vm:38211904kB, anon-rss:2911480kB",
        at + "systemd[1]: user@1000.service: A process of this unit has been killed by the OOM killer.",
        at + "systemd[1]: sshd.service: Main process exited, code=exited, status=255/EXCEPTION",
        at + "systemd[1]: apt-daily.service: Deactivated successfully.",
    ]
    engine = [f"{at}python3[7]: {line}" for line in LOADING]
    assert read(*engine, *others).verdict == "starting"
    ready = read(*engine, *others, f"{at}python3[7]: {READY}", *others)
    assert (ready.verdict, ready.cause) == ("ready", "none")
    taken = (
        at
        + "kernel: Out of memory: Killed process 7 (pt_main_thread) total-vm:38211904kB, anon-rss:2911480kB"
    )
    found = read(*engine, *others, taken)
    assert (found.verdict, found.cause) == ("failed", "killed-by-kernel")


def test_a_traceback_behind_a_prompt_is_the_programs_own() -> None:
    asked = "Do you wish to run the custom code? [y/N] Traceback (most recent call last):"
    lines = [
        *LOADING[:1],
        asked,
        *frame("transformers/x.py", "resolve"),
        "EOFError: EOF when reading a line",
        "",
    ]
    lines += ["During handling of the above exception, another exception occurred:", "", *MAIN]
    found = read(
        *lines, "ValueError: The repository oak contains custom code which must be executed to load it."
    )
    assert (found.verdict, found.cause) == ("failed", "bad-argument")


# ------------------------------------------------------------------------------------------ launches
@pytest.mark.parametrize(
    "code",
    [
        "manager, info = _launch_subprocesses(server_args=server_args)",
        "engine = Engine(server_args=server_args, port_args=port_args)",
        "server_args = ServerArgs(**kwargs)",
        "init(server_args=self.server_args)",
        "server_args=server_args,",
    ],
)
def test_a_call_quoted_in_a_traceback_is_no_launch(code: str) -> None:
    lines = [*LOADING, "Fatal Python error: Bus error", "", *MAIN]
    lines += [*frame("sglang/srt/entrypoints/engine.py", "_launch_subprocesses", code), "EOFError"]
    found = read(*lines)
    assert (found.verdict, found.cause, found.lives) == ("failed", "bus-error", 1)
    collected = read(*(line.lstrip() for line in lines))  # a collector that takes indentation away
    assert (collected.verdict, collected.cause) == ("failed", "bus-error")


def test_the_settings_of_a_benchmark_are_no_launch() -> None:
    bench = "Namespace(backend='sglang', base_url='http://127.0.0.1:30000', dataset_name='random', num_prompts=64)"
    found = read(*LOADING, READY, bench, "AssertionError: 41.7 not less than or equal to 40")
    assert (found.verdict, found.lives) == ("ready", 1)


def test_a_log_with_its_newest_line_first_is_one_life() -> None:
    lines = [
        stamp("Received sigquit from a child process. It usually means the child failed.", clock="10:05:31"),
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        stamp("Init torch distributed begin.", "TP1", clock="10:05:02"),
        stamp("server_args=ServerArgs(model_path='/m/oak', tp_size=2)", clock="10:04:40"),
    ]
    found = read(*lines)
    assert (found.verdict, found.cause) == ("failed", "nccl")


def test_a_later_launch_is_another_life() -> None:
    died = stamp(
        "Received sigquit from a child process. It usually means the child failed.", clock="10:05:31"
    )
    again = stamp("server_args=ServerArgs(model_path='/m/oak', tp_size=2)", clock="10:05:40")
    assert read(*LOADING, died, again).verdict == "starting"


# ------------------------------------------------------------------------------------------ prefixes
@pytest.mark.parametrize(
    "prefix",
    [
        "1767319445123\t2026-01-02T03:04:05.123Z\t",
        "Jan 02 03:04:05 sglang-oak[4711]: ",
        "Jan 02 03:04:05 box sglang-oak[4711]: ",
        "2026-01-02T03:04:05+0100 sglang-oak[4711]: ",
        "2026-01-02 03:04:05 | ERROR | stderr | ",
        "2026-01-02 03:04:05.123 | INFO     | runner:main:41 - ",
        "ERROR 2026-01-02T03:04:05.514514570Z ",
        "Jan 2, 2026 @ 03:04:05.892    ",
        "Fri Jan  2 03:04:05 2026[1,3]<stderr>:",
        "(Worker(rank=4 pod=oak-0) pid=77, ip=10.0.0.7) ",
        "01-02 03:04:05.784 ",
    ],
)
def test_prefixes_of_collectors(prefix: str) -> None:
    assert parse_message(prefix + "TypeError: no such thing").body == "TypeError: no such thing"
    lines = [
        *MAIN,
        *frame("sglang/srt/entrypoints/engine.py", "launch"),
        "ModuleNotFoundError: No module named 'zmq'",
    ]
    found = read(*(prefix + line for line in lines))
    assert (found.verdict, found.cause) == ("failed", "import-error")


def test_a_stamp_behind_the_blanks_of_an_overwritten_bar() -> None:
    message = parse_message(
        " " * 150 + stamp("Scheduler hit an exception: Traceback (most recent call last):", "TP3")
    )
    assert (message.tag, message.stamped) == ("TP3", True)


def test_a_bar_of_any_unit_ends_before_the_next_message() -> None:
    bar = "[AutoTuner]: Tuning oak_decode:   0%|          | 0/21 [00:00<?, ?profile/s]"
    lines = [
        *LOADING,
        bar + DIED[0],
        *frame("x/fmha.py", "run"),
        "InternalError: fmha.cuh:37: Unsupported architecture",
    ]
    found = read(*lines)
    assert (found.verdict, found.cause) == ("failed", "unsupported-arch")
    assert read(*lines[:3]).verdict == "failed"


def test_an_out_of_memory_whose_place_is_known_goes_before_one_without() -> None:
    lines = ["CUDA Error: out of memory (2) /opt/flashinfer/handler.cuh: line 12", *DIED]
    lines += frame("sglang/srt/managers/scheduler.py", "event_loop_normal")
    found = read(*lines, "RuntimeError: Decode failed with error out of memory")
    assert found.cause == "oom-kv-cache"


# --------------------------------------------------------------------------------------- cut tracebacks
def test_a_traceback_without_its_head_still_tells() -> None:
    lines = frame("sglang/srt/model_loader/loader.py", "load_model") + frame(
        "sglang/srt/layers/moe/fused_moe_triton/layer.py", "_load_w13", "expert_data.copy_(loaded_weight)"
    )
    error = "RuntimeError: The size of tensor a (1792) must match the size of tensor b (3584) at dimension 1"
    found = read(*lines, error)
    assert (found.verdict, found.cause) == ("failed", "weights-mismatch")


def test_frames_without_an_exception_are_no_traceback() -> None:
    warned = ['  File "/opt/x/run.py", line 3, in main', "    warn()", "Capturing", "Loaded: nothing"]
    assert read(*LOADING, *warned).verdict == "starting"


# ----------------------------------------------------------------------------------------- kinds of text
def died(error: str, *frames: tuple[str, str]) -> list[str]:
    quoted = [line for place, name in frames for line in frame(place, name)]
    return [
        *LOADING,
        *DIED,
        *frame("sglang/srt/managers/scheduler.py", "run_scheduler_process"),
        *quoted,
        error,
    ]


KINDS = [
    ([*LOADING, "CUDA Error: out of memory (2) /opt/flashinfer/handler.cuh: line 12 at function cudaMallocAsync"], "oom-weights"),
    (died("RuntimeError: Failed to allocate memory for batch_tmp_v with size 9 and alignment 16 in AlignedAllocator",
          ("sglang/srt/managers/scheduler.py", "event_loop_overlap"), ("x/y.py", "plan")), "oom-kv-cache"),
    (died("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.",
          ("sglang/srt/managers/scheduler.py", "event_loop_normal"), ("sglang/srt/models/oak.py", "forward")), "oom-kv-cache"),
    (died("RuntimeError: RMSNorm failed with error code invalid configuration argument"), "cuda-error"),
    (died("RuntimeError: PassManager::run failed"), "unsupported-arch"),
    (died("AssertionError: Unsupported rhs dtype fp8e4nv"), "unsupported-arch"),
    (died("RuntimeError: call aclnnMix failed, detail:[PID: 7] The bin of socVersion [x] does not support opType [Mix]."), "unsupported-arch"),
    (died("RuntimeError: call aclnnMix failed, detail:[PID: 7] bad parameter"), "cuda-error"),
    (died("HSA exception: HSA_STATUS_ERROR_OUT_OF_RESOURCES: failed to allocate", ("x/memory_pool.py", "_create_buffers")), "oom-kv-cache"),
    ([*LOADING, stamp("Memory pool end. avail mem=0.4 GB", "TP1"), stamp("Capture cuda graph begin.", "TP1"),
      *died("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB.",
            ("sglang/srt/model_executor/model_runner.py", "init_attention_backend"), ("x/flash.py", "__init__"))[2:]], "oom-kv-cache"),
    (died("RuntimeError: DeepEP error: CPU recv timeout", ("deep_ep/buffer.py", "dispatch")), "nccl"),
    (died("ValueError: Downcasting not allowed: target fp8, loaded bf16"), "weights-mismatch"),
    (died("RuntimeError: Invalid thread config: thread_m_blocks = 1, thread_k = -1 for MKN = [8, 96, 96]"), "weights-mismatch"),
    (died("huggingface_hub.errors.StrictDataclassFieldValidationError: Validation error for field 'rank'"), "unsupported-model"),
    (died("AssertionError: KV4 expects attention_backend to be one of ['a', 'b']"), "bad-argument"),
    (died("ValueError: think_end_token '</t>' must encode to exactly one token for constrained reasoning."), "bad-argument"),
    (died("ValueError: Sharing experts is incompatible with `--enable-some-thing`, turn it off"), "bad-argument"),
    (died("RuntimeError: Failed: Assertion error /b/csrc/runtime.cu:56 'nvshmem_team_split_strided(A, B) == 0'"), "nccl"),
    (died("PermissionError: [Errno 13] Permission denied: 'nvcc'"), "toolchain"),
    (died("RuntimeError: Error in function 'Run' at /f/prefill.cuh:9: Invalid configuration : NUM_MMA_Q=1",
          ("sglang/srt/model_executor/cuda_graph_runner.py", "capture")), "cuda-graph"),
    (died("TypeError: 'NoneType' object is not subscriptable", ("sglang/srt/configs/model_config.py", "get_text")), "unsupported-model"),
    ([*MAIN, *frame("sglang/srt/configs/oak.py", "<module>"), *frame("transformers/auto.py", "register"),
      "ValueError: 'oak' is already used by a Transformers config, pick another name."], "import-error"),
    ([*MAIN, *frame("sglang/srt/constrained/cache.py", "<module>"), *frame("diskcache/core.py", "_con"),
      "sqlite3.OperationalError: disk I/O error"], "import-error"),
    ([*LOADING, 'RuntimeError: Form data requires "python-multipart" to be installed.'], "import-error"),
    ([*LOADING, stamp("INFO:     Application startup complete."), "Exception in thread Thread-1 (_wait_and_warmup):",
      "Traceback (most recent call last):", *frame("requests/models.py", "json"), "requests.exceptions.JSONDecodeError: Expecting value"], "warmup-failed"),
    ([*LOADING, stamp("INFO:     Application startup complete."), "Exception in ModelTpServer:",
      "Traceback (most recent call last):", *frame("sglang/srt/managers/tp_worker.py", "exposed_step"),
      "TypeError: begin_forward() missing 1 required positional argument: 'page_size'", "", "Killed"], "warmup-failed"),
    ([*LOADING, stamp("Child process unexpectedly failed with an exit code 139. pid=4711")], "segfault"),
    ([*LOADING, "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."], "killed-by-kernel"),
    (["[2026-01-02 03:04:05] Load weight begin.", "srun: error: box: task 0: Exited with exit code 1"], "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "cause"), KINDS, ids=[f"{n}-{cause}" for n, (_, cause) in enumerate(KINDS)]
)
def test_kinds(lines: list[str], cause: str) -> None:
    found = read(*lines)
    assert (found.verdict, found.cause) == ("failed", cause)


def test_unbalanced_memory_is_fatal_only_as_an_exception() -> None:
    text = "The memory capacity is unbalanced. Some GPUs may be occupied by other processes."
    assert read(*LOADING, stamp(text, "TP0")).verdict == "starting"
    assert read(*died(f"RuntimeError: {text}")).cause == "gpu-occupied"


def test_an_allocator_that_is_too_old_is_no_cause() -> None:
    old = stamp("Mooncake's tensor allocator requires mooncake >= 0.3.8. Fallback to use default allocator.")
    assert read(*LOADING, old, *died("RuntimeError: PassManager::run failed")[2:]).cause == "unsupported-arch"
    assert read(*LOADING, old, *died("ValueError: odd")[2:]).cause == "unknown"


@pytest.mark.parametrize(
    "text",
    [
        "Audio input requires oakcodec to be installed; it is off",
        "Please install flashinfer to use a faster kernel",
        "Call to ibv_oak failed with error code 22",
    ],
)
def test_advice_in_a_healthy_start_names_no_cause(text: str) -> None:
    assert read(*LOADING, stamp(text, "TP0")).verdict == "starting"
    assert read(*LOADING, stamp(text, "TP0"), *died("ValueError: odd")[2:]).cause == "unknown"


def test_a_retraction_while_serving_is_no_failure() -> None:
    busy = stamp("Decode out of memory happened. #retracted_reqs: 2, #new_token_ratio: 0.15 -> 0.19", "TP0")
    assert read(stamp("Decode batch. #running-req: 9, #token: 5", "TP0"), busy).verdict == "starting"
    assert read(*LOADING, READY, busy).death is None
