"""Options by version, as data."""

from __future__ import annotations

import pytest

from pd_units.engines.options import Program, load_table, parse_version


@pytest.mark.parametrize(
    ("name", "version", "spelling"),
    [
        ("cuda-graph-max-bs", "0.5.12", "cuda-graph-max-bs"),
        ("cuda-graph-max-bs", "0.5.23", "cuda-graph-max-bs-decode"),
        ("cuda-graph-max-bs-decode", "0.5.10.post1", "cuda-graph-max-bs"),
        ("mamba-scheduler-strategy", "0.5.23", "mamba-radix-cache-strategy"),
        ("mamba-radix-cache-strategy", "0.5.8", "mamba-scheduler-strategy"),
        ("nsa-prefill-backend", "0.5.23", "dsa-prefill-backend"),
        ("tp", "0.5.23", "tensor-parallel-size"),
        ("tp-size", "0.4.6.post5", "tensor-parallel-size"),
        ("dp", "0.5.12", "data-parallel-size"),
        ("ep", "0.5.12", "expert-parallel-size"),
        ("mem-fraction-static", "0.5.12", "mem-fraction-static"),
    ],
)
def test_spellings(name: str, version: str, spelling: str) -> None:
    program = Program.engine(version)
    assert program.resolve([("engine.args", {name: 1})]) == {spelling: 1}
    assert program.faults == []
    assert len(program.warnings) == (spelling != load_table("sglang").aliases.get(name, name))


def test_an_option_that_came_later_or_is_gone_is_a_fault() -> None:
    program = Program.engine("0.5.2")
    program.resolve([("engine.args", {"disaggregation-decode-enable-radix-cache": True})])
    assert program.faults[0].where == "engine.args.disaggregation-decode-enable-radix-cache"
    assert program.faults[0].what == "is an option of sglang after 0.5.10; in use is 0.5.2"
    program = Program.engine("0.5.23")
    program.resolve([("engine.args", {"enable-triton-kernel-moe": True})])
    assert 'moe-runner-backend = "triton_kernel"' in str(program.faults[0])


@pytest.mark.parametrize("version", [None, "0.0.0.dev0", "0.1.dev1+gabc", "unknown"])
def test_an_unknown_version_is_taken_for_the_newest_with_warnings_only(version: str | None) -> None:
    program = Program.engine(version)
    args = {"enable-triton-kernel-moe": True, "cuda-graph-max-bs": 8, "context-length": 1}
    assert list(program.resolve([("engine.args", args)])) == [
        "enable-triton-kernel-moe",
        "cuda-graph-max-bs-decode",
        "context-length",
    ]
    assert program.faults == []
    assert [each.where for each in program.warnings] == [
        "engine.args.enable-triton-kernel-moe",
        "engine.args.cuda-graph-max-bs",
    ]


def test_an_option_that_no_version_has_is_passed_on_with_a_warning() -> None:
    program = Program.engine("0.5.12")
    assert program.resolve([("engine.args", {"mem-fracton-static": 0.7})]) == {"mem-fracton-static": 0.7}
    assert program.faults == []
    assert "did you mean mem-fraction-static?" in str(program.warnings[0])


def test_the_more_specific_table_wins_whatever_the_spelling() -> None:
    program = Program.engine("0.5.12")
    tables = [("prefill[0].args", {"tp": 2, "a": 1}), ("engine.args", {"tensor-parallel-size": 4, "b": 1})]
    assert program.resolve(tables) == {"tensor-parallel-size": 2, "b": 1, "a": 1}
    assert program.faults == []


def test_the_same_option_twice_in_one_table() -> None:
    program = Program.engine("0.5.12")
    program.resolve([("engine.args", {"tp": 2, "tp-size": 2})])
    assert "is the same option as tp" in str(program.faults[0])


def test_router_options_by_version() -> None:
    assert not Program.router("0.1.9").has("cb-timeout-duration-secs")
    assert Program.router("0.2.0").has("cb-timeout-duration-secs")
    assert not Program.router("0.2.0").has("shutdown-grace-period-secs")
    assert Program.router(None).has("shutdown-grace-period-secs")


@pytest.mark.parametrize("program", ["sglang", "sglang-router"])
def test_the_tables_are_whole(program: str) -> None:
    table = load_table(program)
    assert all(target in table.options for target in table.aliases.values())
    assert not set(table.aliases) & set(table.options)
    assert all(name in table.options for group in table.renames for name in group)
    assert all(name in table.options for name in table.removed)
    assert all(option.after < option.until for option in table.options.values())
    for group in table.renames:  # in every version at least one of the names holds
        assert any(table.options[name].known_to(table.newest) for name in group)
    needed = {
        "sglang": "model-path host port tensor-parallel-size base-gpu-id gpu-id-step disaggregation-mode"
        " disaggregation-transfer-backend disaggregation-bootstrap-port dist-init-addr",
        "sglang-router": "pd-disaggregation prefill decode host port worker-startup-timeout-secs"
        " worker-startup-check-interval",
    }
    oldest = {"sglang": "0.4.6.post5", "sglang-router": "0.1.9"}
    for version in (oldest[program], None):
        subject = Program(table, version)
        assert all(subject.has(name) for name in needed[program].split())


def test_versions() -> None:
    assert parse_version("0.5.10") < parse_version("0.5.10.post1") < parse_version("0.5.11")
    assert parse_version("0.5.12+cu130") == (0, 5, 12)
