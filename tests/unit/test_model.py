"""Deployment files: what is taken, and every fault of a file at once with its key path."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_units.errors import DeploymentError, ExitCode
from pd_units.model import Deployment, Pin, Router, check_together, lint, parse_deployment, read_deployment

PAIR = {
    "deployment": {"name": "pair"},
    "engine": {"python": "/opt/e/bin/python", "model": "/models/m", "user": "sglang"},
    "prefill": [{"gpus": [0], "port": 30000}],
    "decode": [{"gpus": [1], "port": 30002}],
    "router": {"port": 30001, "python": "/opt/r/bin/python"},
}
SINGLE = {
    "deployment": {"name": "single"},
    "engine": {"python": "/opt/e/bin/python", "model": "/models/m", "user": "sglang"},
    "standalone": [{"gpus": [0], "port": 30000}],
}


def toml(value: object) -> str:
    """A TOML value: inline tables throughout."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def text_of(data: dict) -> str:
    return "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in data.items()) + "\n"


def changed(base: dict, path: str, value: object) -> dict:
    """`base` with one key set; ... removes it. Path parts are keys or list indexes."""
    data = copy.deepcopy(base)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    node = data
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node[part]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return data


def parse(data: dict) -> Deployment:
    return parse_deployment(text_of(data), source="test.toml")


def faults_of(data: dict) -> tuple[ExitCode, list[str]]:
    with pytest.raises(DeploymentError) as caught:
        parse(data)
    return caught.value.exit_code, [str(fault) for fault in caught.value.faults]


def test_defaults() -> None:
    deployment = parse(PAIR)
    assert parse(changed(PAIR, "engine/user", ...)).engine.user == "root"
    assert deployment.engine.pin is Pin.INDEX
    assert deployment.prefill[0].bootstrap_port == 8998
    assert deployment.decode[0].bootstrap_port is None
    assert deployment.prefill[0].numa == "auto"
    assert deployment.router == Router(port=30001, python="/opt/r/bin/python")
    assert deployment.router.host == "127.0.0.1"
    assert deployment.router.metrics_port == 29000
    assert (deployment.readiness.timeout_s, deployment.readiness.no_progress_s) == (1800, 600)
    assert not deployment.readiness.no_progress_declared
    assert deployment.readiness.smoke_test


