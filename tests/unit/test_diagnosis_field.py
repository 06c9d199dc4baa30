"""Kinds of fault met in the field, each within a start of its own; and notices that look like them."""

# ruff: noqa: E501  (lines of logs are as long as they are)
from __future__ import annotations

import pytest
from log_lines import frame, read, stamp

SETTINGS = [stamp("server_args=ServerArgs(model_path='/m/oak', tp_size=2, log_level='info')")]
LOADING = [
    *SETTINGS,
    stamp("Init torch distributed begin.", "TP0"),
    stamp("Load weight begin. avail mem=70.01 GB", "TP0"),
]
POOLS = [
    *LOADING,
    stamp("Load weight end. type=OakForCausalLM, avail mem=40.0 GB, mem usage=30.0 GB.", "TP0"),
]
CAPTURE = [
    *POOLS,
    stamp("Capture cuda graph begin. This can take up to several minutes. avail mem=9.5 GB", "TP0"),
]
HTTP = [
    *POOLS,
    stamp("INFO:     Application startup complete."),
    stamp("INFO:     Uvicorn running on http://0.0.0.0:30000"),
]
READY = [*HTTP, stamp("The server is fired up and ready to roll!")]


def died(error: str, *frames: tuple[str, str]) -> list[str]:
    lines = [stamp("Scheduler hit an exception: Traceback (most recent call last):", "TP0")]
    for place, name in (("sglang/srt/managers/scheduler.py", "run_scheduler_process"), *frames):
        lines += frame(place, name)
    return [*lines, *error.split("\n"), "", stamp("SIGQUIT received. signum=None, frame=None.")]


def captured(error: str) -> list[str]:
    return CAPTURE + died(f"Exception: Capture cuda graph failed: {error}", ("sglang/srt/x.py", "__init__"))


def main(error: str, *frames: tuple[str, str]) -> list[str]:
    lines = ["Traceback (most recent call last):", *frame("sglang/launch_server.py", "<module>")]
    for place, name in frames:
        lines += frame(place, name)
    return [*lines, *error.split("\n")]


