"""Numbers of a deployment file: what TOML has not, and ports that are none."""

from __future__ import annotations

import pytest
from test_model import PAIR, changed, faults_of, parse, text_of

from pd_units.errors import DeploymentError, ExitCode
from pd_units.model import parse_deployment


@pytest.mark.parametrize("number", ["9" * 400, "0x" + "f" * 6000, "-9223372036854775809", "0b1" + "0" * 64])
@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("readiness/timeout", "readiness.timeout"),
        ("router/port", "router.port"),
        ("prefill/0/gpus", "prefill[0].gpus[1]"),
        ("prefill/0/numa", "prefill[0].numa[1]"),
        ("engine/args", "engine.args.x"),
        ("engine/environment", "engine.environment.x"),
    ],
)
def test_a_number_that_toml_has_not(number: str, path: str, where: str) -> None:
    value = {"[": [0, "N"], "x": {"x": "N"}}.get(where[-3] if where.endswith("]") else where[-1], "N")
    text = text_of(changed(PAIR, path, value)).replace('"N"', number)
    with pytest.raises(DeploymentError, match="is not TOML") as caught:
        parse_deployment(text, source="test.toml")
    assert caught.value.exit_code is ExitCode.UNREADABLE
    assert number.startswith("9" * 400) or where in caught.value.brief


def test_the_largest_number_of_toml_is_taken() -> None:
    assert parse(changed(PAIR, "engine/args", {"x": 2**63 - 1})).engine.args["x"] == 2**63 - 1


def test_a_port_in_quotes_is_a_port() -> None:
    data = changed(PAIR, "router/args", {"prometheus-port": "30002"})
    code, (fault,) = faults_of(data)
    assert code is ExitCode.PLACEMENT
    assert fault.startswith("router.args.prometheus-port: port 30002 is used by decode[0].port already")


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (
            "router/args",
            {"prometheus-port": 70000},
            "router.args.prometheus-port: must be a port (1 to 65535), ",
        ),
        ("router/args", {"prometheus-port": -1}, "router.args.prometheus-port: must be a port"),
        ("router/args", {"prometheus-port": True}, "router.args.prometheus-port: must be a port"),
        (
            "engine/args",
            {"nccl-port": 99999},
            "engine.args.nccl-port: must be a port (1 to 65535), not 99999",
        ),
        ("decode/0/args", {"nccl-port": "99999"}, "decode[0].args.nccl-port: must be a port"),
        ("decode/0/args", {"gated-launch-port": [1]}, "decode[0].args.gated-launch-port: must be a port"),
        ("readiness/timeout", "9" * 400 + "s", "readiness.timeout: is no time span that ends"),
    ],
)
def test_numbers_out_of_their_range(path: str, value: object, fault: str) -> None:
    code, faults = faults_of(changed(PAIR, path, value))
    assert code is ExitCode.INVALID
    assert [each for each in faults if each.startswith(fault)]


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("router/host", "front", "router.host: is a name, not an address: 'front'"),
        ("prefill/0/args", {"host": "gpubox.example"}, "prefill[0].args.host: is a name, not an address"),
        (
            "engine/args",
            {"ssl-certfile": "/x"},
            "engine.args.ssl-certfile: readiness is asked over plain HTTP",
        ),
        (
            "router/args",
            {"tls-key-path": "/x"},
            "router.args.tls-key-path: readiness is asked over plain HTTP",
        ),
    ],
)
def test_what_would_never_be_seen_ready(path: str, value: object, fault: str) -> None:
    code, faults = faults_of(changed(PAIR, path, value))
    assert code is ExitCode.INVALID
    assert [each for each in faults if each.startswith(fault)], faults


@pytest.mark.parametrize("host", ["localhost", "::", "10.0.0.5", "0.0.0.0"])
def test_addresses(host: str) -> None:
    assert parse(changed(PAIR, "router/host", host)).router is not None
