"""What single texts mean: the wording of the engine's versions, collected; each within a start that goes well."""

# ruff: noqa: E501, RUF005  (lines of logs are as long as they are, and are added up)
from __future__ import annotations

import pytest
from log_lines import RULES, frame, stamp

from pd_units.diagnosis import Classifier, Diagnosis, ExitStatus

SETTINGS = [stamp("server_args=ServerArgs(model_path='/m/x', watchdog_timeout=300, crash_dump_folder=None)")]
JOIN = [
    stamp("Init torch distributed begin.", "TP0"),
    stamp("Init torch distributed ends. mem usage=0.1 GB", "TP0"),
]
LOAD = [
    stamp("Load weight begin. avail mem=78.33 GB", "TP0"),
    "\rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.00s/it]",
]
LOADED = [stamp("Load weight end. type=LlamaForCausalLM, avail mem=63.0 GB, mem usage=15.1 GB.", "TP0")]
POOL = [stamp("KV Cache is allocated. #tokens: 400000, K size: 20.0 GB, V size: 20.0 GB", "TP0")]
CAPTURE = [stamp("Capture cuda graph begin. This can take up to several minutes. avail mem=11.5 GB", "TP0")]
CAPTURED = [
    stamp("Capture cuda graph end. Time elapsed: 5.0 s. mem usage=1.0 GB. avail mem=10.5 GB.", "TP0"),
    stamp("max_total_num_tokens=400000, max_running_requests=2048, context_len=32768", "TP0"),
]
HTTP = [
    stamp("INFO:     Application startup complete."),
    stamp("INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)"),
    stamp('INFO:     127.0.0.1:40000 - "GET /get_model_info HTTP/1.1" 200 OK'),
]
READY = [stamp("The server is fired up and ready to roll!")]
TO_LOAD = SETTINGS + JOIN + LOAD
TO_POOL = TO_LOAD + LOADED
TO_CAPTURE = TO_POOL + POOL + CAPTURE
TO_HTTP = TO_CAPTURE + CAPTURED + HTTP
SIGQUIT = [stamp("Received sigquit from a child process. It usually means the child failed.")]


def scheduler(exception: str, *frames: tuple[str, str], tag: str = "TP0") -> list[str]:
    """A scheduler that reports its own death, and the parent's answer."""
    lines = [stamp("Scheduler hit an exception: Traceback (most recent call last):", tag)]
    lines += frame("sglang/srt/managers/scheduler.py", "run_scheduler_process", "scheduler = Scheduler(args)")
    for place, name in frames:
        lines += frame(place, name)
    return [*lines, *exception.split("\n"), "", *SIGQUIT]


def main(exception: str, *frames: tuple[str, str]) -> list[str]:
    """The main program, dying of an exception."""
    lines = [
        "Traceback (most recent call last):",
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
    ]
    lines += frame("sglang/launch_server.py", "<module>", "server_args = prepare_server_args(sys.argv[1:])")
    for place, name in frames:
        lines += frame(place, name)
    return [*lines, *exception.split("\n")]


def diagnose(lines: list[str], status: str = "") -> Diagnosis:
    classifier = Classifier(RULES)
    classifier.feed_many(lines)
    return classifier.diagnose(ExitStatus.parse(status))


ARGS = ("sglang/srt/server_args.py", "prepare_server_args")
CHECK = ("sglang/srt/server_args.py", "check_server_args")
MODEL = ("sglang/srt/model_executor/model_runner.py", "load_model")
WEIGHTS = ("sglang/srt/models/qwen2.py", "load_weights")
LOADER = ("sglang/srt/layers/linear.py", "weight_loader")
GRAPHS = ("sglang/srt/model_executor/cuda_graph_runner.py", "__init__")
HUB = ("transformers/utils/hub.py", "cached_file")
ADVICE = "\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

