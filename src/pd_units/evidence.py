"""The words of a diagnosis: verdicts, causes, strengths, and the frozen records that carry them.

No text is matched here; `pd_units.diagnosis` produces these, everything else only reads them.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What became of one start. `READY` speaks of the start, also where the process died later."""

    READY = "ready"
    FAILED = "failed"
    STARTING = "starting"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """Why a start failed (the closed list of the contract), `NONE` when it did not."""

    BAD_ARGUMENT = "bad-argument"
    IMPORT_ERROR = "import-error"
    MISSING_MODEL = "missing-model"
    UNSUPPORTED_MODEL = "unsupported-model"
    UNSUPPORTED_ARCH = "unsupported-arch"
    TOOLCHAIN = "toolchain"
    WEIGHTS_MISMATCH = "weights-mismatch"
    OOM_WEIGHTS = "oom-weights"
    OOM_KV_CACHE = "oom-kv-cache"
    CUDA_GRAPH_OOM = "cuda-graph-oom"
    CUDA_GRAPH = "cuda-graph"
    ILLEGAL_MEMORY = "illegal-memory"
    CUDA_ERROR = "cuda-error"
    NCCL = "nccl"
    PORT_IN_USE = "port-in-use"
    DISAGGREGATION = "disaggregation"
    GPU_OCCUPIED = "gpu-occupied"
    FD_LIMIT = "fd-limit"
    SEGFAULT = "segfault"
    BUS_ERROR = "bus-error"
    KILLED_BY_KERNEL = "killed-by-kernel"
    CHILD_DIED = "child-died"
    WARMUP_FAILED = "warmup-failed"
    WATCHDOG_TIMEOUT = "watchdog-timeout"
    TIMEOUT = "timeout"
    NO_PROGRESS = "no-progress"
    ASSERTION = "assertion"
    UNKNOWN = "unknown"
    NONE = "none"


NOT_RETRIED = frozenset(
    {
        Cause.BAD_ARGUMENT,
        Cause.IMPORT_ERROR,
        Cause.MISSING_MODEL,
        Cause.UNSUPPORTED_MODEL,
        Cause.UNSUPPORTED_ARCH,
        Cause.TOOLCHAIN,
        Cause.WEIGHTS_MISMATCH,
    }
)
"""Causes that the same start meets again: nothing is gained by an automatic restart."""


class Strength(StrEnum):
    """How much one text proves."""

    DECISIVE = "decisive"  # the start has failed, whatever the process still does
    SUSPICIOUS = "suspicious"  # names the cause, but only if the process ends or progress stops
    SYMPTOM = "symptom"  # something died; the cause stands elsewhere, before or after
    BENIGN = "benign"  # looks fatal, is not: nothing on this line counts


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line that speaks for the verdict. `line` counts from 1, None where lines have no number."""

    line: int | None
    text: str
    strength: Strength
    rule: str = ""
    cause: Cause = Cause.UNKNOWN


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: an exit code or the number of the signal that killed it, never both."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def parse(cls, text: str) -> ExitStatus | None:
        """The status written as systemd, a shell or Python writes it; None for an empty text or "-".

        Accepts "2", "137" (a shell's 128+N), "-9" (Python's), "SIGKILL", "KILL", "9/KILL" and
        "killed, status=9/KILL". Raises ValueError for anything else.
        """
        word = text.strip()
        if word in ("", "-"):
            return None
        for lead in ("code=", "killed,", "exited,", "dumped,", "status="):
            word = word.removeprefix(lead).strip()
        number, _, name = word.partition("/")
        if name and number.isdigit():
            known = getattr(signal, f"SIG{name}", None)
            return cls(signal=int(known)) if known == int(number) else cls(code=int(number))
        try:
            value = int(word)
        except ValueError:
            return cls._from_name(word, text)
        if value < 0:
            return cls(signal=-value)
        if 128 < value <= 128 + 64:
            return cls(signal=value - 128)
        return cls(code=value)

    @classmethod
    def _from_name(cls, word: str, text: str) -> ExitStatus:
        name = word.upper()
        if not name.startswith("SIG"):
            name = "SIG" + name
        try:
            return cls(signal=int(signal.Signals[name]))
        except KeyError:
            raise ValueError(f"not an exit status: {text!r}") from None

    @property
    def clean(self) -> bool:
        """True for exit code 0."""
        return self.code == 0

    @property
    def asked_for(self) -> bool:
        """True for the signals that an operator or systemd stops a process with."""
        return self.signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __str__(self) -> str:
        if self.signal is not None:
            try:
                return signal.Signals(self.signal).name
            except ValueError:
                return f"signal {self.signal}"
        return f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Progress:
    """A moving bar: `done` of `total`, and what is counted ("shards", "graphs", ...)."""

    done: int
    total: int
    what: str

    def __str__(self) -> str:
        return f"{self.done}/{self.total}"


@dataclass(frozen=True, slots=True)
class Warning_:
    """Something that makes a good start slower or riskier, seen `count` times, and what to do."""

    name: str
    text: str
    advice: str
    count: int = 1
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process that had been ready: when (`line`), and of what."""

    cause: Cause
    line: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a log says of its newest start.

    `verdict` speaks of the start alone. A death after readiness leaves it at `READY`, sets `death`,
    and puts the death's cause into `cause`. `retryable` is False for causes that a restart meets again.
    """

    verdict: Verdict
    cause: Cause
    phase: str | None = None
    progress: Progress | None = None
    evidence: tuple[Evidence, ...] = ()
    advice: str = ""
    warnings: tuple[Warning_, ...] = ()
    capacity: Mapping[str, int | float] = field(default_factory=dict)
    retryable: bool = True
    was_ready: bool = False
    death: Death | None = None
    lives: int = 1
    note: str = ""
