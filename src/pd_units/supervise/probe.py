"""The questions to a server about its health: which path, when, and what an answer is worth."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pd_units.adapters.http import Answer, Request
from pd_units.adapters.procfs import holds_port

# `/health` is a generation: the engine itself gives it 20 s.
_TIMEOUT_S = 30.0
_LOADING_S = 2.0
_NEARLY_READY_S = 0.5
_MOST_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer: `status` None if there was none; `own`: a process of the unit gave it; `took_s` seconds."""

    path: str
    status: int | None
    own: bool
    took_s: float
    error: str = ""
    generated: bool = False

    @property
    def counts(self) -> bool:
        """Whether it can speak for readiness: `/ready` only says whether asking for more makes sense."""
        return self.path != "/ready"


@dataclass(slots=True)
class _Asked:
    path: str
    at: float
    request: Request
    own: bool


class HealthProbe:
    """Asks one server, several questions at once if need be; nothing blocks.

    While the engine loads, `/ready` is asked where the engine has it (from 0.5.23 on): it costs no
    generation. The verdict rests on `/health`, which generates: `/ready` is 200 with a dead detokenizer too.
    """

    def __init__(self, url: str, main_pid: int) -> None:
        self._url, self._main_pid = url.rstrip("/"), main_pid
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._asked: list[_Asked] = []
        self._next_at = 0.0
        self._urgent_at = -1.0
        self._has_ready = True  # until it says otherwise
        self._up = False
        self._no_generation = False  # there is no /health_generate

    def requests(self) -> list[Request]:
        """The requests to poll for."""
        return [asked.request for asked in self._asked if asked.request.fileno() >= 0]

    def step(self, now: float, *, line_at: float | None, generation: bool) -> list[Answered]:
        """Take the answers that are there, and ask what is due; the answers, oldest question first.

        `line_at`: when the ready line was seen: `/health` is asked at once then. `generation`: a generation
        is all that is missing.
        """
        answers = self._take(now, nearly=line_at is not None)
        if line_at is not None and self._urgent_at < line_at:
            self._urgent_at = now
            self._ask("/health", now)
        elif not self._asked and now >= self._next_at:
            self._ask(self._path(line_at is not None, generation), now)
        return answers

    def _path(self, line_seen: bool, generation: bool) -> str:
        if generation and not self._no_generation:
            return "/health_generate"
        return "/ready" if self._has_ready and not (self._up or line_seen) else "/health"

    def _ask(self, path: str, now: float) -> None:
        while len(self._asked) >= _MOST_AT_ONCE:
            self._asked.pop(0).request.close()
        request = Request(self._url + path, timeout_s=_TIMEOUT_S).start()
        answer = request.step()
        # Who listens is looked up while the server works: it is who has taken this very connection.
        own = answer is None and holds_port(self._main_pid, self._port, self._host)
        self._asked.append(_Asked(path, now, request, own))

    def _take(self, now: float, *, nearly: bool) -> list[Answered]:
        answers = []
        for asked in list(self._asked):
            answer = asked.request.step()
            if answer is None:
                continue
            self._asked.remove(asked)
            self._next_at = now + self._pause(asked.path, answer, nearly=nearly)
            if asked.path != "/health" and answer.status is not None and 400 <= answer.status < 500:
                continue  # there is no such path
            own = answer.status is not None and asked.own
            proves = asked.path == "/health_generate" or self._no_generation
            took_s = now - asked.at
            answers.append(Answered(asked.path, answer.status, own, took_s, answer.error, proves))
        return answers

    def _pause(self, path: str, answer: Answer, *, nearly: bool) -> float:
        """Learn from an answer; how long to wait before the next question, in seconds."""
        status = answer.status
        missing = status is not None and 400 <= status < 500
        if path == "/ready":
            self._has_ready = not missing
            self._up = status == 200
            return 0.0 if missing or self._up else _LOADING_S
        if path == "/health_generate" and missing:
            self._no_generation = True
            return 0.0
        self._up = self._up and status == 200
        return _NEARLY_READY_S if nearly or status == 200 else _LOADING_S

    def close(self) -> None:
        """Give all questions up."""
        for asked in self._asked:
            asked.request.close()
        self._asked.clear()
