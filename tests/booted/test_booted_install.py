"""From a bare box to a served completion; again after a reboot; unchanged by a second install; away again."""

from __future__ import annotations

import json

from serving import (
    BACKENDS,
    DECODE,
    DEPLOYMENT,
    FILE,
    PREFILL,
    ROUTER,
    TARGET,
    UNITS,
    complete,
    deployment,
    install,
    installed,
    invocations,
    load_and_hang,
    nothing_left,
    order,
    pd_units,
    traces,
    unit_of,
    write_deployment,
)

from rig.box import Box, until

OLD_SERVER = """
[Service]
ExecStart=/opt/sglang/bin/python -m sglang.launch_server --model-path /models/tiny --port 30000
[Install]
WantedBy=multi-user.target
"""


def test_a_bare_box_serves_after_one_install(box: Box) -> None:
    assert traces(box) == []
    answer = installed(box)
    assert (answer["schema"], answer["exit_code"], answer["changed"]) == (1, 0, True)
    complete(box)
    (only,) = answer["deployments"]
    assert only["name"] == "dsv4"
    assert [unit["unit"] for unit in only["units"]] == list(UNITS)
    kinds = {change["kind"] for change in only["changes"]}
    assert {"write", "enable", "start", "reload-daemon"} <= kinds
    for unit in only["units"]:
        assert unit["state"] == "ready"
        assert unit["cause"] == "none"
        assert unit["invocation_id"] == box.show(unit["unit"], "InvocationID")["InvocationID"]
        assert str(unit["main_pid"]) == box.show(unit["unit"], "MainPID")["MainPID"]
        assert unit["seconds_to_ready"] > 0
    for name in BACKENDS:
        assert unit_of(answer, name)["capacity"]["kv_tokens"] == 2_580_000
        assert unit_of(answer, name)["capacity"]["max_running_requests"] == 2048
    assert unit_of(answer, PREFILL)["placement"]["gpus"] == [0, 1]


def test_the_units_are_started_together_enabled_and_ours(box: Box) -> None:
    installed(box)
    for unit in (*UNITS, TARGET):
        assert box.show(unit, "ActiveState")["ActiveState"] == "active"
        assert box.run(["systemctl", "is-enabled", unit]).out.strip() == "enabled"
    assert box.run(["systemd-analyze", "verify", "--recursive-errors=no", *UNITS]).check().err == ""
    entered = {unit: int(box.show(unit, "InactiveExitTimestampMonotonic").popitem()[1]) for unit in BACKENDS}
    assert abs(entered[PREFILL] - entered[DECODE]) < 1_000_000  # both at once, not one after the other
    router = box.show(ROUTER, "InactiveExitTimestampMonotonic")["InactiveExitTimestampMonotonic"]
    assert int(router) > max(entered.values())
    for unit, ports in ((PREFILL, {30000, 8998}), (DECODE, {30002})):
        pid = box.show(unit, "MainPID")["MainPID"]
        listening = box.sh(f"ss -Hltnp | grep 'pid={pid},' | awk '{{print $4}}'").split()
        assert {int(each.rpartition(":")[2]) for each in listening} == ports


