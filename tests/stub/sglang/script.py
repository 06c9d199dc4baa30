"""What a rank says in each phase, by version. Texts as recorded from 0.5.13, and as released in 0.5.23."""

from __future__ import annotations

import argparse
import time
import uuid

from sglang.control import Control
from sglang.output import Output
from sglang.trouble import Trouble

# In order. `args` and from `uvicorn` on speak in the main process, the others in the ranks.
RANK_PHASES = ("init", "weights", "kv", "graph", "nixl")
NOISE = "Ignore import error when loading sglang.srt.models.{}: No module named 'tilelang'"


class Rank:
    """One scheduler process's story. `newer`: 0.5.23's wording instead of 0.5.13's."""

    def __init__(
        self, args: argparse.Namespace, control: Control, out: Output, trouble: Trouble | None, *, newer: bool
    ) -> None:
        self.args, self.control, self.out, self.trouble, self.newer = args, control, out, trouble, newer

    def pause(self, phase: str) -> float:
        """Spends the phase's time, makes the trouble ordered for it, and returns the seconds spent."""
        seconds = float(self.control.delay.get(phase, 0.0))
        time.sleep(seconds)
        if self.trouble is not None:
            self.trouble.at(phase)
        return seconds

    def tell(self, phase: str) -> None:
        getattr(self, f"_{phase}")()

    def _init(self) -> None:
        begin = "Init torch distributed begin."
        end = "Init torch distributed ends. elapsed={:.2f} s, mem usage=0.09 GB"
        if self.newer:
            begin, end = "Init parallel begin.", "Init parallel ends. elapsed={:.2f} s"
        self.out.line(begin)
        if self.args.tp > 1:
            self.out.line("sglang is using nccl==2.28.9")
        self.out.line(end.format(self.pause("init")))
        if self.newer:
            self.out.line("Memory baseline taken. mem usage=0.09 GB")
        for model in ("deepseek_v4", "deepseek_v4_nextn"):
            self.out.line(NOISE.format(model), "warning")

    def _weights(self) -> None:
        self.out.line("Load weight begin. avail mem=94.13 GB")
        shards, total_s = max(1, self.control.shards), float(self.control.delay.get("weights", 0.0))
        for done in range(shards + 1):
            self.out.bar("Loading safetensors checkpoint shards", done, shards)
            if done == shards // 2 and self.trouble is not None:
                self.trouble.at("weights")
            if done < shards:
                time.sleep(total_s / shards)
        self.out.line(
            f"Load weight end. elapsed={total_s:.2f} s, type=DeepseekV4ForCausalLM, avail mem=56.03 GB, "
            "mem usage=38.10 GB."
        )

    def _kv(self) -> None:
        self.pause("kv")
        self.out.line(
            f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {self.control.kv_tokens}, "
            "K size: 9.84 GB, V size: 9.84 GB"
        )
        self.out.line("Memory pool end. avail mem=35.19 GB")

    def _graph(self) -> None:
        if self.args.mode == "prefill" or self.args.disable_cuda_graph:
            self.pause("graph")
        elif self.newer:
            what = "Capture target decode CUDA graph"
            self.out.line(f"{what} begin. backend=full, num_tokens_per_req=1, avail mem=35.19 GB")
            elapsed_s = self._capture()
            memory = "mem usage=0.40 GB, avail mem=34.79 GB."
            self.out.line(f"{what} end. bs=[1, 2], elapsed={elapsed_s:.2f} s, {memory}")
        else:
            self.out.line("Capture cuda graph begin. This can take up to several minutes. avail mem=35.19 GB")
            self.out.line("Capture cuda graph bs [1, 2]")
            elapsed_s = self._capture()
            self.out.line(
                f"Capture cuda graph end. Time elapsed: {elapsed_s:.2f} s. "
                "mem usage=0.40 GB. avail mem=34.79 GB."
            )
        if self.out.prefix in ("", " TP0"):
            running = self.args.max_running_requests or self.control.max_running_requests
            self.out.line(
                f"max_total_num_tokens={self.control.kv_tokens}, chunked_prefill_size=8192, "
                f"max_prefill_tokens=16384, max_running_requests={running}, "
                f"context_len={self.args.context_length or 4096}, available_gpu_mem=34.70 GB"
            )
            self.out.line(
                "Tree cache initialized: source=default impl=RadixCache hybrid_swa=False hybrid_ssm=False"
            )

    def _capture(self) -> float:
        for done, batch in enumerate((2, 1)):
            self.out.bar(f"Capturing batches (bs={batch} avail_mem=34.79 GB)", done, 2)
        seconds = self.pause("graph")
        self.out.bar("Capturing batches (bs=1 avail_mem=34.79 GB)", 2, 2)
        return seconds

    def _nixl(self) -> None:
        if not self.args.mode or (self.args.disaggregation_transfer_backend or "mooncake") != "nixl":
            return
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.out.raw(f"{stamp} NIXL INFO    _api.py:281 Initialized NIXL agent: {uuid.uuid4()}\n")
        self.pause("nixl")
        self.out.raw(f"{stamp} NIXL INFO    _api.py:405 Backend UCX was instantiated\n")
        self.out.line("NIXL KVManager initialized with backend: UCX")