ARGS = ("sglang/srt/server_args.py", "prepare_server_args")
LOAD = ("sglang/srt/model_executor/model_runner.py", "load_model")
FAULTS = {
    # arguments
    "bad-argument: compared": main("TypeError: '>' not supported between instances of 'NoneType' and 'int'", ARGS),
    "bad-argument: json": main("json.decoder.JSONDecodeError: Expecting value: line 1 column 2 (char 1)", ARGS, ("json/decoder.py", "raw_decode")),
    "bad-argument: pydantic": main("pydantic_core._pydantic_core.ValidationError: 1 validation error for ServerArgs\nx", ARGS),
    "bad-argument: assertion of a dataclass": main("AssertionError: A and B cannot be enabled at once", ARGS),
    "bad-argument: page size": POOLS + died("AssertionError: Page size must be 1 for that cache, got 64"),
    "bad-argument: backend of a layer": LOADING + died("ValueError: Attention backend 'oak' is not supported by this attention layer"),
    "bad-argument: grammar": POOLS + died("ValueError: Invalid grammar backend: oak"),
    "bad-argument: dtype": LOADING + died("ValueError: torch.bfloat16 is not supported for quantization method oak."),
    "bad-argument: router": ["launch_router.py: error: argument --policy: invalid choice: 'oak' (choose from random)"],
    "bad-argument: exception of its own": main("sglang.srt.oak.OakMaskMissing: no mask at '/x'", ("sglang/srt/server_args.py", "check_server_args"), ("sglang/srt/oak.py", "load")),
    "bad-argument: newer resolution": main("ValueError: oak wants more ranks", ("sglang/srt/server_args.py", "resolve_once"), ("sglang/srt/oak.py", "check")),
    "bad-argument: words of refusal": POOLS + died("ValueError: the oak cache is not compatible with overlap", ("sglang/srt/mem_cache/oak.py", "__init__")),
    # the environment
    "import-error: symbol of a compiled kernel": captured("/c/ops.so: undefined symbol: cudaOak, version libcudart.so.12"),
    "import-error: loader": CAPTURE + died("OSError: liboak.so.1: cannot open shared object file: No such file"),
    "import-error: kernels alone": ["Traceback (most recent call last):", *frame("sgl_kernel/__init__.py", "<module>"), "ImportError: libnuma.so.1: no"],
    "import-error: no triton": captured("backend='inductor' raised:\nRuntimeError: Cannot find a working triton installation."),
    "toolchain: cuda home": main("AssertionError", ("deep_gemm/__init__.py", "<module>"), ("deep_gemm/__init__.py", "_find_cuda_home")),
    "toolchain: nvcc too old": POOLS + died('RuntimeError: Assertion error (jit/compiler.hpp:187): major > 12 and "NVCC version should be >= 12.3"'),
    "toolchain: ninja": CAPTURE + died("RuntimeError: ninja exited with status 1\nstdout:\n[1/2] nvcc -c x.cu"),
    "toolchain: no C++ compiler": captured("InvalidCxxCompiler: No working C++ compiler found in torch._inductor"),
    "toolchain: triton and a newer CUDA": captured("Triton only support CUDA 10.0 or higher, but got CUDA version: 13.0"),
    "toolchain: kernel cache": CAPTURE + died("PermissionError: [Errno 13] Permission denied: '/.triton'", ("triton/runtime/cache.py", "__init__")),
    "toolchain: aiter": CAPTURE + died("RuntimeError: [aiter] build [module_oak] under /x/jit/build failed !!!!!!"),
    # the model
    "missing-model: no way to the hub": main("requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443)\"))", ARGS),
    "missing-model: cache not writable": main("PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/hub/x'", ARGS),
    "missing-model: disk full": LOADING + died("RuntimeError: Data processing error: CAS service error : IO Error: No space left on device"),
    "missing-model: modelscope": main("modelscope.hub.errors.NotExistError: The file path: config.json not exist."),
    "unsupported-model: no implementation": LOADING + died("ValueError: OakForCausalLM has no SGlang implementation and the Transformers implementation is not compatible"),
    "unsupported-model: as a draft": POOLS + died("AttributeError: 'OakForCausalLM' object has no attribute 'set_embed'"),
    "unsupported-arch: TMA": captured("Assertion failed: Failed to initialize cutlass TMA WS grouped gemm. Error: Error Internal"),
    "missing-model: cache read-only": main("OSError: [Errno 30] Read-only file system: '/root/.cache/huggingface/hub/x'"),
    "unsupported-model: tokenizer": main("Exception: data did not match any variant of untagged enum ModelWrapper at line 7 column 3"),
    "unsupported-model: processor": main("ValueError: oak has no processor", ("sglang/srt/utils/x.py", "get_processor")),
    "unsupported-model: in the model": LOADING + died("ValueError: activation oak", LOAD, ("sglang/srt/models/oak.py", "__init__")),
    "weights-mismatch: in a layer": LOADING + died("ValueError: No scheme fits that layer", LOAD, ("sglang/srt/layers/quantization/oak.py", "get_scheme")),
    "weights-mismatch: vocabulary": LOADING + died("AssertionError: self.org_vocab_size=7 loaded_weight.shape[output_dim]=8"),
    "weights-mismatch: adapter": POOLS + died("ValueError: target modules differ", ("sglang/srt/lora/lora_manager.py", "init_state")),
    "unsupported-model: its configuration": main("ValueError: layer types are missing", ARGS, ("sglang/srt/configs/oak.py", "__init__")),
    "unsupported-arch: capability": LOADING + died("AssertionError: OakRunner requires CUDA compute capability >= 9"),
    "unsupported-arch: another vendor": LOADING + died("NotImplementedError: that scheme is only supported on AMD GPUs.", LOAD, ("sglang/srt/layers/x.py", "f")),
    "oom-kv-cache: words of a fallback": POOLS + died("RuntimeError: Not enough memory. Please try to increase it, or falling back to less"),
    # memory and devices
    "oom-kv-cache: newer sentence": POOLS + died("RuntimeError: Not enough memory to allocate KV cache.\nPossible fixes: increase it"),
    "oom-weights: mmap": LOADING + died("RuntimeError: unable to mmap 49 bytes from file </m/x.safetensors>: Cannot allocate memory (12)"),
    "cuda-error: pinned memory": POOLS + died("RuntimeError: cudaHostRegister failed (rc=1, ptr=0x7f0) at offset=0 size=34"),
    "cuda-error: no accelerator": main("RuntimeError: No accelerator (CUDA, XPU, HPU) or platform plugin is available."),
    "cuda-error: driver": LOADING + died("RuntimeError: The NVIDIA driver on your system is too old (found version 12020)."),
    "cuda-error: device id": LOADING + died("AssertionError: Invalid device id"),
    "oom-kv-cache: sizing": POOLS + died("ValueError: nothing remains for tokens", ("sglang/srt/model_executor/pool_configurator.py", "resolve")),
    "cuda-error: NPU": HTTP + died("RuntimeError: The Inner error is reported as above. The process exits for this inner error"),
    # met later: a library's own assertion, a layout that a store refuses, an adapter for a model without it
    "assertion: in a compiled library": LOADING + died("RuntimeError: Failed: Assertion error /b/csrc/oak.cpp:7 'x <= limit'", ("sglang/srt/layers/moe/oak.py", "dispatch")),
    "assertion: of a host cache": POOLS + died("AssertionError: the store takes page first layouts only", ("sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py", "register")),
    "unsupported-model: adapter": LOADING + died("NotImplementedError", ("sglang/srt/lora/utils.py", "get_hidden_dim")),
    "unsupported-arch: a table of chips": main('RuntimeError: Get arch failed "Unknown GPU architecture: gfx1"', ARGS, ("aiter/jit/utils/chip_info.py", "get_arch")),
    "timeout: a peer in the capture": captured("[gloo/transport/tcp/unbound_buffer.cc:133] Timed out waiting 1800000ms for send operation to complete"),
    "child-died: assert of C": [*HTTP, "python: /p/lib/Analysis.cpp:40: std::pair<int, int> f(g): Assertion `!(a && \"b\")' failed."],
    "bad-argument: router without workers": ["[Router (Python)] 2026-01-02 03:04:05 - ERROR - Error starting router: argument 'worker_urls': 'NoneType' object cannot be converted to 'Sequence'"],
    "assertion: in torch": LOADING + died('RuntimeError: empty() INTERNAL ASSERT FAILED at "/pytorch/c10/x.cpp":29, please report a bug.', ("torch/cuda/memory.py", "empty_cache")),
    "bad-argument: diffusion server": ["[01-02 03:04:05] Detected diffusion model (model_index.json): /m/oak", "error: unrecognized arguments: --oak"],
    "bad-argument: pairs of the router": ["Traceback (most recent call last):", *frame("sglang_router/router_args.py", "_validate"), "ValueError: PD needs --prefill"],
    "weights-mismatch: half quantised": LOADING + died("ValueError: Detected some but not all shards of oak.qkv_proj are quantized. All shards of fused layers to have the same precision."),
    # the other ranks
    "nccl: gloo mesh": SETTINGS + died("RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error"),
    "nccl: gloo interface": SETTINGS + died("RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find interface for: bond0"),
    "nccl: nvshmem": [*LOADING, "NVSHMEM device library version does not match with NVSHMEM host library version", stamp("SIGQUIT received. signum=None, frame=None.")],
    "nccl: HCCL": SETTINGS + died("RuntimeError: HCCL function error: hcclCommInitRootInfoConfig(n, &r), error code is 5"),
    "nccl: groups": SETTINGS + died("RuntimeError: the groups differ", ("sglang/srt/distributed/parallel_state.py", "init_world_group")),
    "unknown: a supervisor": [*LOADING, "2026-01-02 03:04:05,123 WARN exited: sglang (exit status 1; not expected)"],
    "timeout: store": SETTINGS + died("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (192.0.2.1, 5757)."),
    "child-died: store": SETTINGS + died("torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed."),
    "timeout: router": ["[Router (Rust)] 2026-01-02 03:04:05 - INFO - Worker http://192.0.2.1:1 health check is pending", "thread '<unnamed>' panicked at src/server.rs:82:61:", "Failed to create router: Timeout 300s waiting for workers to become healthy"],
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str) -> None:
    found = read(*FAULTS[name])
    assert (found.verdict, found.cause) == ("failed", name.split(":")[0])


