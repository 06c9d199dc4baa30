"""What gate, watcher and recorder decide, where no manager is needed for it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pd_units.adapters import journal_files, notify
from pd_units.adapters.journal_files import files_since, listing
from pd_units.diagnosis import Classifier, load_rules
from pd_units.router_api import missing_workers
from pd_units.supervise.record import _comes_back, _exit_status
from pd_units.verdicts import LiveVerdict

RULES = load_rules(extra_dirs=())
URLS = ("http://127.0.0.1:30000", "http://127.0.0.1:30002")
READY = "[2026-01-02 03:04:05] The server is fired up and ready to roll!"
BOOT = bytes(range(16))


@pytest.mark.parametrize(
    "answer",
    [None, [], "no", {}, {"workers": None}, {"workers": URLS}, {"workers": [None, 7]}, {"workers": {"a": 1}}],
)
def test_an_answer_that_is_none_counts_no_worker(answer: object) -> None:
    assert missing_workers(answer, URLS) == list(URLS)


def test_a_worker_counts_if_it_is_healthy() -> None:
    rows = [{"url": URLS[0] + "/", "is_healthy": True}, {"url": URLS[1], "is_healthy": False}, "odd"]
    assert missing_workers({"workers": rows}, URLS) == [URLS[1]]


def classified(*lines: str) -> Classifier:
    classifier = Classifier(RULES)
    for line in lines:
        classifier.feed(line)
    return classifier


def test_a_start_that_cannot_succeed_unchanged_comes_back() -> None:
    assert _comes_back("import-error", classified("Traceback"), None, {"EXIT_STATUS": "1"})
    assert not _comes_back("nccl", classified("Traceback"), None, {"EXIT_STATUS": "1"})


def test_what_has_served_is_started_again_whatever_it_died_of() -> None:
    served = LiveVerdict(unit="a.service", invocation_id="x", state="ready")
    assert not _comes_back("toolchain", classified("Traceback"), served, {"EXIT_STATUS": "1"})
    assert not _comes_back("import-error", classified(READY), None, {"EXIT_STATUS": "1"})


def test_a_program_on_a_mount_that_is_late_is_started_again() -> None:
    assert not _comes_back("import-error", classified(), None, {"EXIT_STATUS": "203"})


def test_a_signal_without_a_name_of_its_own_is_no_exit_status() -> None:
    assert _exit_status({"EXIT_CODE": "killed", "EXIT_STATUS": "RTMIN+3"}) is None
    assert _exit_status({"EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}) is not None


def test_a_status_with_a_nul_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/nobody-listens-here")
    notify.send_status("a\0b")


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of journal files."""
    monkeypatch.setattr(journal_files, "directories", lambda _namespace: (tmp_path,))
    monkeypatch.setattr(journal_files, "boot_id", lambda: BOOT)
    return tmp_path


def journal(folder: Path, name: str, tail_us: int, *, archived: bool = True) -> None:
    header = bytearray(208)
    header[:8], header[16], header[56:72] = b"LPKSHHRH", 2 if archived else 1, BOOT
    struct.pack_into("<Q", header, 200, tail_us)
    (folder / name).write_bytes(header)


def test_each_users_archive_is_judged_by_itself(storage: Path) -> None:
    """journald splits by user: what one of them wrote last says nothing of another's files."""
    journal(storage, "user-1000@0a-01-05.journal", 50_000_000)
    journal(storage, "user-1000@0a-02-07.journal", 90_000_000)
    journal(storage, "user-1001@0b-09-09.journal", 10_000_000)
    journal(storage, "system@0c-01-01.journal", 10_000_000)
    journal(storage, "system.journal", 10_000_000, archived=False)
    found = {Path(path).name for path in files_since(listing(""), 60_000_000) or ()}
    assert found == {"user-1000@0a-02-07.journal", "system.journal"}
