"""validate, render, init and topology, as run from a shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pd_units.cli import run

GOOD = """
deployment.name = "{name}"
engine = {{ python = "/usr/bin/python3", model = "/m", user = "sglang" }}
standalone = [{{ gpus = [{gpu}], port = {port} }}]
"""
TOPOLOGY = {
    "numa_nodes": [{"id": 0, "cpus": "0-1"}, {"id": 1, "cpus": "2-3"}],
    "gpus": [{"index": index, "numa": index} for index in range(2)],
    "nics": None,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(GOOD.format(name="a", gpu=0, port=30000))
    (tmp_path / "b.toml").write_text(GOOD.format(name="b", gpu=0, port=30001))
    (tmp_path / "bad.toml").write_text(GOOD.format(name="c d", gpu=0, port=0))
    (tmp_path / "clash.toml").write_text(
        GOOD.format(name="clash", gpu=0, port=30002).replace("[{", "[{ gpus = [0], port = 30003 }, {")
    )
    (tmp_path / "nothing.toml").write_text("=")
    (tmp_path / "topology.json").write_text(json.dumps(TOPOLOGY))
    return tmp_path


def answer(capsys, *arguments: str) -> tuple[int, dict, str]:
    """(exit code, the JSON object, stderr) of a verb with --json."""
    code = run([*arguments, "--json"])
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["schema"] == 1
    assert found["pd_units"]
    assert found["exit_code"] == code
    assert isinstance(found["message"], str)
    return code, found, captured.err


@pytest.mark.parametrize(
    ("files", "code"),
    [
        (["a.toml"], 0),
        (["a.toml", "b.toml"], 0),
        (["bad.toml"], 11),
        (["clash.toml"], 12),
        (["nothing.toml"], 10),
        (["absent.toml"], 10),
        (["nothing.toml", "bad.toml", "a.toml"], 11),
        (["bad.toml", "clash.toml"], 12),
        (["a.toml", "a.toml"], 11),
    ],
)
def test_validate(here: Path, capsys, files: list[str], code: int) -> None:
    got, found, _ = answer(capsys, "validate", *files)
    assert got == code
    assert [each["file"] for each in found["files"]] == files
    assert run(["validate", *files]) == code


def test_validate_says_everything(here: Path, capsys) -> None:
    _, found, _ = answer(capsys, "validate", "bad.toml")
    assert {each["where"] for each in found["files"][0]["faults"]} == {
        "deployment.name",
        "standalone[0].port",
    }
    run(["validate", "a.toml", "bad.toml"])
    captured = capsys.readouterr()
    assert "bad.toml is not a valid deployment: 2 faults" in captured.err
    assert "a.toml: a is valid" in captured.err


def test_render_to_stdout_and_into_a_directory_are_the_same(here: Path, capsys) -> None:
    assert run(["render", "a.toml", "--topology", "topology.json"]) == 0
    text = capsys.readouterr().out
    assert run(["render", "a.toml", "--topology", "topology.json", "-o", "out"]) == 0
    written = capsys.readouterr().out.splitlines()
    assert written == ["out/a-standalone.service", "out/pd-units@.target", "out/pd-units.slice"]
    assert text == "\n".join(
        f"# /etc/systemd/system/{Path(path).name}\n{(here / path).read_text()}" for path in written
    )
    _, found, _ = answer(capsys, "render", "a.toml", "--topology", "topology.json")
    assert {each["unit"]: each["text"] for each in found["units"]} == {
        Path(path).name: (here / path).read_text() for path in written
    }
    assert [each["role"] for each in found["units"]] == ["standalone", None, None]


def test_render_warns_on_stderr_only(here: Path, capsys) -> None:
    (here / "secret.toml").write_text(
        (here / "a.toml").read_text().replace("}\n", ', environment = {HF_TOKEN = "x"} }\n', 1)
    )
    code, found, err = answer(capsys, "render", "secret.toml", "--topology", "topology.json")
    assert code == 0
    assert [each["where"] for each in found["warnings"]] == ["engine.environment.HF_TOKEN"]
    assert "warning: engine.environment.HF_TOKEN" in err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["render", "bad.toml"], 11),
        (["render", "clash.toml"], 12),
        (["render", "absent.toml"], 10),
        (["render"], 2),
        (["render", "a.toml", "--topology", "absent.json"], 10),
        (["render", "a.toml", "--topology", "a.toml"], 10),
        (["render", "a.toml", "-o", "/dev/null/x"], 32),
        (["init", "--preset", "nonsense"], 2),
        (["init", "-o", "a.toml"], 32),
        (["topology", "--sysroot", "absent"], 2),
    ],
)
def test_what_cannot_be_done(here: Path, capsys, arguments: list[str], code: int) -> None:
    assert answer(capsys, *arguments)[0] == code
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err


def test_render_refuses_a_gpu_that_a_known_host_lacks(here: Path, capsys) -> None:
    (here / "far.toml").write_text(GOOD.format(name="far", gpu=7, port=1))
    code, found, _ = answer(capsys, "render", "far.toml", "--topology", "topology.json")
    assert code == 12
    assert found["faults"][0]["where"] == "standalone[0].gpus"


def test_init_lists_and_writes_what_validates(here: Path, capsys) -> None:
    _, found, _ = answer(capsys, "init", "--list")
    names = [each["name"] for each in found["presets"]]
    assert names == ["dsv4-pd", "dsv4-single", "qwen3.6-27b", "qwen3.6-27b-mtp"]
    for name in names:
        code, found, _ = answer(
            capsys, "init", "--preset", name, "--topology", "topology.json", "-o", f"{name}.toml"
        )
        assert (code, found["file"]) == (0, f"{name}.toml")
        assert (here / f"{name}.toml").read_text() == found["text"]
        assert answer(capsys, "validate", f"{name}.toml")[0] == 0
        assert answer(capsys, "render", f"{name}.toml", "--topology", "topology.json")[0] == 0


def test_init_overwrites_only_by_force(here: Path, capsys) -> None:
    before = (here / "a.toml").read_text()
    assert run(["init", "--preset", "dsv4-pd", "-o", "a.toml"]) == 32
    assert (here / "a.toml").read_text() == before
    assert run(["init", "--preset", "dsv4-pd", "-o", "a.toml", "--force"]) == 0
    assert 'name = "sglang-dsv4"' in (here / "a.toml").read_text()


def test_topology_output_is_its_own_input(here: Path, capsys) -> None:
    base = here / "root/sys/devices/system/node/node0"
    base.mkdir(parents=True)
    (base / "cpulist").write_text("0-3\n")
    _, found, _ = answer(capsys, "topology", "--sysroot", "root")
    assert found["numa_nodes"] == [{"id": 0, "cpus": "0-3", "memory_bytes": None, "distances": []}]
    assert (found["gpus"], found["nics"]) == (None, None)
    (here / "again.json").write_text(json.dumps(found))
    assert answer(capsys, "render", "a.toml", "--topology", "again.json")[0] == 0
    assert run(["topology", "--sysroot", "root"]) == 0
    assert "NUMA node 0: CPUs 0-3" in capsys.readouterr().out
