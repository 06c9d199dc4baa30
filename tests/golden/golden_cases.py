"""Golden cases: each is a deployment file whose `##` lines say on what host it is rendered, and what holds.

    ## topology two-nodes                       topologies/two-nodes.json; without it, nothing is known
    ## host systemd=257 engine=0.5.12 router=0.3.2
    ## skip gpu
    ## exit 12                                  the plan is refused; then only ## fault lines are looked at
    ## fault decode[0].gpus: there is no GPU 9
    ## warning prefill[0].numa: no binding
    ## assert prefill Service NUMAMask = 0      the value in effect; UNIT is prefill, decode-1, ...
    ## assert-not router Unit Wants
    ## assert-env prefill NAME = VALUE          a variable of the process
    ## assert-no-env prefill NAME
    ## assert-arg prefill --option = VALUE...   what follows an option, joined by blanks
    ## assert-no-arg prefill --option

The expected units lie in expected/CASE/. Write them anew with: PD_UNITS_UPDATE_GOLDEN=1 pytest tests/golden
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pd_units.model import Deployment, parse_deployment
from pd_units.plan import HostFacts, Plan, make_plan
from pd_units.render import render_units
from pd_units.rendered import RenderedUnit
from pd_units.topology import UNKNOWN, HostTopology
from pd_units.topology_json import topology_from_json

HERE = Path(__file__).parent
CASES = HERE / "cases"
EXPECTED = HERE / "expected"
#: The helpers' interpreter in every expected unit: one that exists, so that systemd-analyze is content.
PYTHON = "/usr/bin/python3"


@dataclass
class Case:
    """One case, as its `##` lines describe it."""

    path: Path
    text: str
    topology: HostTopology = UNKNOWN
    versions: dict[str, str] = field(default_factory=dict)
    skips: set[str] = field(default_factory=set)
    exit_code: int = 0
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    assertions: list[tuple[str, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def deployment(self) -> Deployment:
        return parse_deployment(self.text, source=self.path.name)

    @property
    def host(self) -> HostFacts:
        return HostFacts(
            topology=self.topology,
            pd_units_python=PYTHON,
            systemd_version=int(self.versions.get("systemd", "252")),
            engine_version=self.versions.get("engine"),
            router_version=self.versions.get("router"),
        )

    def plan(self) -> Plan:
        return make_plan(
            self.deployment, self.host, skip_gpu="gpu" in self.skips, skip_numa="numa" in self.skips
        )

    def render(self) -> tuple[RenderedUnit, ...]:
        return render_units(self.plan())

    def expected(self) -> dict[str, str]:
        return {
            path.name: path.read_text(encoding="utf-8") for path in sorted((EXPECTED / self.name).glob("*"))
        }


def read_topology_file(name: str) -> HostTopology:
    return topology_from_json(json.loads((HERE / "topologies" / f"{name}.json").read_text(encoding="utf-8")))


def read_case(path: Path) -> Case:
    case = Case(path, path.read_text(encoding="utf-8"))
    for line in case.text.splitlines():
        if not line.startswith("## "):
            continue
        word, _, rest = line[3:].partition(" ")
        match word:
            case "topology":
                case.topology = read_topology_file(rest)
            case "host":
                case.versions = dict(each.split("=") for each in rest.split())
            case "skip":
                case.skips.add(rest)
            case "exit":
                case.exit_code = int(rest)
            case "fault":
                case.faults.append(rest)
            case "warning":
                case.warnings.append(rest)
            case "assert" | "assert-not" | "assert-env" | "assert-no-env" | "assert-arg" | "assert-no-arg":
                case.assertions.append((word, rest))
            case _:
                raise ValueError(f"{path.name}: {line}")
    return case


def read_cases() -> list[Case]:
    return [read_case(path) for path in sorted(CASES.glob("*.toml"))]


def quoting_values() -> dict[str, str]:
    """Values that must come through a unit file unchanged, by name: see quoting.toml."""
    return {
        each["name"]: each["value"]
        for each in tomllib.loads((HERE / "quoting.toml").read_text(encoding="utf-8"))["value"]
    }


def quoting_deployment(python: str = PYTHON, name: str = "quoting") -> str:
    """TOML text of a deployment that carries every value of quoting.toml as a variable and as an option's
    value, for tests that compare what a started process received: variables PDU_Q_NAME, options --q-NAME."""
    lines = ["[deployment]", f"name = {json.dumps(name)}", "[engine]", f"python = {json.dumps(python)}"]
    lines += ['model = "/models/quoting"', "[engine.environment]"]
    values = quoting_values()
    lines += [f"{quoting_variable(key)} = {_toml(value)}" for key, value in values.items()]
    lines += ["[engine.args]"]
    lines += [f"q-{key} = {_toml(value)}" for key, value in values.items()]
    lines += ["[[standalone]]", "gpus = [0]", 'numa = "none"', "port = 30000"]
    return "\n".join(lines) + "\n"


def quoting_variable(name: str) -> str:
    """Variable that carries the value called `name` in quoting_deployment."""
    return f"PDU_Q_{name.replace('-', '_').upper()}"


def _toml(value: str) -> str:
    """A TOML string: JSON's escapes are TOML's, but for the surrogate pairs."""
    return json.dumps(value, ensure_ascii=False)
