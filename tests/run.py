#!/usr/bin/env python3
"""One command for a newcomer, one for all tests; both work from a clean clone on Debian or Ubuntu, as root.

    sudo python3 tests/run.py demo    a throw-away box: `pd-units install`, a completion through the router
    sudo python3 tests/run.py all     ruff, mypy and every test, those on booted systemd 252 and 257 included
    python3 tests/run.py all --fast   without the booted ones

What is missing is installed with apt (and named first), Python packages go into .cache/venv, box images into
.cache/pd-units-boxes. Nothing else on this machine is touched, and nothing keeps running afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
VENV = ROOT / ".cache" / "venv"
PYTHON = VENV / "bin" / "python"

from rig.box import Box, BoxError  # noqa: E402  (tests/ is on the path because this script lies there)
from rig.host import MACHINE_NEEDS, NEEDS, SYSTEM_PYTHON, install_missing_packages  # noqa: E402
from rig.product import build_wheels, image_for  # noqa: E402

DEMO_SYSTEMD = 257
DEMO_FILE = "/etc/pd-units/sglang-dsv4.toml"
DEMO_DEPLOYMENT = """\
# DeepSeek-V4-Flash on eight GPUs, as the preset dsv4-pd, with the stub engine in place of sglang.
[deployment]
name = "sglang-dsv4"

[engine]
kind = "sglang"
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"

[engine.sm120]
SGLANG_SM120_MMA_FLASHMLA = "1"
SGLANG_SM120_TRITON_INDEXER = "1"

[engine.args]
trust-remote-code = true
served-model-name = "deepseek-v4-flash"
reasoning-parser = "deepseek-v4"
tool-call-parser = "deepseekv4"

[[prefill]]
gpus = [0, 1, 2, 3]
numa = "none"
port = 30000
bootstrap_port = 8998
dist_init_port = 30335
args = { mem-fraction-static = 0.70 }

[[decode]]
gpus = [4, 5, 6, 7]
numa = "none"
port = 30002
dist_init_port = 30435
args = { mem-fraction-static = 0.60 }

[router]
host = "0.0.0.0"
port = 30001
python = "/opt/router/bin/python"
"""
# Long enough that the phases can be seen going by.
DEMO_DELAYS = "delay = { init = 0.5, weights = 2.0, graph = 1.0, warmup = 0.5 }\n"
QUESTION = {
    "model": "deepseek-v4-flash",
    "messages": [{"role": "user", "content": "Are you there?"}],
    "max_tokens": 32,
}


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def need_root() -> None:
    if os.geteuid() != 0:
        raise SystemExit("booting a box needs root: run this with sudo")


def base_python(minimum: tuple[int, int]) -> str:
    """The distribution's Python, which sees its python3-* packages, or this one. Raises: SystemExit."""
    for python in (SYSTEM_PYTHON, sys.executable):
        ask = "import sys; sys.exit(sys.version_info[:2] < " + repr(minimum) + ")"
        if Path(python).exists() and subprocess.run([python, "-c", ask]).returncode == 0:
            return python
    raise SystemExit(f"Python {minimum[0]}.{minimum[1]} is needed: Debian 12, Ubuntu 24.04, or newer")


def make_venv(requirements: list[str], minimum: tuple[int, int]) -> None:
    """Brings .cache/venv up to date; does nothing if it already has the same requirements."""
    python = base_python(minimum)
    pyproject = (ROOT / "pyproject.toml").read_text()
    wanted = hashlib.sha256("\0".join([python, pyproject, *requirements]).encode()).hexdigest()
    stamp = VENV / "made-of"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("Python packages into .cache/venv")
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([python, "-m", "venv", "--system-site-packages", str(VENV)], check=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *requirements], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pip could not install {' '.join(requirements)}\n{done.stdout}{done.stderr}")
    stamp.write_text(wanted)