# A log that ends with one of these goes on: the engine says what it does instead.
NOTICES = [
    stamp("FlashInfer allreduce fusion is not supported on sm120, disabling it."),
    stamp("oak backend is only supported on SM100, using triton backend instead.", "TP0"),
    stamp("Unable to import deep_gemm: CUDA_HOME environment variable is not set."),
    stamp("Failed to write the autotune cache: [Errno 28] No space left on device"),
    "OutOfMemoryError: out of resource: triton_mm Required: 147456 Hardware limit:101376 Reducing block sizes may help",
]


@pytest.mark.parametrize("text", NOTICES)
def test_a_notice_as_the_last_line_fails_nothing(text: str) -> None:
    for start in (SETTINGS, LOADING, POOLS, CAPTURE, HTTP):
        assert read(*start, text).verdict == "starting"
    assert read(*CAPTURE, text, *READY).verdict == "ready"


def test_a_notice_does_not_outrank_what_was_thrown_later() -> None:
    notice = stamp(
        "NVFP4 w4a4 requires compute capability >= 10.0; serving this checkpoint weight-only", "TP0"
    )
    oom = died("torch.OutOfMemoryError: CUDA out of memory.", ("sglang/srt/x.py", "capture_one"))
    assert read(*LOADING, notice, *CAPTURE[len(LOADING) :], *oom).cause == "cuda-graph-oom"