def test_two_prefills_need_two_bootstrap_ports() -> None:
    data = changed(PAIR, "prefill", [{"gpus": [0], "port": 1}, {"gpus": [2], "port": 2}])
    code, faults = faults_of(data)
    assert code is ExitCode.PLACEMENT
    assert faults[0].startswith("prefill[1].bootstrap_port: port 8998 is used by prefill[0].bootstrap_port")
    data["prefill"][1]["bootstrap_port"] = 8999
    assert [each.bootstrap_port for each in parse(data).prefill] == [8998, 8999]


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        # unknown keys
        ("nonsense", 1, "nonsense: is not a key"),
        ("engine/modle", "x", "engine.modle: is not a key that pd-units knows (did you mean model?)"),
        ("prefill/0/gpu", [0], "prefill[0].gpu: is not a key that pd-units knows (did you mean gpus?)"),
        (
            "prefill/0/user",
            "x",
            "prefill[0].user: is not a key that pd-units knows (user belongs to [engine])",
        ),
        (
            "readiness/timeuot",
            "1s",
            "readiness.timeuot: is not a key that pd-units knows (did you mean timeout?)",
        ),
        ("engine/a b", 1, 'engine."a b": is not a key'),
        # names
        ("deployment/name", ..., "deployment.name: is missing"),
        ("deployment/name", "", "deployment.name: is empty"),
        ("deployment/name", "a b", "deployment.name: cannot name units"),
        ("deployment/name", "a@b", "deployment.name: cannot name units"),
        ("deployment/name", "a/b", "deployment.name: cannot name units"),
        ("deployment/name", "-a", "deployment.name: cannot name units"),
        ("deployment/name", ".", "deployment.name: cannot name units"),
        ("deployment/name", "größe", "deployment.name: cannot name units"),
        ("deployment/name", "a" * 201, "deployment.name: is longer"),
        ("deployment/name", 3, "deployment.name: must be a string, not an integer"),
        ("deployment/retires", "a.service", "deployment.retires: must be a list of strings, not a string"),
        ("deployment/retires", ["a"], "deployment.retires[0]: is not a unit name"),
        ("deployment/retires", ["a@.service"], "deployment.retires[0]: is a template"),
        (
            "deployment/retires",
            ["pair-decode.service"],
            "deployment.retires[0]: pair-decode.service is one of",
        ),
        (
            "deployment/retires",
            ["pair-decode-3.service"],
            "deployment.retires[0]: pair-decode-3.service is one of",
        ),
        ("deployment/retires", ["a.service", "a.service"], "deployment.retires[1]: a.service is there twice"),
        # the engine
        ("engine/python", ..., "engine.python: is missing"),
        ("engine/python", "python3", "engine.python: must be an absolute path"),
        ("engine/python", "/opt//x", "engine.python: must be a plain path, such as /opt/x"),
        ("engine/python", "/opt/$x", "engine.python: holds '$'"),
        ("engine/python", "/opt/'x", 'engine.python: holds "\'"'),
        ("engine/model", "./m", "engine.model: must be an absolute path, or the name of a model"),
        ("engine/model", "a\nb", "engine.model: holds a newline"),
        ("engine/model", "a\0b", "engine.model: holds a NUL"),
        ("engine/model", "a\x1bb", "engine.model: holds a control character (U+001B)"),
        ("engine/model", "a\ufdd0b", "engine.model: holds a character that systemd refuses (U+FDD0)"),
        ("engine/kind", "vllm", "engine.kind: 'vllm' is not one of sglang"),
        (
            "engine/pin",
            "indx",
            "engine.pin: 'indx' is not one of index, uuid, base-gpu-id (did you mean index?)",
        ),
        ("engine/user", "a b", "engine.user: is not a user name"),
        ("engine/environment_files", ["nccl.env"], "engine.environment_files[0]: must be an absolute path"),
        ("engine/environment_files", ["/a/*.env"], "engine.environment_files[0]: holds '*'"),
        ("engine/environment_files", ["-/a.env"], "engine.environment_files[0]: must be an absolute path; a"),
        ("engine/environment", {"1A": "x"}, "engine.environment.1A: is not a variable name"),
        ("engine/environment", {"A": True}, "engine.environment.A: must be a string, not a boolean"),
        ("engine/environment", {"A": 1.5}, "engine.environment.A: must be a string, not a float"),
        ("engine/environment", {"A": "x\ny"}, "engine.environment.A: holds a newline"),
        (
            "engine/environment",
            {"A": "x" * 140_000},
            "engine.environment.A: is longer than the kernel passes",
        ),
        ("engine/sm120", ["A"], "engine.sm120: must be a table, not a list"),
        # options
        ("engine/args", {"a_b": 1}, "engine.args.a_b: is spelt with a dash on the command line (write a-b)"),
        ("engine/args", {"--tp": 1}, "engine.args.--tp: must be written without its dashes (write tp)"),
        (
            "engine/args",
            {"model-path": "x"},
            "engine.args.model-path: is set by pd-units itself (from engine.model)",
        ),
        ("engine/args", {"port": 1}, "engine.args.port: is set by pd-units itself"),
        ("engine/args", {"a": []}, "engine.args.a: is an empty list"),
        ("engine/args", {"a": {"b": 1}}, "engine.args.a: must not be a table"),
        ("engine/args", {"a": [True]}, "engine.args.a[0]: must be a string, a number"),
        ("engine/args", {"a": ["-x"]}, "engine.args.a[0]: starts with a dash"),
        ("prefill/0/args", {"disaggregation-mode": "null"}, "prefill[0].args.disaggregation-mode: is set by"),
        (
            "router/args",
            {"prefill": "x"},
            "router.args.prefill: is set by pd-units itself (from [[prefill]])",
        ),
        # instances
        ("prefill/0/gpus", ..., "prefill[0].gpus: is missing"),
        ("prefill/0/gpus", [], "prefill[0].gpus: is an empty list"),
        ("prefill/0/gpus", 0, "prefill[0].gpus: must be a list of GPU indexes, not an integer"),
        ("prefill/0/gpus", ["0"], "prefill[0].gpus[0]: must be a GPU index (0 to 1023), not a string"),
        ("prefill/0/gpus", [True], "prefill[0].gpus[0]: must be a GPU index (0 to 1023), not a boolean"),
        ("prefill/0/gpus", [-1], "prefill[0].gpus[0]: must be a GPU index (0 to 1023), not -1"),
        ("prefill/0/numa", -1, "prefill[0].numa: must be a NUMA node"),
        ("prefill/0/numa", 1024, "prefill[0].numa: must be a NUMA node"),
        ("prefill/0/numa", True, "prefill[0].numa: must be a NUMA node"),
        ("prefill/0/numa", "all", "prefill[0].numa: must be a NUMA node"),
        ("prefill/0/numa", [], "prefill[0].numa: is an empty list"),
        ("prefill/0/numa", [0, "1"], "prefill[0].numa[1]: must be a NUMA node"),
        ("prefill/0/port", ..., "prefill[0].port: is missing"),
        ("prefill/0/port", 0, "prefill[0].port: must be a port (1 to 65535), not 0"),
        ("prefill/0/port", 65536, "prefill[0].port: must be a port"),
        ("prefill/0/port", True, "prefill[0].port: must be a port (1 to 65535), not a boolean"),
        ("prefill/0/port", "30000", "prefill[0].port: must be a port (1 to 65535), not a string"),
        ("prefill", [], "prefill: is an empty list"),
        ("prefill", {"gpus": [0], "port": 1}, "prefill: must be a list of tables (write [[prefill]]"),
        ("prefill", 3, "prefill: must be a list of tables"),
        # shape
        ("prefill", ..., "prefill: is missing"),
        ("decode", ..., "decode: is missing"),
        ("router", ..., "router: is missing"),
        ("engine", ..., "engine: is missing"),
        ("deployment", ..., "deployment: is missing"),
        ("router/port", ..., "router.port: is missing"),
        ("router/host", "a b", "router.host: is not an address"),
        # readiness
        ("readiness/timeout", "5 parsecs", "readiness.timeout: is not a time span"),
        ("readiness/timeout", 0, "readiness.timeout: must be between"),
        ("readiness/timeout", True, "readiness.timeout: must be a time span"),
        ("readiness/smoke_test", "yes", "readiness.smoke_test: must be true or false, not a string"),
    ],
)
def test_faults_have_their_key_path(path: str, value: object, fault: str) -> None:
    code, faults = faults_of(changed(PAIR, path, value))
    assert any(each.startswith(fault) for each in faults), faults
    assert code is ExitCode.INVALID


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("decode/0/gpus", [0], "decode[0].gpus: GPU 0 is used by prefill[0] already"),
        ("prefill/0/gpus", [3, 3], "prefill[0].gpus[1]: GPU index 3 is there twice"),
        ("decode/0/port", 30000, "decode[0].port: port 30000 is used by prefill[0].port already"),
        ("decode/0/port", 8998, "decode[0].port: port 8998 is used by prefill[0].bootstrap_port already"),
        ("decode/0/bootstrap_port", 8998, "decode[0].bootstrap_port: port 8998 is used by"),
        ("decode/0/dist_init_port", 30000, "decode[0].dist_init_port: port 30000 is used by"),
        ("router/port", 30002, "router.port: port 30002 is used by decode[0].port already"),
        ("router/port", 29000, "the router's metrics port: port 29000 is used by router.port already"),
        ("router/args", {"prometheus-port": 30000}, "router.args.prometheus-port: port 30000 is used by"),
        (
            "decode/0/args",
            {"nccl-port": 30001},
            "router.port: port 30001 is used by decode[0].args.nccl-port",
        ),
    ],
)
def test_clashes_alone_are_a_matter_of_placement(path: str, value: object, fault: str) -> None:
    code, faults = faults_of(changed(PAIR, path, value))
    assert any(each.startswith(fault) for each in faults), faults
    assert code is ExitCode.PLACEMENT
    mixed = changed(changed(PAIR, path, value), "engine/nonsense", 1)
    assert faults_of(mixed)[0] is ExitCode.INVALID


