"""How a test tells the stub what to do: TOML files by port, and STUB_* variables (tests/stub/README.md)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

# Later ones win. The environment variable lets several stubs on one host have files of their own.
DIRECTORIES = ("/etc/stub-engine", "/run/stub-engine")
STARTS = "/var/lib/stub-engine"


@dataclass
class Control:
    """One start's orders. Units: seconds in *_s and in `delay`."""

    first: int = 0  # only the first so many starts misbehave (0: all); counted in <state>/<port>.starts
    delay: dict[str, float] = field(default_factory=dict)
    shards: int = 4
    prints: dict[str, str] = field(default_factory=dict)
    hang: str = ""
    fail: dict[str, Any] = field(default_factory=dict)
    flood: dict[str, Any] = field(default_factory=dict)
    replay: dict[str, Any] = field(default_factory=dict)
    health: str = "auto"
    health_delay_s: float = 0.0
    warmup: str = "ok"
    die_after_ready: dict[str, Any] = field(default_factory=dict)
    ignore_term: bool = False
    drain_s: float = 0.05
    crash_s: float = 0.5
    generate_delay_s: float = 0.0
    bootstrap_tries: int = 15
    bootstrap_pause_s: float = 1.0
    transfer_timeout_s: float = 30.0
    kv_tokens: int = 2_580_000
    max_running_requests: int = 2048


def _from_files(port: int) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    override = os.environ.get("STUB_ENGINE_DIR")
    for directory in (override,) if override else DIRECTORIES:
        path = Path(directory) / f"{port}.toml"
        if path.exists():
            import tomllib  # only then: the stub starts faster than a model by a wide margin

            settings.update(tomllib.loads(path.read_text()))
    return settings


def _from_environment(known: set[str]) -> dict[str, Any]:
    """STUB_HANG=weights, STUB_DELAY='{weights = 2}': the value as TOML, or else as plain text."""
    settings: dict[str, Any] = {}
    for key, text in os.environ.items():
        name = key[len("STUB_") :].lower()
        if key.startswith("STUB_") and name in known:
            import tomllib

            try:
                settings[name] = tomllib.loads(f"value = {text}")["value"]
            except tomllib.TOMLDecodeError:
                settings[name] = text
    return settings


def _count_start(port: int) -> int:
    """The number of this start on this port, from 1, kept on disk; 1 where nothing can be written."""
    directory = Path(os.environ.get("STUB_ENGINE_STATE", STARTS))
    counter = directory / f"{port}.starts"
    try:
        number = int(counter.read_text()) + 1 if counter.exists() else 1
        counter.write_text(f"{number}\n")
    except OSError:
        return 1
    return number


def load(port: int) -> Control:
    """The orders for this start. Raises: TypeError for a key that does not exist."""
    number = _count_start(port)
    settings = _from_files(port)
    settings.update(_from_environment({item.name for item in fields(Control)}))
    control = Control(**settings)
    if control.first and number > control.first:
        # Well-behaved from here on; how long things take is not misbehaviour.
        return Control(delay=control.delay, shards=control.shards, drain_s=control.drain_s)
    return control
