"""What a router is asked, and how its answers are read: `/workers`, and one short generation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pd_units.adapters.http import Answer

# The first generation over NIXL takes 5 to 40 s while UCX warms up.
SMOKE_TIMEOUT_S = 120.0
SMOKE_BODY = json.dumps(
    {"text": "One, two, three,", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
).encode()


def missing_workers(workers: Any, declared: Iterable[str]) -> list[str]:
    """The declared worker URLs that `GET /workers` does not count as healthy.

    Shape of `workers`: {"workers": [{"url", "is_healthy", ...}, ...], ...} (sglang-router 0.3.2).
    """
    found = workers.get("workers") if isinstance(workers, dict) else None
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    healthy = {str(row.get("url", "")).rstrip("/") for row in rows if row.get("is_healthy")}
    return [url for url in declared if url.rstrip("/") not in healthy]


def smoke_headers(argv: tuple[str, ...]) -> dict[str, str]:
    """The Authorization header that a router started with `--api-key` wants."""
    for position, word in enumerate(argv):
        if word == "--api-key" and position + 1 < len(argv):
            return {"Authorization": f"Bearer {argv[position + 1]}"}
        if word.startswith("--api-key="):
            return {"Authorization": f"Bearer {word.partition('=')[2]}"}
    return {}


def generated(answer: Answer) -> bool:
    """Whether an answer of POST /generate holds a generation."""
    value = answer.json()
    if isinstance(value, list) and value:
        value = value[0]
    return answer.status == 200 and isinstance(value, dict) and ("text" in value or "output_ids" in value)