@pytest.mark.parametrize("key", ["prefill", "decode", "router"])
def test_standalone_stands_alone(key: str) -> None:
    code, faults = faults_of(SINGLE | {key: PAIR[key]})
    assert any(each.startswith(f"{key}: cannot stand beside [[standalone]]") for each in faults)
    assert code is ExitCode.INVALID


def test_nothing_to_run() -> None:
    _, faults = faults_of({key: PAIR[key] for key in ("deployment", "engine")})
    assert faults == [
        "deployment: has no instance (write [[prefill]], [[decode]] and [router], or [[standalone]])"
    ]


def test_every_fault_at_once() -> None:
    data = changed(PAIR, "engine/python", "python")
    data = changed(data, "engine/pni", "x")
    data = changed(data, "decode/0/port", 30000)
    data = changed(data, "prefill/0/gpus", [])
    data = changed(data, "router", ...)
    _, faults = faults_of(data)
    starts = ("engine.python", "engine.pni", "decode[0].port", "prefill[0].gpus", "router: is missing")
    assert len(faults) == len(starts)
    assert all(any(fault.startswith(start) for fault in faults) for start in starts)


@pytest.mark.parametrize(
    "text",
    ["a = ", "[deployment]\n[deployment]\n", "a = 1\na = 2\n", "x" * 10, "a = [" * 5000, "a = " + "1" * 5000],
)
def test_what_is_not_toml(text: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        parse_deployment(text, source="x.toml")
    assert caught.value.exit_code is ExitCode.UNREADABLE
    assert "x.toml" in caught.value.brief


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'a = "\xe9"')
    for name in ("absent.toml", "latin.toml", "."):
        with pytest.raises(DeploymentError) as caught:
            read_deployment(tmp_path / name)
        assert caught.value.exit_code is ExitCode.UNREADABLE
    (tmp_path / "good.toml").write_text(text_of(SINGLE))
    assert read_deployment(tmp_path / "good.toml").name == "single"


