"""Whether the pins took is measured on the running processes, and everybody may read what came of it."""

from __future__ import annotations

import json
from typing import Any

from serving import BACKENDS, DECODE, PREFILL, ROUTER, deployment, installed, nothing_left, pd_units, unit_of

from rig.box import Box, until

FLAGS = '[engine.sm120]\nSGLANG_SM120_MMA_FLASHMLA = "1"\n\n[engine.args]'


def placement(box: Box, unit: str, *, user: str = "root") -> dict[str, Any]:
    found: dict[str, Any] = unit_of(pd_units(box, "status", "--json", user=user).check().json(), unit)[
        "placement"
    ]
    return found


def kept(box: Box, unit: str) -> dict[str, Any]:
    """What the watcher kept of the invocation that runs now."""
    path = f"/run/pd-units/dsv4/{unit}.placement.json"
    invocation = box.show(unit, "InvocationID")["InvocationID"]

    def probe() -> dict[str, Any]:
        value: dict[str, Any] = json.loads(box.read(path)) if box.exists(path) else {}
        return value if value.get("invocation_id") == invocation else {}

    return until(f"the placement of {unit}", probe)


def test_install_says_that_the_pins_took(box: Box) -> None:
    answer = installed(box, deployment(**{"[engine.args]": FLAGS}))
    for unit in BACKENDS:
        found = unit_of(answer, unit)["placement"]
        assert found["verified"] is True, found
        assert found["deviations"] == []
        assert found["processes"] >= 4  # the server, two ranks, the detokenizer
        assert sum(found["anonymous_pages"].values()) > 1000
        assert found["sm120"] == {"SGLANG_SM120_MMA_FLASHMLA": "1"}
    assert unit_of(answer, ROUTER)["placement"]["verified"] is None
    assert "nothing is pinned" in unit_of(answer, ROUTER)["placement"]["reason"]
    text = pd_units(box, "status").check().out
    assert "Placement verified on " in text
    assert "SGLANG_SM120_MMA_FLASHMLA=1" in text


def test_the_watcher_measures_for_those_who_may_not(box: Box) -> None:
    installed(box)
    box.run(["systemctl", "restart", PREFILL]).check()
    first = kept(box, PREFILL)
    assert first["verified"] is True
    assert box.sh(f"stat -c '%U %a' /run/pd-units/dsv4/{PREFILL}.placement.json").split() == ["root", "644"]
    seen = placement(box, PREFILL, user="operator")
    assert seen["verified"] is True
    assert seen["measured"] == first["measured"]
    until("the measuring process ends", lambda: not [line for line in box.processes() if " measure " in line])
    box.sh(f"rm /run/pd-units/dsv4/{PREFILL}.placement.json")
    unseen = placement(box, PREFILL, user="operator")
    assert unseen["verified"] is None
    assert "sudo pd-units status" in unseen["reason"]


def test_an_overridden_pin_is_found_and_said(box: Box) -> None:
    installed(box)
    box.write("/etc/pd-units/other.env", "CUDA_VISIBLE_DEVICES=0,1\n")
    box.write(
        f"/etc/systemd/system/{DECODE}.d/x.conf", "[Service]\nEnvironmentFile=/etc/pd-units/other.env\n"
    )
    box.sh(f"systemctl daemon-reload; systemctl restart {DECODE}")
    words = "have CUDA_VISIBLE_DEVICES=0,1, wants 2,3"
    assert words in kept(box, DECODE)["deviations"][0]
    for user in ("root", "operator"):
        found = placement(box, DECODE, user=user)
        assert found["verified"] is False
        assert len(found["deviations"]) == 1
        assert found["deviations"][0].startswith("dsv4-decode: processes ")
        assert words in found["deviations"][0]
    assert f"wrong placement: {found['deviations'][0]}" in pd_units(box, "status", user="operator").out
    assert f"pd-units: wrong placement: {found['deviations'][0]}" in box.journal(DECODE)
    assert pd_units(box, "status", "--exit-code").rc == 0  # it serves; the placement is what is wrong


def test_a_stopped_unit_is_not_measured(box: Box) -> None:
    installed(box)
    box.run(["systemctl", "stop", DECODE]).check()
    found = placement(box, DECODE)
    assert found["verified"] is None
    assert found["reason"] == "it is not running"
    pd_units(box, "uninstall", "dsv4", "--purge").check()
    nothing_left(box)
