"""Facts of running processes in, deviations out."""

from __future__ import annotations

import json

import pytest

from pd_units.verification import (
    ProcessFacts,
    Verification,
    Wanted,
    is_placement_variable,
    parse_numa_maps,
    verification_from_json,
    verify,
)

DECODE = Wanted(
    unit="dsv4-decode.service",
    gpus=(4, 5, 6, 7),
    numa=(1,),
    cpus="32-63,96-127",
    environment={
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "SGLANG_SM120_MMA_FLASHMLA": "1",
    },
    addresses={4: "0000:81:00.0", 5: "0000:82:00.0", 6: "0000:c1:00.0", 7: "0000:c2:00.0"},
)
ADDRESSES = {0: "0000:01:00.0", 1: "0000:02:00.0", 2: "0000:41:00.0", 3: "0000:42:00.0", **DECODE.addresses}

# As a kernel 6.1 writes it for a process under NUMAPolicy=bind, NUMAMask=1.
NUMA_MAPS = """\
00400000 bind:1 file=/usr/bin/python3.11 mapped=31 N0=31 kernelpagesize_kB=4
00a2b000 bind:1 file=/usr/bin/python3.11 anon=126 dirty=126 mapped=153 N0=27 N1=126 kernelpagesize_kB=4
00aa6000 bind:1 file=/usr/bin/python3.11 anon=63 dirty=63 active=0 N1=63 kernelpagesize_kB=4
01c9e000 bind:1 heap anon=1200 dirty=1200 active=0 N1=1200 kernelpagesize_kB=4
7f3b4e200000 bind:1 anon=12800 dirty=12800 active=0 N1=12800 kernelpagesize_kB=4
7f3b51500000 bind:1 file=/dev/shm/psm_a1 dirty=512 N0=512 kernelpagesize_kB=4
7f3b52000000 bind:1 huge anon=4 dirty=4 N1=4 kernelpagesize_kB=2048
7f3b53000000 bind:1 file=/anon_hugepage\\040(deleted) huge anon=2 dirty=2 N0=2 kernelpagesize_kB=2048
7f3b54000000 default
7f3b55000000 prefer (many):0-1 anon=10 dirty=10 N0=10 kernelpagesize_kB=4
7f3b56000000 weighted interleave:0-1 anon=4 dirty=4 N0=2 N1=2 kernelpagesize_kB=4
7ffd1f5d0000 bind:1 stack anon=12 dirty=12 active=0 N1=12 kernelpagesize_kB=4
"""


def process(pid=100, *, name="sglang::schedul", **changed):
    facts = {
        "cpus": {"32-63,96-127": 40},
        "policies": {"bind:1": 900},
        "pages": {1: 12_000},
        "environment": dict(DECODE.environment),
    }
    return ProcessFacts(pid=pid, name=name, **{**facts, **changed})


def deviations(*processes, wanted=DECODE, **more):
    return verify(wanted, processes, **more).deviations


def test_numa_maps_counts_what_the_process_wrote_itself():
    policies, pages = parse_numa_maps(NUMA_MAPS)
    assert pages == {1: 63 + 1200 + 12_800 + 4 * 512 + 2 + 12, 0: 2 * 512 + 10 + 2}
    assert policies == {"bind:1": 9, "default": 1, "prefer (many):0-1": 1, "weighted interleave:0-1": 1}


@pytest.mark.parametrize(
    "text", ["", "\n", "7f00\n", "7f00 default\n", "no maps at all", "7f00 bind:1 N=3 N1=\n"]
)
def test_numa_maps_that_say_nothing(text):
    assert parse_numa_maps(text)[1] == {}


def test_every_process_in_its_place_is_verified():
    found = verify(DECODE, [process(1), process(2, pages={0: 400, 1: 11_600})], addresses_now=ADDRESSES)
    assert found.verified is True
    assert found.deviations == ()
    assert found.processes == 2
    assert found.pages == {"0": 400, "1": 23_600}
    assert found.sm120 == {"SGLANG_SM120_MMA_FLASHMLA": "1"}