def test_values_as_declared() -> None:
    data = changed(SINGLE, "engine/environment", {"A": 1, "B": "x", "EMPTY": ""})
    data = changed(
        data, "engine/args", {"f": 0.70, "i": -1, "t": True, "n": False, "s": "-x", "l": [1, "a", 0.5]}
    )
    data = changed(data, "standalone/0/numa", [1, 0])
    data = changed(data, "readiness", {"timeout": "1h 30min", "no_progress": 90, "extend": "1h"})
    deployment = parse(data)
    assert deployment.engine.environment == {"A": "1", "B": "x", "EMPTY": ""}
    assert deployment.engine.args == {"f": 0.7, "i": -1, "t": True, "n": False, "s": "-x", "l": (1, "a", 0.5)}
    assert deployment.standalone[0].numa == (1, 0)
    assert deployment.readiness.timeout_s == 5400
    assert deployment.readiness.no_progress_s == 90
    assert deployment.readiness.longest_s == 9000
    assert deployment.readiness.no_progress_declared


def test_infinite_numbers_are_refused() -> None:
    text = text_of(SINGLE).replace('"engine" = {', '"engine" = {args = { f = inf }, ')
    with pytest.raises(DeploymentError) as caught:
        parse_deployment(text, source="x")
    assert str(caught.value.faults[0]) == "engine.args.f: must be a finite number"


def test_deployments_together() -> None:
    other = changed(SINGLE, "deployment/name", "other")
    other = changed(other, "deployment/retires", ["pair-router.service", "foreign.service"])
    found = [str(each) for each in check_together([parse(PAIR), parse(other)])]
    assert found == [
        "test.toml: standalone[0].port: port 30000 is used by pair (prefill[0].port) already",
        "test.toml: deployment.retires[0]: pair-router.service belongs to the deployment pair",
    ]
    twice = check_together([parse(SINGLE), parse(SINGLE)])
    assert [each.what for each in twice] == ["'single' is the name of test.toml already"]


def test_lint_secrets() -> None:
    data = changed(
        PAIR, "engine/environment", {"HF_TOKEN": "x", "TOKENIZERS_PARALLELISM": "false", "KEY": "0"}
    )
    data = changed(
        data, "engine/args", {"api-key": "abc", "tokenizer-path": "/x", "note": "sk-abcdefghijklmnopqrst"}
    )
    found = [each.where for each in lint(parse(data)) if "secret" in each.what]
    assert found == ["engine.environment.HF_TOKEN", "engine.args.api-key", "engine.args.note"]
    assert all("environment_files" in each.hint for each in lint(parse(data)) if "secret" in each.what)


def test_lint_the_rest() -> None:
    data = changed(PAIR, "router", {"port": 80})
    data = changed(data, "router/user", "web")
    data = changed(data, "prefill/0/args", {"page-size": 64, "kv-cache-dtype": "fp8_e4m3"})
    data = changed(data, "engine/args", {"kv-cache-dtype": "fp8_e4m3"})
    data = changed(data, "readiness", {"timeout": 60, "no_progress": 90})
    environment = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "LD_PRELOAD": "/x",
        "CUDA_VISIBLE_DEVICES": "",
    }
    data = changed(data, "decode/0/environment", environment)
    assert [each.where for each in lint(parse(data))] == [
        "decode[0].environment.PYTORCH_CUDA_ALLOC_CONF",
        "decode[0].environment.LD_PRELOAD",
        "decode[0].environment.CUDA_VISIBLE_DEVICES",
        "decode[0].args.page-size",
        "readiness.no_progress",
        "router.python",
        "router.port",
    ]
    assert lint(parse(PAIR)) == ()
    assert [each.where for each in lint(parse(changed(PAIR, "engine/user", ...)))] == ["engine.user"]


JSON_LIKE = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-10, 70000),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
WORDS = """deployment engine prefill decode standalone router readiness name retires python model gpus numa
    port args environment bootstrap_port timeout pin sm120 environment_files"""
KEYS = st.sampled_from(WORDS.split())


@given(path=st.lists(KEYS, min_size=1, max_size=2), value=JSON_LIKE)
def test_any_content_is_taken_or_refused_with_a_key_path(path: list[str], value: object) -> None:
    data = copy.deepcopy(PAIR)
    if len(path) == 1:
        data[path[0]] = value
    else:
        node = data.setdefault(path[0], {})
        (node[0] if isinstance(node, list) else node)[path[1]] = value
    try:
        parse(data)
    except DeploymentError as error:
        if error.exit_code is ExitCode.UNREADABLE:
            return
        assert error.faults
        assert all(fault.where and fault.what for fault in error.faults)
