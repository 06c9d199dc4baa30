"""Start-up logs with known verdicts (tests/cases/*.case), expanded from a short notation.

A case is a head of `key = value` lines, `---`, and the log. In the log `[@12 TP0]` is the engine's stamp 12
seconds after the first one, `[@12 {TP0, TP1}]` the same line of several ranks, `[@!12]` a stamp without a
date, `[@~12]` a diffusion server's; `<args call MODEL>` and `<args dict MODEL>` are the echo of all settings,
with `long` cut by the journal at 48 KiB and `<args tail>` its rest; `<bar LABEL 1/4>` and `<tqdm LABEL 1/4>`
are progress bars; `\\r` and `\\e` are themselves; `+12.5 ` at the start of a line is its time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).parents[1] / "cases"
_JOURNAL_CUT = 48 * 1024
_STAMP = re.compile(r"\[@(?P<kind>[!~]?)(?P<at>\d+)(?P<tags>[^\]]*)\]")
_ARGS = re.compile(
    r"<args (?P<kind>call|dict)(?P<colon> colon)? (?P<model>\S+?)"
    r"(?: (?P<role>prefill|decode))?(?P<long> long)?>"
)
_BAR = re.compile(r"<(?P<kind>bar|tqdm) (?:(?P<label>[^<>]*?) )?(?P<done>\d+)/(?P<total>\d+)>")
_TIME = re.compile(r"\+(?P<time>\d+(?:\.\d+)?) ")
_SETTINGS = {
    "tokenizer_mode": "'auto'",
    "trust_remote_code": "True",
    "quantization": "None",
    "context_length": "None",
    "mem_fraction_static": "0.85",
    "abort_on_priority_when_disabled": "False",
    "crash_dump_folder": "None",
    "custom_sigquit_handler": "None",
    "watchdog_timeout": "300",
    "enforce_shared_experts_fusion": "False",
    "debug_tensor_dump_inject": "False",
    "chat_template": "\"{{ raise_exception('error: Traceback') }}\"",
    "disaggregation_transfer_backend": "'nixl'",
    "disaggregation_bootstrap_port": "8998",
    "enable_nan_detection": "False",
    "log_level": "'info'",
    "random_seed": "7",
}
_TEMPLATE = "{%- if not messages %}{{ raise_exception('No messages given: CUDA out of memory') }}{%- endif %}"


@dataclass(frozen=True)
class LogCase:
    """A log, and what must be said of it. `exit_status` as systemd names it, None while it runs."""

    name: str
    verdict: str
    cause: str
    exit_status: str | None
    engine: str
    role: str
    lines: tuple[str, ...]
    times: tuple[float, ...]

    @property
    def newest_life(self) -> int:
        """The index of the line with which the newest life begins."""
        starts = [
            n
            for n, line in enumerate(self.lines)
            if "server_args" in line or re.search(r"systemd\[1\]: Started ", line)
        ]
        return starts[-1] if starts else 0


def load_cases() -> list[LogCase]:
    """Every case, by name."""
    return [read_case(path) for path in sorted(CASES.glob("*.case"))]


def read_case(path: Path) -> LogCase:
    """One case, expanded."""
    head, _, body = path.read_text(encoding="utf-8").partition("\n---\n")
    keys = dict(re.findall(r"^(\w+) = (.*)$", head, re.M))
    lines: list[str] = []
    times: list[float] = []
    now = 0.0
    for written in body.removesuffix("\n").split("\n"):
        timed = _TIME.match(written)
        if timed is not None:
            now, written = float(timed["time"]), written[timed.end() :]
        stamp = _STAMP.search(written)
        if stamp is not None and timed is None and not stamp["kind"]:
            now = max(now, float(stamp["at"]))
        for line in expand(written):
            lines.append(line)
            times.append(now)
    exit_status = keys["exit"] if keys["exit"] != "-" else None
    return LogCase(
        path.stem, keys["verdict"], keys["cause"], exit_status, keys["engine"], keys["role"],
        tuple(lines), tuple(times),
    )  # fmt: skip


def expand(written: str) -> list[str]:
    """The lines of a log that one written line stands for."""
    text = _BAR.sub(_bar, written.replace("\\r", "\r").replace("\\e", "\x1b"))
    if text == "<args tail>":
        return [_long_settings("call", "/m/x", None)[_JOURNAL_CUT:]]
    text = _ARGS.sub(_args, text)
    stamp = _STAMP.search(text)
    ranks = re.search(r"\{(.*?)\}", stamp["tags"]) if stamp else None
    if stamp is None or ranks is None:
        return [_STAMP.sub(_stamp, text)]
    return [
        text[: stamp.start()] + _clock(stamp, f" {rank}") + text[stamp.end() :]
        for rank in ranks[1].split(", ")
    ]


def _stamp(match: re.Match[str]) -> str:
    return _clock(match, match["tags"])


def _clock(match: re.Match[str], tags: str) -> str:
    hours, rest = divmod(3 * 3600 + int(match["at"]), 3600)
    clock = f"{hours % 24:02d}:{rest // 60:02d}:{rest % 60:02d}"
    day = {"": "2026-01-02 ", "!": "", "~": "01-02 "}[match["kind"]]
    return f"[{day}{clock}{tags}]"


def _args(match: re.Match[str]) -> str:
    if match["long"]:
        return _long_settings(match["kind"], match["model"], match["role"])[:_JOURNAL_CUT]
    equals = ": " if match["colon"] else "="
    return f"server_args{equals}{settings(match['kind'], match['model'], match['role'])}"


def settings(kind: str, model: str, role: str | None = None, template: str = "") -> str:
    """The engine's settings, as a call or as a dict, with words in them that mean nothing."""
    mode = ("disaggregation_mode", f"'{role or 'null'}'")
    pairs = [("model_path", f"'{model}'"), *_SETTINGS.items(), mode]
    if template:
        pairs.insert(3, ("chat_template_text", f'"{template}"'))
    if kind == "dict":
        return "{" + ", ".join(f"'{key}': {value}" for key, value in pairs) + "}"
    return "ServerArgs(" + ", ".join(f"{key}={value}" for key, value in pairs) + ")"


def _long_settings(kind: str, model: str, role: str | None) -> str:
    return "server_args=" + settings(kind, model, role, _TEMPLATE * (_JOURNAL_CUT // len(_TEMPLATE)))


def _bar(match: re.Match[str]) -> str:
    done, total, label = int(match["done"]), int(match["total"]), match["label"]
    percent = 100 * done // max(total, 1)
    rate = "?it/s" if not done else "1.53it/s"
    clock = f"[{done // 60:02d}:{done % 60:02d}<{'?' if not done else '00:09'}, {rate:>9}]"
    lead = f"{label}: " if label else ""
    if match["kind"] == "bar":
        return f"{lead}{percent:3d}% Completed | {done}/{total} {clock}"
    return f"{lead}{percent:3d}%|{'█' * (percent // 10):10}| {done}/{total} {clock}"