def test_pages_on_another_node_are_named_with_their_share():
    assert deviations(process(123, pages={0: 4_800, 1: 7_200})) == (
        "dsv4-decode: process 123 (sglang::schedul) has 40 % of 12,000 anonymous pages on NUMA node 0, "
        "wants node 1",
    )


@pytest.mark.parametrize(("away", "wrong"), [(599, False), (600, False), (601, True)])
def test_five_in_a_hundred_pages_may_be_elsewhere(away, wrong):
    assert bool(deviations(process(pages={0: away, 1: 12_000 - away}))) is wrong


def test_a_megabyte_says_nothing():
    assert deviations(process(pages={0: 200})) == ()


def test_cpus_beyond_the_node():
    (found,) = deviations(process(7, cpus={"0-127": 40}), process(8, cpus={"0-127": 12}))
    assert found == (
        "dsv4-decode: processes 7 (sglang::schedul), 8 (sglang::schedul) may run on CPUs 0-127, "
        "wants 32-63,96-127"
    )


def test_a_process_may_narrow_itself():
    assert deviations(process(cpus={"33": 1, "40-47": 3})) == ()


def test_a_few_threads_that_left():
    (found,) = deviations(process(7, cpus={"32-63,96-127": 38, "0-127": 2}))
    assert "may run with 2 of its 40 threads on CPUs 0-127" in found


@pytest.mark.parametrize(
    "policy", ["default", "local", "bind:0", "bind:0-1", "interleave:0-1", "prefer:0", "prefer (many):0-1"]
)
def test_a_policy_that_does_not_bind_to_the_node(policy):
    (found,) = deviations(process(7, policies={policy: 900, "bind:1": 2}))
    assert f"has the memory policy {policy}, wants bind:1" in found


@pytest.mark.parametrize("policy", ["bind:1", "bind=static:1", "bind=relative,static:1", "prefer:1"])
def test_a_policy_that_does(policy):
    assert deviations(process(policies={policy: 900, "default": 2})) == ()


def test_several_nodes():
    both = Wanted(unit="u.service", numa=(0, 1), cpus="0-127")
    found = process(cpus={"0-127": 1}, policies={"bind:0-1": 9}, pages={0: 6000, 1: 6000})
    assert deviations(found, wanted=both) == ()
    assert (
        "node 2"
        in deviations(process(cpus={"0-127": 1}, policies={"bind:0-1": 9}, pages={2: 999}), wanted=both)[0]
    )


def test_a_pin_that_was_overridden():
    wrong = dict(DECODE.environment, CUDA_VISIBLE_DEVICES="0,1,2,3")
    (found,) = deviations(process(7, environment=wrong), process(8))
    assert found == "dsv4-decode: process 7 (sglang::schedul) has CUDA_VISIBLE_DEVICES=0,1,2,3, wants 4,5,6,7"


def test_a_pin_that_is_gone():
    (found,) = deviations(process(7, environment={}, name="python"))[1:2]
    assert found == "dsv4-decode: process 7 (python) lacks CUDA_VISIBLE_DEVICES, wants 4,5,6,7"


def test_words_agree_with_their_number():
    wrong = dict(DECODE.environment, CUDA_VISIBLE_DEVICES="0,1,2,3")
    (found,) = deviations(process(7, environment=wrong), process(8, environment=wrong))
    assert "processes 7 (sglang::schedul), 8 (sglang::schedul) have CUDA_VISIBLE_DEVICES=0,1,2,3" in found


def test_a_rank_that_sees_its_own_gpu_only():
    assert deviations(process(environment=dict(DECODE.environment, CUDA_VISIBLE_DEVICES="6"))) == ()


def test_base_gpu_id_wants_all_gpus_visible():
    wanted = Wanted(unit="u.service", gpus=(4, 5), environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert deviations(process(environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}), wanted=wanted) == ()
    (found,) = deviations(process(7), wanted=wanted)
    assert "has CUDA_VISIBLE_DEVICES=4,5,6,7, wants all GPUs visible: --base-gpu-id picks 4-5" in found