FAILURES = {
    # arguments
    "bad-argument: unknown option": ["usage: sglang serve [-h] --model-path X", "sglang serve: error: unrecognized arguments: --foo"],
    "bad-argument: ambiguous": ["launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --a, --b"],
    "bad-argument: missing": ["launch_server.py: error: the following arguments are required: --model-path"],
    "bad-argument: choice": ["launch_server.py: error: argument --dtype: invalid choice: 'x' (choose from 'auto')"],
    "bad-argument: clap": ["smg::main", "error: unexpected argument '--foo' found"],
    "bad-argument: assertion": main("AssertionError: tp_size must be divisible by number of nodes", ARGS, CHECK),
    "bad-argument: bare assertion": main("AssertionError", ARGS, CHECK),
    "bad-argument: context": main("ValueError: User-specified context_length (9) is greater than the derived context_length (8).", ARGS),
    "bad-argument: remote code": main("ValueError: The repository /m/x contains custom code which must be executed to correctly load the model.\nPlease pass the argument `trust_remote_code=True` to allow custom code to be run.", ARGS),
    # imports
    "import-error: name": main("ImportError: cannot import name 'AutoVideoProcessor' from 'transformers'"),
    "import-error: module": main("ModuleNotFoundError: No module named 'uvloop'"),
    "import-error: kernels": main("ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n- ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory"),
    "import-error: glibc": main("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found"),
    "import-error: interpreter": ["/opt/engine/bin/python: No module named sglang"],
    "import-error: too old": main("Exception: flashinfer_python is installed with version 0.2, which is less than the minimum required version 0.7.2."),
    "import-error: nixl": TO_POOL + scheduler("ImportError: Please install NIXL by following the instructions to run SGLang with NixlTransferEngine."),
    "import-error: attribute at import": main("AttributeError: module 'torch.library' has no attribute 'custom_op'", ("sglang/srt/layers/x.py", "<module>")),
    "import-error: kernel package": TO_CAPTURE + scheduler("AttributeError: '_OpNamespace' 'sgl_kernel' object has no attribute 'fwd'", ("sglang/srt/layers/x.py", "forward")),
    "import-error: optional package": TO_LOAD + scheduler("NameError: name 'fused_marlin_moe' is not defined", MODEL),
    # tools, files, models
    "toolchain: ninja": TO_CAPTURE + scheduler("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"),
    "toolchain: nvcc": TO_CAPTURE + scheduler("Exception: Capture cuda graph failed: Ninja build failed.\n/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found" + ADVICE, GRAPHS),
    "toolchain: header": TO_CAPTURE + ["x.c:5:10: fatal error: Python.h: No such file or directory", *scheduler("Exception: Capture cuda graph failed: Command '['/usr/bin/gcc', 'main.c']' returned non-zero exit status 1." + ADVICE, GRAPHS)],
    "missing-model: folder": main("OSError: /m/x is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'", ARGS, HUB),
    "missing-model: gated": main("OSError: You are trying to access a gated repo.\nCannot access gated repo for url https://huggingface.co/x.", ARGS, HUB),
    "missing-model: shard": TO_LOAD + scheduler('FileNotFoundError: No such file or directory: "/m/x/model-00003-of-00004.safetensors"', MODEL),
    "missing-model: weights": TO_LOAD + scheduler("RuntimeError: Cannot find any model weights with `/m/x`", MODEL),
    "unsupported-model: type": main("ValueError: The checkpoint you are trying to load has model type `x` but Transformers does not recognize this architecture.", ARGS),
    "unsupported-model: architecture": TO_LOAD + scheduler("ValueError: Model architectures ['XForCausalLM'] are not supported for now. Supported architectures: dict_keys([])", MODEL),
    # hardware
    "unsupported-arch: kernel image": TO_CAPTURE + scheduler("Exception: Capture cuda graph failed: CUDA error: no kernel image is available for execution on the device" + ADVICE, GRAPHS),
    "unsupported-arch: ptxas": TO_CAPTURE + scheduler("Exception: Capture cuda graph failed: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'" + ADVICE, GRAPHS),
    "unsupported-arch: invalid image": TO_CAPTURE + scheduler("RuntimeError: Triton Error [CUDA]: device kernel image is invalid", GRAPHS),
    "unsupported-arch: nvcc": TO_CAPTURE + scheduler("Exception: Capture cuda graph failed: Ninja build failed.\nnvcc fatal   : Unsupported gpu architecture 'compute_120a'\nninja: build stopped: subcommand failed." + ADVICE, GRAPHS),
    "unsupported-arch: fa3": TO_POOL + scheduler("AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend flashinfer`."),
    "unsupported-arch: fp8": TO_LOAD + scheduler("ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 89. Current capability: 80.", MODEL),
    "gpu-occupied: unbalanced": SETTINGS + JOIN + scheduler("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=10.0"),
    "gpu-occupied: busy": SETTINGS + JOIN + scheduler("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"),
    # memory: the same text in four places
    "oom-weights: by phase": TO_LOAD + scheduler(OOM),
    "oom-weights: by frames": TO_POOL + [stamp("Load weight begin. avail mem=9 GB", "TP0"), *scheduler(OOM, MODEL, ("sglang/srt/layers/linear.py", "create_weights"))],
    "oom-weights: of a slower rank": TO_POOL + [stamp("Load weight begin. avail mem=78 GB", "TP1"), *scheduler(OOM, tag="TP1")],
    "oom-kv-cache: by phase": TO_POOL + scheduler(OOM),
    "oom-kv-cache: by frames": TO_LOAD + scheduler(OOM, ("sglang/srt/mem_cache/memory_pool.py", "_create_buffers")),
    "oom-kv-cache: sentence": TO_POOL + scheduler("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.5"),
    "oom-kv-cache: newest sentence": TO_POOL + scheduler("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. Raise --mem-fraction-static above 0.6"),
    "oom-kv-cache: window": TO_POOL + scheduler("RuntimeError: SWA pool (12 tokens) cannot hold even one request: need 99"),
    "oom-kv-cache: hybrid": TO_POOL + scheduler("RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=0"),
    "oom-kv-cache: no request": TO_POOL + scheduler("AssertionError: max_running_request is zero"),
    "cuda-graph-oom: wrapped": TO_CAPTURE + scheduler("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB." + ADVICE, GRAPHS),
    "cuda-graph-oom: by phase": TO_CAPTURE + scheduler("torch.cuda.OutOfMemoryError: CUDA out of memory."),
    # the checkpoint
    "weights-mismatch: key": TO_LOAD + scheduler("KeyError: 'model.layers.0.mlp.experts.w2_weight_scale'", MODEL, WEIGHTS),
    "weights-mismatch: shape": TO_LOAD + scheduler("RuntimeError: The size of tensor a (3072) must match the size of tensor b (6144) at non-singleton dimension 0", MODEL, WEIGHTS, LOADER),
    "weights-mismatch: bare": TO_LOAD + scheduler("AssertionError", MODEL, WEIGHTS, LOADER),
    "weights-mismatch: awq": TO_LOAD + scheduler("ValueError: The input size is not aligned with the quantized weight shape. This can be caused by too large tensor parallel size.", MODEL),
    "weights-mismatch: blocks": TO_LOAD + scheduler("ValueError: Weight output_partition_size = 96 is not divisible by weight quantization block_n = 128.", MODEL),
    # devices, collectives, ports, transfer
    "illegal-memory: capture": TO_CAPTURE + scheduler("Exception: Capture cuda graph failed: CUDA error: an illegal memory access was encountered" + ADVICE, GRAPHS),
    "cuda-error: assert": TO_HTTP + scheduler("RuntimeError: CUDA error: device-side assert triggered"),
    "cuda-error: ordinal": SETTINGS + JOIN + scheduler("RuntimeError: CUDA error: invalid device ordinal"),
    "cuda-error: driver": main("RuntimeError: No CUDA GPUs are available"),
    "nccl: system": SETTINGS + JOIN + scheduler("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"),
    "nccl: duplicate": SETTINGS + JOIN + scheduler("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage, NCCL version 2.27.3\nncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    "nccl: nvshmem": [*TO_LOAD, "/x/nvshmem/src/host/init/init.cu:nvshmemi_check_state_and_init:1080: nvshmem initialization failed, exiting", *SIGQUIT],
    "nccl: watchdog": TO_LOAD + ["[rank3]:[E ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 600066 milliseconds before timing out.", "terminate called after throwing an instance of 'c10::DistBackendError'"],
    "port-in-use: uvicorn": TO_HTTP[:-2] + [stamp("ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use")],
    "port-in-use: zmq": TO_POOL + scheduler("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5555')"),
    "port-in-use: store": SETTINGS + scheduler("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE"),
    "port-in-use: wait": SETTINGS + main("ValueError: dist_init at 29500 is not available in 30 seconds. Process: x"),
    "disaggregation: nixl": TO_POOL + scheduler("nixl_cu12._bindings.nixlBackendError: NIXL_ERR_BACKEND", ("sglang/srt/disaggregation/nixl/conn.py", "__init__")),
    "disaggregation: late": TO_POOL + scheduler("TimeoutError: NIXL create_backend('UCX', {}) did not return within 60s on box"),
    "disaggregation: memory": TO_POOL + scheduler("Exception: NIXL memory registration failed for VRAM kv tensors"),
    "disaggregation: mooncake": TO_POOL + scheduler("RuntimeError: Mooncake Transfer Engine initialization failed."),
    "disaggregation: page size": TO_HTTP + scheduler("RuntimeError: Page size mismatch: prefill server has page_size=64, but decode server has page_size=1."),
    "fd-limit: zmq": TO_LOAD + scheduler("zmq.error.ZMQError: Too many open files"),
    # stages
    "cuda-graph: shape": TO_CAPTURE + scheduler("Exception: Capture cuda graph failed: shape mismatch: value tensor of shape [2] cannot be broadcast" + ADVICE, GRAPHS),
    "cuda-graph: prefill": TO_CAPTURE + [stamp("Fail when using backend: breakable for prefill runner.", "TP0"), *scheduler("RuntimeError: boom", GRAPHS)],
    "warmup-failed: time": TO_HTTP + [stamp("Initialization failed. warmup error: Traceback (most recent call last):"), *frame("sglang/srt/entrypoints/http_server.py", "_execute_server_warmup"), "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out. (read timeout=600)", *SIGQUIT],
    "warmup-failed: pair": TO_HTTP + [stamp("Disaggregation warmup failed (mode=prefill), status codes: [500]"), *READY],
    "warmup-failed: scheduler": TO_HTTP + scheduler("IndexError: index 5 is out of bounds"),
    "watchdog-timeout: hard": TO_HTTP + [stamp("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "TP0")],
    "watchdog-timeout: old": TO_HTTP + [stamp("Watchdog timeout (self.watchdog_timeout=300)", "TP0"), *SIGQUIT],
    "timeout: ranks": TO_LOAD + scheduler("ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node."),
    "timeout: router": ["[Router (Rust)] 2026-01-02 03:04:05 - INFO - Initializing router on 0.0.0.0:30001", *main("RuntimeError: Timeout 6s waiting for workers ['http://127.0.0.1:30000'] to become healthy.")],
    # deaths
    "segfault: python": TO_LOAD + ["Fatal Python error: Segmentation fault", "", "Thread 0x7f (most recent call first):"],
    "segfault: code": TO_LOAD + main("RuntimeError: Rank 0 scheduler died during initialization (exit code: -11). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer."),
    "bus-error: python": TO_LOAD + ["Fatal Python error: Bus error"],
    "killed-by-kernel: code": TO_LOAD + main("RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer."),
    "killed-by-kernel: shell": [*TO_LOAD, "Killed"],
    "killed-by-kernel: compose": [*TO_LOAD, "engine-1 exited with code 137"],
    "killed-by-kernel: pod": [*TO_LOAD, "      Reason:       OOMKilled"],
    "child-died: abort": TO_LOAD + main("RuntimeError: Rank 0 scheduler died during initialization (exit code: -6). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer."),
    "assertion: bare": TO_POOL + scheduler("AssertionError", ("sglang/srt/mem_cache/mamba_radix_cache.py", "__init__")),
    "unknown: only a symptom": TO_LOAD + SIGQUIT,
    "unknown: a stranger": TO_POOL + scheduler("RuntimeError: expected scalar type BFloat16 but found Float", ("sglang/srt/models/x.py", "forward")),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_failure(name):
    diagnosis = diagnose(FAILURES[name])
    assert (str(diagnosis.verdict), str(diagnosis.cause)) == ("failed", name.split(":")[0])
    assert diagnosis.advice


BENIGN = [
    stamp("Ignore import error when loading sglang.srt.models.x: No module named 'vllm'", "TP0"),
    stamp("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit"),
    stamp("Failed to load legacy DeepGEMM: x"),
    "Unexpected error during package walk: cutlass.cute.experimental",
    "CUTLASS backend is disabled",
    stamp("Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.", "TP0"),
    stamp("Setup Custom allreduce failed with CUDA error: x. To silence this warning, specify --disable-custom-all-reduce", "TP0"),
    stamp("Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at /x.json", "TP0"),
    "[aiter] not found tuned config in CKGEMM, will use default config!",
    stamp("Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."),
    stamp('INFO:     192.0.2.1:5 - "GET /health HTTP/1.1" 503 Service Unavailable'),
    stamp('INFO:     192.0.2.1:5 - "POST /generate HTTP/1.1" 500 Internal Server Error'),
    stamp('192.0.2.1:5 - "PRI %2A HTTP/2.0" 404 Not Found'),
    stamp("WARNING:  Invalid HTTP request received."),
    "box:88:88 [4] NCCL INFO ncclOsSocketPollConnect: connect to 192.0.2.1<5> returned Connection refused, retrying (5/34) after sleep for 500 msec",
    "[1700000000.1] [box:1:0] parser.c:2036 UCX  WARN  unused environment variables: UCX_HOME",
    "/v/torch/cuda/__init__.py:287: UserWarning:",
    "    Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.",
    "    Minimum and Maximum cuda capability supported by this version of PyTorch is (8.0) - (12.0)",
    "NVIDIA RTX PRO 6000 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    stamp("Fixing v5 tokenizer component mismatch"),
    stamp("Triton kernel '_k' took 29.71 s to compile after serving started. Serving-time compilation can stall the engine."),
    stamp("max_mamba_cache_size=448, page_size=64"),
    "Core 3 inside NUMA node 4 not found",
    stamp("OpenAI Responses API (/v1/responses) disabled: HarmonyError: error downloading or loading vocab file"),
    stamp("Prefill register attempt 1/5 failed: Connection refused"),
    stamp("post-warmup freeze_gc failed: boom"),
    "[Gloo] Rank 0 is connected to 0 peer ranks. Expected number of connected peer ranks is : 0",
    "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown",
    "RuntimeWarning: Failed to read commit hash:",
    "No module named 'vllm._version'",
    stamp("[Autotuner]: Skipping tactic 13, due to failure while profiling: Assertion failed: Failed to initialize cutlass TMA WS", "TP0"),
    stamp("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)", "TP0"),
    stamp("flashinfer.comm is not available, falling back to standard implementation"),
    stamp("Attempting to reconnect to 127.0.0.1:8998..."),
    "pd-units: sglang-prefill: Received sigquit from a child process; CUDA out of memory; error: unrecognized arguments",
]  # fmt: skip


@pytest.mark.parametrize("text", BENIGN)
def test_benign_text_fails_nothing(text):
    """At no line of a good start, nor after it."""
    start = TO_HTTP + READY
    for at in range(1, len(start) + 1):
        lines = [*start[:at], text, *start[at:]]
        assert diagnose(lines).verdict == "ready"
        assert diagnose(lines[: at + 1]).verdict in ("starting", "ready")


def test_benign_traceback_is_forgotten():
    lines = TO_LOAD + [
        "Traceback (most recent call last):",
        *frame("sglang/multimodal_gen/loader.py", "load"),
    ]
    lines += [
        "ValueError: no",
        stamp("Error while loading customized transformer, falling back to native version"),
    ]
    assert diagnose(lines).verdict == "starting"
    assert diagnose(lines + LOADED + POOL + HTTP + READY).verdict == "ready"


def test_numpy_notice_with_a_traceback_is_benign():
    notice = [
        "A module that was compiled using NumPy 1.x cannot be run in",
        "Traceback (most recent call last):",
    ]
    notice += frame("sglang/launch_server.py", "<module>") + ["AttributeError: _ARRAY_API not found"]
    assert diagnose(notice + TO_HTTP + READY).verdict == "ready"


def test_failed_request_after_readiness_is_no_death():
    lines = (
        TO_HTTP + READY + ["ERROR:    Exception in ASGI application", "Traceback (most recent call last):"]
    )
    lines += frame("uvicorn/protocols/http/h11_impl.py", "run_asgi") + ["RuntimeError: boom"]
    diagnosis = diagnose(lines)
    assert (diagnosis.verdict, diagnosis.cause, diagnosis.death) == ("ready", "none", None)


def test_death_after_readiness_is_told_apart():
    diagnosis = diagnose(
        TO_HTTP + READY + scheduler("RuntimeError: CUDA error: an illegal memory access was encountered")
    )
    assert (diagnosis.verdict, diagnosis.cause) == ("ready", "illegal-memory")
    assert diagnosis.was_ready and diagnosis.death is not None
    assert diagnosis.death.cause == "illegal-memory"


def test_deliberate_stop_is_no_death():
    stop = [stamp("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")]
    stop += [
        stamp("Subprocess scheduler_0 (pid=9) crashed with exit code -15. Triggering SIGQUIT for cleanup...")
    ]
    stop += [stamp("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")]
    assert diagnose(TO_HTTP + READY + stop, "SIGKILL").cause == "none"
    assert diagnose(TO_LOAD + stop, "SIGTERM").verdict == "starting"


def test_interrupt_is_no_failure():
    lines = [*TO_LOAD, "^CProcess Process-2:", "Traceback (most recent call last):"]
    lines += frame("multiprocessing/process.py", "_bootstrap") + ["KeyboardInterrupt"]
    assert diagnose(lines).verdict == "starting"


def test_cause_may_follow_its_symptom():
    lines = (
        TO_LOAD
        + SIGQUIT
        + scheduler("KeyError: 'model.layers.0.mlp.w2_weight_scale'", MODEL, WEIGHTS, tag="TP3")
    )
    assert diagnose(lines).cause == "weights-mismatch"


def test_victims_never_outrank_the_first_dead():
    peer = "RuntimeError: [/pytorch/third_party/gloo/pair.cc:534] Connection closed by peer [192.0.2.1]:5"
    lines = TO_LOAD + scheduler(peer, tag="TP1") + scheduler("AssertionError", tag="TP0")
    assert diagnose(lines).cause == "assertion"
    assert diagnose(TO_LOAD + scheduler(peer)).cause == "child-died"


@pytest.mark.parametrize(
    ("status", "verdict", "cause"),
    [
        ("SIGKILL", "failed", "killed-by-kernel"), ("-11", "failed", "segfault"), ("SIGABRT", "failed", "child-died"),
        ("135", "failed", "bus-error"), ("1", "failed", "unknown"), ("2", "failed", "bad-argument"),
        ("SIGTERM", "starting", "none"), ("0", "failed", "unknown"), ("", "starting", "none"),
    ],
)  # fmt: skip
def test_exit_status_alone(status, verdict, cause):
    diagnosis = diagnose(TO_LOAD, status)
    assert (str(diagnosis.verdict), str(diagnosis.cause)) == (verdict, cause)


def test_sigkill_after_a_symptom_is_the_engines_own():
    assert diagnose(TO_LOAD + SIGQUIT, "SIGKILL").cause == "unknown"


def test_a_plain_sentence_at_the_end_is_the_last_word():
    sentence = "Failed to initialize the engine: CUDA out of memory"
    assert diagnose([*TO_LOAD, sentence]).cause == "oom-weights"
    assert diagnose([*TO_LOAD, sentence, *LOADED]).verdict == "starting"


def test_prefill_that_cannot_register_is_no_start():
    text = stamp("Prefill instance failed to register to bootstrap server after 5 retries")
    assert diagnose([*TO_HTTP, text, *READY]).cause == "disaggregation"


def test_taken_bootstrap_port_is_a_warning():
    diagnosis = diagnose([*TO_HTTP, stamp("Server error: [Errno 98] Address already in use"), *READY])
    assert (diagnosis.verdict, [warning.name for warning in diagnosis.warnings]) == (
        "ready",
        ["bootstrap-port"],
    )


def test_container_that_starts_again():
    banner = [
        "==========",
        "== CUDA ==",
        "==========",
        "Container image Copyright (c) 2016-2023, NVIDIA CORPORATION",
    ]
    assert diagnose(TO_HTTP + READY + banner).verdict == "starting"
    assert diagnose(TO_LOAD + SIGQUIT + banner + TO_LOAD).verdict == "starting"
