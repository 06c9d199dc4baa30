"""Takes a backend out of its router before it is restarted, and brings it back: no request is sent into a
stop.

A router that knows nothing of a restart goes on choosing the instance until its health checks fail, and a
request that was sent to one half of a stopping pair hangs in the other half. What the router was started with
(`--prefill URL PORT`, `--decode URL`) says what to add again: a router that is restarted meanwhile has all of
its workers by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pd_units.adapters.http import fetch
from pd_units.execstart import exec_start
from pd_units.index import IndexUnit
from pd_units.naming import Names, Role
from pd_units.ports import ActiveState, Clock, Manager
from pd_units.router_api import smoke_headers

_ANSWER_S = 5.0
# The removal is a job in the router's background: it is done within milliseconds.
_GONE_S = 5.0
_LOOK_S = 0.1

Say = Callable[[str], None]


def declared_workers(argv: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What to add to a router for each worker of its command line: URL -> body of `POST /workers`."""
    found: dict[str, dict[str, Any]] = {}
    key = _value_of(argv, "--api-key")
    for position, word in enumerate(argv):
        following = argv[position + 1 : position + 3]
        if word not in ("--prefill", "--decode") or not following:
            continue
        url = following[0].rstrip("/")
        body: dict[str, Any] = {"url": url, "worker_type": word.removeprefix("--")}
        if word == "--prefill" and len(following) > 1 and following[1].isdigit():
            body["bootstrap_port"] = int(following[1])
        found[url] = body | ({"api_key": key} if key else {})
    return found


def _value_of(argv: Sequence[str], option: str) -> str:
    for position, word in enumerate(argv):
        if word == option and position + 1 < len(argv):
            return argv[position + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


class Router:
    """The running router of a deployment. Every failure to reach it is said and lived with: its health checks
    do the same, later."""

    def __init__(self, names: Names, declared: IndexUnit, manager: Manager, clock: Clock, say: Say) -> None:
        self._names, self._declared = names, declared
        self._manager, self._clock, self._say = manager, clock, say

    def take_out(self, url: str) -> bool:
        """Have the router send nothing more to a worker; whether it does."""
        argv, rows = self._workers()
        row = rows.get(url.rstrip("/"))
        if row is None or not row.get("id"):
            return False
        self._ask(argv, "DELETE", f"/workers/{row['id']}")
        deadline = self._clock.monotonic() + _GONE_S
        while url.rstrip("/") in self._workers()[1]:
            if self._clock.monotonic() >= deadline:
                self._say(f"the router did not let go of {url}: requests to it may fail while it restarts")
                return False
            self._manager.pump(_LOOK_S)
        return True

    def bring_back(self, urls: Sequence[str]) -> None:
        """Add those of these workers that the router was started with and lacks."""
        argv, rows = self._workers()
        known = declared_workers(argv)
        for url in (each.rstrip("/") for each in urls):
            if argv and url in known and url not in rows:
                self._ask(argv, "POST", "/workers", known[url])

    def _workers(self) -> tuple[tuple[str, ...], Mapping[str, Mapping[str, Any]]]:
        """The router's command line, () if it is not up, and its workers by URL."""
        status = self._manager.unit(self._declared.unit)
        if status.active_state is not ActiveState.ACTIVE or not status.main_pid:
            return (), {}
        argv = exec_start(self._names, self._declared.unit)
        answer = fetch(f"{self._declared.url}/workers", headers=smoke_headers(argv), timeout_s=_ANSWER_S)
        value = answer.json()
        rows = value.get("workers") if isinstance(value, dict) else None
        if answer.status != 200 or not isinstance(rows, list):
            return (), {}
        return argv, {str(row.get("url", "")).rstrip("/"): row for row in rows if isinstance(row, dict)}

    def _ask(
        self, argv: Sequence[str], method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> None:
        text = json.dumps(body).encode() if body is not None else b""
        headers = smoke_headers(tuple(argv))
        url = f"{self._declared.url}{path}"
        answer = fetch(url, method=method, body=text, headers=headers, timeout_s=_ANSWER_S)
        if answer.status not in (200, 201, 202, 204):
            why = answer.error or f"{answer.status}: {answer.body[:120].decode('utf-8', 'replace')}"
            self._say(f"the router refused {method} {path}: {why}")


def is_routed(declared: IndexUnit) -> bool:
    """Whether a unit gets its requests from a router."""
    return declared.role in (Role.PREFILL, Role.DECODE)