def test_a_kernel_flag_that_was_turned_off():
    (found,) = deviations(process(environment=dict(DECODE.environment, SGLANG_SM120_MMA_FLASHMLA="0")))
    assert "has SGLANG_SM120_MMA_FLASHMLA=0, wants 1" in found


def test_the_variables_of_an_older_install_are_not_known():
    assert deviations(process(environment={}), wanted=Wanted(unit="u.service", gpus=(4,))) == ()


def test_memory_on_a_gpu_of_somebody_else():
    found = process(7, gpu_memory={4: 60 << 30, 0: 3 << 30, 1: 400 << 20})
    assert deviations(found) == (
        "dsv4-decode: process 7 (sglang::schedul) holds 3.0 GiB on GPU 0, wants GPU 4-7",
    )
    assert verify(DECODE, [found, process(8)]).gpu_memory_bytes == {
        "0": 3 << 30,
        "1": 400 << 20,
        "4": 60 << 30,
    }
    assert verify(DECODE, [process(8)]).gpu_memory_bytes is None


def test_a_gpu_that_vanished_moves_the_indexes_of_those_behind_it():
    now = {0: "0000:01:00.0", 1: "0000:02:00.0", 2: "0000:42:00.0", 3: "0000:81:00.0"}
    now |= {4: "0000:82:00.0", 5: "0000:c1:00.0", 6: "0000:c2:00.0"}
    found = deviations(process(), addresses_now=now)
    assert len(found) == 4
    assert found[0].startswith("dsv4-decode: GPU 4 was 0000:81:00.0 at install and is 0000:82:00.0 now")
    assert found[3].startswith("dsv4-decode: GPU 7 was 0000:c2:00.0 at install and is none now")


def test_one_of_its_own_gpus_that_vanished():
    now = {index: address for index, address in ADDRESSES.items() if index != 7}
    assert deviations(process(), addresses_now=now) == (
        "dsv4-decode: GPU 7 (0000:c2:00.0) was there at install and is not there now",
    )


def test_uuids_hold_on_to_their_gpus():
    pinned = {**DECODE.environment, "CUDA_VISIBLE_DEVICES": "GPU-4,GPU-5,GPU-6,GPU-7"}
    wanted = Wanted(unit="u.service", gpus=DECODE.gpus, environment=pinned, addresses=DECODE.addresses)
    moved = {index + 1: address for index, address in ADDRESSES.items()}
    assert deviations(process(environment=pinned), wanted=wanted, addresses_now=moved) == ()


def test_nothing_is_said_of_gpus_that_nobody_knows():
    assert deviations(process(), addresses_now=None) == ()


def test_many_processes_are_counted_not_listed():
    (found,) = deviations(*[process(pid, cpus={"0-127": 1}) for pid in range(20, 29)])
    assert (
        "processes 20 (sglang::schedul), 21 (sglang::schedul), 22 (sglang::schedul) and 6 more may run"
        in found
    )


@pytest.mark.parametrize(
    ("name", "looked_at"),
    [
        ("CUDA_VISIBLE_DEVICES", True),
        ("CUDA_DEVICE_ORDER", True),
        ("SGLANG_SM120_MMA_FLASHMLA", True),
        ("SGLANG_OPT_SM120_DIRECT_SWA_KV", True),
        ("HF_TOKEN", False),
        ("SGLANG_API_KEY", False),
        ("CUDA_VISIBLE_DEVICES_TOKEN", False),
    ],
)
def test_only_variables_that_place_a_process_are_looked_at(name, looked_at):
    assert is_placement_variable(name) is looked_at


def test_kept_and_read_again():
    found = verify(DECODE, [process(1, pages={0: 12_000}, gpu_memory={4: 5})], measured=12.5)
    assert found.verified is False
    assert verification_from_json(json.loads(json.dumps(found.to_json()))) == found
    unknown = Verification(verified=None, reason="nobody looked")
    assert verification_from_json(json.loads(json.dumps(unknown.to_json()))) == unknown


@pytest.mark.parametrize("value", [{"verified": "yes"}, {"verified": 1}])
def test_what_is_no_verification_is_none(value):
    assert verification_from_json(value) is None
