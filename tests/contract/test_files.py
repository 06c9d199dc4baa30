"""Files are written whole or not at all."""

from __future__ import annotations

import multiprocessing

import pytest

from pd_units.adapters import files
from pd_units.errors import ExitCode, HostError


def test_write_replaces_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "sub" / "a.service"
    files.write_atomic(path, "one\n")
    files.write_atomic(path, "two é\n", mode=0o600)
    assert path.read_text() == "two é\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["a.service"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, mocker):
    path = tmp_path / "a"
    files.write_atomic(path, "old")
    mocker.patch("os.fsync", side_effect=OSError(28, "No space left on device"))
    with pytest.raises(HostError) as caught:
        files.write_atomic(path, "new")
    assert caught.value.exit_code is ExitCode.WRITE_FAILED
    assert str(path) in caught.value.brief
    assert "space" in caught.value.hint
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_damaged_json_is_none(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    assert files.read_json(tmp_path / "x.json") is None


def _hold(path, ready, release):
    with files.locked(path, timeout_s=5):
        ready.set()
        release.wait(20)


def test_the_lock_keeps_a_second_one_out_and_names_the_first(tmp_path):
    path = tmp_path / "lock"
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(path, ready, release))
    holder.start()
    try:
        assert ready.wait(10)
        with pytest.raises(HostError) as caught, files.locked(path, timeout_s=0.2):
            pass
        assert str(holder.pid) in caught.value.detail
        release.set()
        with files.locked(path, timeout_s=10):
            pass
    finally:
        release.set()
        holder.join(10)
    assert holder.exitcode == 0


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / "lock"
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(path, ready, release))
    holder.start()
    assert ready.wait(10)
    holder.kill()
    holder.join(10)
    with files.locked(path, timeout_s=5):
        pass