def test_what_is_avoided_did_not_happen() -> None:
    notice = stamp("Detected oak on this driver, using triton to avoid a SIGSEGV.")
    assert read(*SETTINGS, notice).verdict == "starting"
    assert read(*SETTINGS, notice, *READY).verdict == "ready"


def test_advice_of_a_framework_names_what_did_not_happen() -> None:
    advice = "The actor is dead. There are some potential root causes. (1) killed by SIGKILL by the OOM killer. (3) crashed unexpectedly due to SIGSEGV or other unexpected errors."
    found = read(*LOADING, *died("AssertionError: oak"), "ray.exceptions.ActorDiedError: it died", advice)
    assert (found.verdict, found.cause) == ("failed", "assertion")


def test_an_autotuner_that_ignores_a_choice_goes_on() -> None:
    tried = ["RuntimeError: a configuration does not compile", "Ignoring this choice."]
    assert read(*CAPTURE, *tried).verdict == "starting"


@pytest.mark.parametrize("status", ["400", "422"])
def test_ready_after_a_warmup_that_was_refused_is_not_ready(status: str) -> None:
    refused = stamp(f"Prefill disaggregation mode warm Up Failed, status code: {status}")
    found = read(*HTTP, stamp("Start of pd disaggregation warmup ..."), refused, READY[-1])
    assert (found.verdict, found.cause) == ("failed", "warmup-failed")


def test_a_silenced_engine_is_known_by_its_bars() -> None:
    bars = [
        "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:03<00:00,  1.17it/s]",
        "Capturing batches (bs=1 avail_mem=62.73 GB): 100%|███| 3/3 [00:00<00:00,  4.51it/s]",
    ]
    for seen in (bars, bars[:1], bars[1:]):
        assert read(*seen, "Server started on http://localhost:1").verdict == "starting"
    assert read("Downloading oak: 100%|███| 3/3 [00:00<00:00,  4.51it/s]").verdict == "unknown"


def test_a_death_while_serving_is_no_failed_warmup() -> None:
    found = read(*READY, *died("IndexError: list index out of range"))
    assert (found.verdict, found.cause) == ("ready", "unknown")


def test_a_prefix_names_the_program() -> None:
    line = "[Router (Rust)] 2026-01-02 03:04:05 - INFO - Removed worker: http://192.0.2.1:1"
    assert read(line).verdict == "starting"
    assert read(line.replace("Router (Rust)", "Other (Rust)")).verdict == "unknown"