def run_in_box(box: Box, argv: list[str], *, user: str = "root") -> int:
    """Runs a command in the box with its output on our terminal, as a person would see it."""
    print(f"\n{'#' if user == 'root' else '$'} {' '.join(argv)}", flush=True)
    return subprocess.run(box.argv(argv, user=user), stdin=subprocess.DEVNULL).returncode


def demo() -> int:
    """A served completion on a bare box. Returns: the exit code."""
    need_root()
    install_missing_packages()
    make_venv(["hatchling>=1.21"], (3, 9))
    say(f"box image with systemd {DEMO_SYSTEMD}")
    image = image_for(DEMO_SYSTEMD, str(PYTHON))
    before = time.monotonic()
    with Box(image) as box:
        say(f"booted in {time.monotonic() - before:.1f} s; {DEMO_FILE}:")
        print(DEMO_DEPLOYMENT)
        box.write(DEMO_FILE, DEMO_DEPLOYMENT)
        for port in (30000, 30002):
            box.write(f"/etc/stub-engine/{port}.toml", DEMO_DELAYS)
        steps = [
            (["pd-units", "install", "--skip", "gpu"], "root"),  # there is no GPU driver in the box
            (["pd-units", "wait-ready"], "operator"),
        ]
        for argv, user in steps:
            if rc := run_in_box(box, argv, user=user):
                say(f"failed: {argv[1]} ended with {rc}")
                return 1
        print("\n$ curl http://127.0.0.1:30001/v1/chat/completions", flush=True)
        status, text = box.http("http://127.0.0.1:30001/v1/chat/completions", QUESTION)
        print(text)
        completion = json.loads(text)["choices"][0]["message"]["content"] if status == 200 else ""
        table = run_in_box(box, ["pd-units", "status"], user="operator")
    if table or "stub engine 30000 and 30002" not in completion:
        say(f"failed: HTTP {status}, status ended with {table}")
        return 1
    print()
    say(f"the completion that came back through the router: {completion}")
    return 0


def step(name: str, argv: list[str], environment: dict[str, str]) -> bool:
    """Runs one check with its output on our terminal; whether it passed."""
    say(name)
    before = time.monotonic()
    rc = subprocess.run(argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL).returncode
    say(f"{name}: {'passed' if rc == 0 else f'FAILED ({rc})'} in {time.monotonic() - before:.0f} s")
    return rc == 0


def all_tests(*, fast: bool, more: list[str]) -> int:
    """Every check; goes on after a failure, so that one run shows all. Returns: the exit code."""
    if not fast:
        need_root()
        install_missing_packages({**NEEDS, **MACHINE_NEEDS})
    make_venv(["hatchling>=1.21", "pytest-xdist>=3.5", "-e", ".[dev]"], (3, 11))
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONHOME", None)
    pytest = [str(PYTHON), "-m", "pytest", "-q", "-n", str(os.cpu_count() or 2), "--dist=worksteal"]
    if fast:
        pytest += ["-m", "not booted and not numa"]
    else:
        # Everything that a test could miss was just installed: a skip is a failure here.
        pytest += ["-p", "rig.no_skips", "--durations=10"]
        environment["PD_UNITS_WHEELS"] = str(build_wheels(str(PYTHON)))
        say("box images")
        for systemd in (252, 257):
            image_for(systemd, str(PYTHON))
    passed = [
        step("ruff", [str(VENV / "bin" / "ruff"), "check", "."], environment),
        step("mypy", [str(VENV / "bin" / "mypy"), "--strict"], environment),
        step("pytest", [*pytest, *more], environment),
    ]
    return 0 if all(passed) else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["demo", "all"])
    parser.add_argument("--fast", action="store_true", help="all: leave out the tests on booted boxes")
    parser.add_argument("more", nargs="*", help="all: further arguments for pytest, after --")
    asked = parser.parse_args()
    try:
        return demo() if asked.what == "demo" else all_tests(fast=asked.fast, more=asked.more)
    except BoxError as error:
        say(f"failed: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
