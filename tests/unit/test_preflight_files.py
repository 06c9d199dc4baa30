"""What preflight reads: model files, environment files, drop-ins. Whatever is there, it has words for it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pd_units.preflight import drop_ins, environment
from pd_units.preflight.base import gib, some
from pd_units.preflight.environment import assignments
from pd_units.preflight.model_files import inspect_model

SIZE = 4096


def safetensors(size: int = SIZE) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"architectures": ["DeepseekV4ForCausalLM"]}')
    names = [f"model-{number:05}-of-00003.safetensors" for number in range(1, 4)]
    for name in names:
        (tmp_path / name).write_bytes(safetensors())
    index = {
        "metadata": {"total_size": 3 * SIZE},
        "weight_map": {f"w{n}": name for n, name in enumerate(names)},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_a_whole_model(model):
    found = inspect_model(model)
    assert found.problems == []
    assert len(found.weights) == 3
    assert found.size_bytes > 3 * SIZE
    assert found.architecture == "DeepseekV4ForCausalLM"


def test_every_problem_is_named_at_once(model):
    (model / "model-00001-of-00003.safetensors").unlink()
    (model / "model-00002-of-00003.safetensors").write_bytes(safetensors()[:-1])
    (model / "model-00003-of-00003.safetensors").unlink()
    (model / "model-00003-of-00003.safetensors").symlink_to("../../blobs/5f3c")
    (model / "config.json").unlink()
    problems = inspect_model(model).problems
    assert problems == [
        "config.json is not there",
        "model-00003-of-00003.safetensors is a symlink to ../../blobs/5f3c, which is not there",
        "1 of 3 shards are missing: model-00001-of-00003.safetensors",
        f"model-00002-of-00003.safetensors has {len(safetensors()) - 1:,} of {len(safetensors()):,} bytes: "
        "it was not downloaded to its end",
    ]


@pytest.mark.parametrize("cut", [0, 7, 8, 20, 100])
def test_a_download_that_broke_off_anywhere(model, cut):
    (model / "model-00002-of-00003.safetensors").write_bytes(safetensors()[:cut])
    (problem, *_) = inspect_model(model).problems
    assert problem.startswith("model-00002-of-00003.safetensors")


def test_one_file_without_an_index(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    assert inspect_model(tmp_path).problems == []


def test_other_formats(tmp_path):
    (tmp_path / "q4.gguf").write_bytes(b"GGUF" + bytes(100))
    assert inspect_model(tmp_path).problems == []
    (tmp_path / "params.json").write_text("{}")
    (tmp_path / "consolidated.safetensors").write_bytes(safetensors())
    assert inspect_model(tmp_path).problems == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}']
)
def test_an_index_that_says_nothing(model, text):
    (model / "model.safetensors.index.json").write_text(text)
    inspect_model(model)


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=200))
def test_any_bytes_in_a_shard(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(data)
    assert inspect_model(folder).weights == [folder / "model.safetensors"]


@pytest.mark.parametrize("end", ["1e999", "9" * 4300, "[" * 100_000])
def test_a_header_of_odd_numbers_is_damaged(model, end):
    header = f'{{"w": {{"data_offsets": [0, {end}]}}}}'.encode()
    (model / "model-00002-of-00003.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    damaged = "model-00002-of-00003.safetensors has a damaged safetensors header: download it again"
    assert damaged in inspect_model(model).problems
    (model / "config.json").write_text("[" * 100_000)
    assert "config.json is not JSON" in inspect_model(model).problems[0]


def test_environment_lines():
    text = '# c\n; c\n\nA=1\n  B = "two words"\nexport C=3\nnothing\nD=a\\\nstill D=a\nE=\n'
    assert list(assignments(text)) == [
        (4, "A", "1"),
        (5, "B", "two words"),
        (6, "", "export C=3"),
        (7, "", "nothing"),
        (8, "D", "astill D=a"),
        (10, "E", ""),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A='one\ntwo=2\n'\nB=2", [(1, "A", "one\ntwo=2\n"), (4, "B", "2")]),
        ('A="one\n\\"two\\" \\x\\\n"\nB=2', [(1, "A", 'one\n"two" \\x'), (4, "B", "2")]),
        ("A='a' \"b\" c # d\nB = 2 ", [(1, "A", "abc # d"), (2, "B", "2")]),
        ("A=it's\nB=\"2", [(1, "A", "it's"), (2, "B", "2")]),
        ("A=a\\ b\\\nc\n=x\nB=\n", [(1, "A", "a bc"), (3, "", "=x"), (4, "B", "")]),
        ("# it's = \\\nA=1\n;\n#", [(2, "A", "1")]),
        ("1A=x\nB='", [(1, "", "1A=x"), (2, "B", "")]),
        ('A="\\', [(1, "A", "\\")]),
        ("A=1\r\nB='2'\r\nC=3\\\r\nD=4\r", [(1, "A", "1"), (2, "B", "2"), (3, "C", "3"), (4, "D", "4")]),
    ],
)
def test_environment_values_as_systemd_reads_them(text: str, found: list[tuple[int, str, str]]):
    assert list(assignments(text)) == found


@settings(max_examples=200)
@given(text=st.text(alphabet="A=b\n\r'\"\\ #$"))
def test_any_environment_file(text: str):
    assert all(number <= text.count("\n") + 1 for number, _, _ in assignments(text))


SECRETS = """
hf_abcdefghijklmnopqrstuvwxyz
TLS_CERT="-----BEGIN PRIVATE KEY-----
c2VjcmV0LW9uZQ
c2VjcmV0LXR3bw==
-----END PRIVATE KEY-----"
DATABASE_URL=postgres://me:c2VjcmV0@db/x$1
ODD=c2VjcmV0$x
export KEY=c2VjcmV0
"""


def test_no_text_of_an_environment_file_is_printed(tmp_path: Path):
    path = tmp_path / "e.env"
    path.write_text(SECRETS)
    path.chmod(0o644)
    found = [each.evidence for each in environment._check_file(path, [], optional=False)]
    assert found == [
        f"{path}:2 is no assignment",
        f"{path}:8 sets ODD to a value with a $ in it",
        f"{path}:9 begins with export",
        f"{path} holds a secret, and its mode is 0644",
    ]


def test_what_the_loader_reads_belongs_into_the_deployment_file(tmp_path: Path):
    path = tmp_path / "e.env"
    path.write_text("LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH\n")
    (found,) = environment._check_file(path, [], optional=False)
    assert (found.severity, found.evidence) == ("error", f"{path}:1 sets LD_LIBRARY_PATH")
    assert "into the deployment file" in found.advice


def test_line_ends_of_windows_and_bytes_that_are_no_text(tmp_path: Path):
    path = tmp_path / "e.env"
    for data, words in (
        (b"A=1\r\n# caf\xe9\r\nB='2'\r\n", []),
        (b"A=1\\\r\nB=2\r\n", [f"{path} has the line ends of Windows"]),
        (b"A=1\nB=caf\xe9\n", [f"{path}:2 sets B to what is not UTF-8 text"]),
    ):
        path.write_bytes(data)
        assert [each.evidence for each in environment._check_file(path, [], optional=False)] == words


def test_drop_ins_in_the_order_of_systemd(tmp_path, monkeypatch):
    monkeypatch.setattr(drop_ins, "_PLACES", (str(tmp_path / "usr"), str(tmp_path / "etc")))
    for place, folder, name in (
        ("usr", "service.d", "10-all.conf"),
        ("usr", "a-b-.service.d", "20-vendor.conf"),
        ("etc", "a-.service.d", "05-prefix.conf"),
        ("etc", "a-b-decode.service.d", "10-all.conf"),  # in place of the one for all services
        ("etc", "a-b-decode.service.d", "99-last.conf"),
        ("etc", "a-c-.service.d", "50-of-others.conf"),
    ):
        path = tmp_path / place / "systemd/system" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[Service]\n")
    found = [str(path.relative_to(tmp_path)) for path in drop_ins.drop_in_files("a-b-decode.service")]
    assert found == [
        "etc/systemd/system/a-.service.d/05-prefix.conf",
        "etc/systemd/system/a-b-decode.service.d/10-all.conf",
        "usr/systemd/system/a-b-.service.d/20-vendor.conf",
        "etc/systemd/system/a-b-decode.service.d/99-last.conf",
    ]


def test_words():
    assert gib(96 << 30) == "96.0 GiB"
    assert gib(700 << 20) == "700 MiB"
    assert some(["a"]) == "a"
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
