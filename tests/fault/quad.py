"""Two pairs behind one router, and a client that counts what comes back through it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from rig.box import Box

UNITS = (
    "quad-prefill-0.service",
    "quad-prefill-1.service",
    "quad-decode-0.service",
    "quad-decode-1.service",
    "quad-router.service",
)
TEXT = """
[deployment]
name = "quad"

[engine]
kind = "sglang"
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"

[engine.args]
mem-fraction-static = {fraction}

[[prefill]]
gpus = [0]
numa = "none"
port = 30000
bootstrap_port = 8998
dist_init_port = 30335

[[prefill]]
gpus = [1]
numa = "none"
port = 30010
bootstrap_port = 8999
dist_init_port = 30345

[[decode]]
gpus = [2]
numa = "none"
port = 30002
dist_init_port = 30435
{decode}

[[decode]]
gpus = [3]
numa = "none"
port = 30012
dist_init_port = 30445
{decode}

[router]
host = "127.0.0.1"
port = 30001
python = "/opt/router/bin/python"

[readiness]
timeout = "2min"
"""
# Asks without a pause until told to stop; one line of JSON at the end: what came back when.
CLIENT = """
import json, os, sys, time, urllib.error, urllib.request
body = json.dumps({"text": "hello", "sampling_params": {"max_new_tokens": 8}}).encode()
seen = []
while not os.path.exists("/run/client.stop"):
    began = time.monotonic()
    request = urllib.request.Request(
        "http://127.0.0.1:30001/generate", body, {"Content-Type": "application/json"}
    )
    try:
        answer = urllib.request.urlopen(request, timeout=30)
        status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except OSError as error:
        status, text = 0, str(error)
    seen.append([round(began, 3), round(time.monotonic() - began, 3), status, text[:120]])
    time.sleep(0.05)
print(json.dumps(seen))
"""


def quad(fraction: str, decode: str = "") -> str:
    """The deployment's file; `fraction` is an argument of every engine, `decode` a line of each decode."""
    return TEXT.replace("{fraction}", fraction).replace("{decode}", decode)


class Client:
    """Generations through the router, one after the other, while something is done to the deployment."""

    def __init__(self, box: Box) -> None:
        self._box = box
        box.run(["rm", "-f", "/run/client.stop"]).check()
        self._process: subprocess.Popen[str] = box.popen(["python3", "-I", "-c", CLIENT])

    def stop(self) -> list[Any]:
        """Every answer: (when, how long, HTTP status or 0, text)."""
        self._box.run(["touch", "/run/client.stop"]).check()
        out, err = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, err
        answers: list[Any] = json.loads(out)
        return answers