def test_the_engine_got_what_the_file_says(box: Box) -> None:
    installed(box)
    status, text = box.http("http://127.0.0.1:30002/server_info")
    assert status == 200
    facts = json.loads(text)
    assert facts["disaggregation_mode"] == "decode"
    assert facts["tp_size"] == 2
    mine = facts["stub"]["environment"]
    assert mine["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert mine["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert mine["NCCL_P2P_LEVEL"] == "PHB"
    assert mine["PYTHONUNBUFFERED"] == "1"
    assert facts["stub"]["uid"] == int(box.sh("id -u sglang"))


def test_serves_again_after_a_reboot_without_a_word(box: Box) -> None:
    installed(box)
    box.reboot()
    waited = pd_units(box, "wait-ready", "--json", user="operator").check().json()
    assert waited["deployments"][0]["state"] == "ready"
    complete(box)
    assert box.sh("systemctl is-system-running --wait").strip() == "running"


def test_the_boot_does_not_wait_for_the_models(box: Box) -> None:
    installed(box)
    order(box, DECODE, "delay = { weights = 20 }")
    box.reboot()
    box.wait_state("multi-user.target", "active", timeout_s=15)
    assert box.show(DECODE, "ActiveState")["ActiveState"] == "activating"


def test_serves_again_after_a_power_loss(box: Box) -> None:
    installed(box)
    box.power_loss()
    box.boot()
    pd_units(box, "wait-ready", user="operator").check()
    complete(box)


def test_a_second_install_changes_nothing_and_says_so(box: Box) -> None:
    installed(box)
    before = invocations(box)
    stamps = box.sh("stat -c '%n %Y %i' /etc/systemd/system/*dsv4* /etc/systemd/system/pd-units*")
    reloads = box.journal(None, "--grep=Reloading|Reload requested")
    again = install(box).check().json()
    assert again["changed"] is False
    assert {change["kind"] for each in again["deployments"] for change in each["changes"]} <= {"keep"}
    assert again["deployments"][0]["units"][0]["state"] == "ready"
    assert invocations(box) == before
    assert box.sh("stat -c '%n %Y %i' /etc/systemd/system/*dsv4* /etc/systemd/system/pd-units*") == stamps
    assert box.journal(None, "--grep=Reloading|Reload requested") == reloads
    text = pd_units(box, "install", "--skip", "gpu").check().out
    assert "nothing to change" in text


def test_a_changed_file_restarts_only_what_it_changes(box: Box) -> None:
    installed(box)
    before = invocations(box)
    write_deployment(box, deployment(**{"mem-fraction-static = 0.60": "mem-fraction-static = 0.55"}))
    answer = install(box).check().json()
    assert answer["changed"] is True
    after = invocations(box)
    assert after[PREFILL] == before[PREFILL]
    assert after[DECODE] != before[DECODE]
    assert "--mem-fraction-static 0.55" in box.sh(f"systemctl cat {DECODE} | tr '\\n' ' ' | tr -s ' \\\\'")
    complete(box)


def test_a_reader_who_leaves_stops_nothing(box: Box) -> None:
    write_deployment(box)
    script = "pd-units install --skip gpu 2>&1 >/dev/null | head -n1; exit ${PIPESTATUS[0]}"
    box.run(["bash", "-c", script]).check()
    complete(box)


def test_check_before_the_first_install_touches_nothing(box: Box) -> None:
    write_deployment(box)
    for user in ("root", "operator"):
        asked = pd_units(box, "install", "--skip", "gpu", "--check", "--json", user=user).check().json()
        assert asked["changed"] is True
    pending = pd_units(box, "install", "--skip", "gpu", "--check", "--exit-code")
    assert pending.rc == 50
    assert traces(box) == []


def test_check_after_an_install_has_nothing_to_do(box: Box) -> None:
    installed(box)
    asked = pd_units(box, "install", "--skip", "gpu", "--check", "--exit-code", "--json").check().json()
    assert asked["changed"] is False


def test_the_source_file_may_move(box: Box) -> None:
    installed(box)
    box.run(["rm", FILE]).check()
    box.reboot()
    pd_units(box, "wait-ready", "dsv4", user="operator").check()
    pd_units(box, "status", "dsv4", "--exit-code", user="operator").check()


def test_a_router_that_wants_a_key_is_asked_with_it(box: Box) -> None:
    python = 'python = "/opt/router/bin/python"'
    answer = installed(box, deployment(**{python: f'{python}\nargs = {{ api-key = "k 1" }}'}))
    assert unit_of(answer, ROUTER)["state"] == "ready"
    assert box.http("http://127.0.0.1:30001/generate", {"text": "hello"})[0] == 401
    status = pd_units(box, "status", "--json", user="operator").check().json()
    assert status["deployments"][0]["router"]["ready"] is True


def test_retires_the_unit_that_it_replaces(box: Box) -> None:
    box.write("/etc/systemd/system/old-single.service", OLD_SERVER)
    box.run(["systemctl", "enable", "--now", "old-single.service"]).check()
    until("the old server", lambda: box.http("http://127.0.0.1:30000/health")[0] == 200)
    installed(box, deployment(**{'name = "dsv4"': 'name = "dsv4"\nretires = ["old-single.service"]'}))
    complete(box)
    assert box.state("old-single.service").split("/")[0] in ("inactive", "failed")
    assert box.run(["systemctl", "is-enabled", "old-single.service"]).out.strip() == "disabled"
    assert box.exists("/etc/systemd/system/old-single.service")


def test_uninstall_leaves_nothing(box: Box) -> None:
    installed(box)
    removed = pd_units(box, "uninstall", "dsv4", "--purge", "--json").check().json()
    assert removed["changed"] is True
    nothing_left(box)
    assert box.sh("systemctl --failed --no-legend --plain") == ""
    assert box.sh("ss -Hltn") == ""
    assert box.exists(FILE)  # the author's, not ours


def test_uninstall_keeps_what_it_was_not_asked_to_purge_and_installs_again(box: Box) -> None:
    installed(box)
    pd_units(box, "uninstall", "dsv4").check()
    assert not [trace for trace in traces(box) if trace.startswith("/etc/systemd")]
    again = install(box).check().json()
    assert again["changed"] is True
    complete(box)


def test_uninstall_while_loading(box: Box) -> None:
    load_and_hang(box)
    pd_units(box, "uninstall", "dsv4", "--purge").check()
    nothing_left(box)


def test_no_start_writes_and_enables_only(box: Box) -> None:
    write_deployment(box)
    install(box, "--no-start").check()
    assert {box.state(unit) for unit in UNITS} == {"inactive/dead"}
    box.reboot()
    pd_units(box, "wait-ready", user="operator").check()
    complete(box)


def test_another_engine_version_gets_the_options_that_it_has(box: Box) -> None:
    text = DEPLOYMENT.replace("/opt/sglang/bin", "/opt/sglang-0.5.23/bin")
    installed(
        box, text.replace("trust-remote-code = true", "trust-remote-code = true\nmax-running-requests = 64")
    )
    complete(box)
    pd_units(box, "uninstall", "dsv4", "--purge").check()
    nothing_left(box)
