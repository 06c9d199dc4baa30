"""Every preflight check of a deployment fails for real on a booted box, in words that an operator can act on.

A box gets many faults, one after the other: each is made, found, and mended again.
"""

from __future__ import annotations

import json

from preflighting import Found, fault, look
from serving import FILE, PREFILL, deployment, pd_units, write_deployment

from pd_units.preflight.environment import assignments
from rig.box import Box, until

EVERY_CHECK = (
    "systemd journal gpu gpu-memory numa kernel-flags model engine ports limits environment-files disk"
)


def test_a_good_box_passes_and_every_check_has_a_name(box: Box) -> None:
    write_deployment(box, deployment(**{"trust-remote-code = true": 'load-format = "dummy"'}))
    found = look(box)
    assert found.rc == 0, found
    names = {check["name"] for check in found.checks}
    assert names == set(EVERY_CHECK.split()) - {"gpu", "gpu-memory"}
    bad = {check["name"] for check in found.checks if not check["ok"]}
    # A small disk, locked memory that a container may not raise, and perhaps this machine's clock.
    assert bad <= {"disk", "limits", "systemd"}, found.checks
    listed = pd_units(box, "preflight", "--list").check().out
    assert [line.split()[0] for line in listed.splitlines()] == EVERY_CHECK.split()
    unseen = look(box, user="operator")
    assert unseen.rc == 0
    unseen.failed("journal", "not readable", "systemd-journal", severity="warning")


def test_a_model_that_is_not_whole(box: Box) -> None:
    box.write("/opt/model.py", MAKE_MODEL)
    text = deployment(**{'model = "/models/tiny"': 'model = "/models/big"'})
    write_deployment(box, text)
    look(box).failed("model", "/models/big does not exist (/models does)", "mend engine.model")
    box.sh("python3 /opt/model.py /models/big")
    found = look(box)
    found.passed("model")
    good = next(check for check in found.checks if check["name"] == "model")
    assert "/models/big: 4 files of weights, 4 MiB, LlamaForCausalLM" in good["evidence"]
    shard = "/models/big/model-00003-of-00004.safetensors"
    faults = {
        # the field's first: a link of the hub's cache whose blob was removed
        "ln -sf ../blobs/0a1b2c": ["model-00003-of-00004.safetensors is a symlink to ../blobs/0a1b2c"],
        "rm -f": ["1 of 4 shards are missing: model-00003-of-00004.safetensors"],
        "truncate -s 700000": [
            "model-00003-of-00004.safetensors has 700,000 of ",
            "not downloaded to its end",
        ],
        "truncate -s 0": ["model-00003-of-00004.safetensors is empty"],
        "echo version https://git-lfs.github.com/spec/v1 >": ["Git LFS pointer", "git lfs pull"],
        "echo this is no header but an error page of a proxy >": ["has no safetensors header"],
    }
    for make, words in faults.items():
        with fault(box, f"cp {shard} /opt/kept; {make} {shard}", f"rm -f {shard}; cp /opt/kept {shard}"):
            look(box).failed("model", "/models/big: ", *words)
    look(box).passed("model")
    for make, words in {
        "rm /models/big/config.json": ["config.json is not there"],
        "echo '{' >/models/big/config.json": ["config.json is not JSON"],
        "echo '[]' >/models/big/config.json": ["config.json is not a JSON object"],
        "chmod 700 /models/big": ["sglang may not read", "/models/big", "chmod -R o+rX"],
        f"chmod 600 {shard}": ["sglang may not read", shard],
        "rm -r /models/big; ln -s /mnt/nowhere /models/big": ["/models/big is a symlink to /mnt/nowhere"],
    }.items():
        with fault(box, make, "rm -rf /models/big; python3 /opt/model.py /models/big"):
            look(box).failed("model", *words)
    box.sh("rm /models/big/*.safetensors /models/big/*.index.json")
    look(box).failed("model", "/models/big holds no weights", severity="warning")
    gpus = [{"index": n, "memory_bytes": 1 << 20} for n in range(4)]
    box.write("/opt/topology.json", json.dumps({"gpus": gpus}))
    box.sh("python3 /opt/model.py /models/big")
    look(box, "--topology", "/opt/topology.json").failed(
        "model", "4 MiB of weights, and the 2 GPUs of dsv4-prefill.service have 2 MiB", severity="warning"
    )


MAKE_MODEL = """
import json, pathlib, struct, sys
folder = pathlib.Path(sys.argv[1]); folder.mkdir(parents=True, exist_ok=True)
(folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
names = [f"model-{n:05}-of-00004.safetensors" for n in range(1, 5)]
for name in names:
    header = json.dumps({"w": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}}).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(1 << 20))
weight_map = {f"layer.{number}": name for number, name in enumerate(names)}
index = {"metadata": {"total_size": 4 << 20}, "weight_map": weight_map}
(folder / "model.safetensors.index.json").write_text(json.dumps(index))
"""


def test_interpreters(box: Box) -> None:
    def with_python(path: str) -> Found:
        write_deployment(box, deployment(**{"/opt/sglang/bin/python": path}))
        return look(box)

    with_python("/opt/none/bin/python").failed(
        "engine", "/opt/none/bin/python does not exist", "engine.python"
    )
    # The units are right all the same: what is missing is not the template's business.
    assert pd_units(box, "diff", "--skip", "gpu", FILE).rc == 0
    assert pd_units(box, "install", "--check", "--skip", "gpu", FILE).rc == 0
    box.sh("mkdir -p /opt/gone/bin; ln -s /usr/bin/python3.1 /opt/gone/bin/python")
    with_python("/opt/gone/bin/python").failed(
        "engine", "is a symlink to /usr/bin/python3.1, which is not there"
    )
    with_python("/usr/bin/python3").failed(
        "engine", "/usr/bin/python3 cannot import sglang", "pip install sglang"
    )
    box.sh("mkdir -p /opt/closed/bin; cp -L /usr/bin/python3 /opt/closed/bin/python; chmod 700 /opt/closed")
    with_python("/opt/closed/bin/python").failed("engine", "cannot be executed by sglang")
    box.sh("printf '#!/bin/sh\\necho boom: no such library >&2\\nexit 1\\n' >/opt/bad; chmod 755 /opt/bad")
    with_python("/opt/bad").failed("engine", "boom: no such library")
    write_deployment(box, deployment(**{'user = "sglang"': 'user = "nobody-here"'}))
    look(box).failed("engine", "there is no user 'nobody-here'", "useradd")
    write_deployment(box)
    site = box.sh("echo /opt/sglang/lib/python3*/site-packages").strip()
    with fault(
        box, f"mv {site}/sglang-0.5.13.dist-info /opt/kept", f"mv /opt/kept {site}/sglang-0.5.13.dist-info"
    ):
        look(box).failed("engine", "its version cannot be read", severity="warning")
    with fault(box, "mv /opt/router /opt/router.off", "mv /opt/router.off /opt/router"):
        look(box).failed("engine", "/opt/router/bin/python does not exist", "router.python")
    look(box).passed("engine")


def test_ports_and_who_holds_them(box: Box) -> None:
    write_deployment(box)
    listen = "import socket, time; s = socket.create_server(('0.0.0.0', 30002))"
    listen += "; print('up', flush=True); time.sleep(300)"
    squatter = box.popen(["python3", "-c", listen], user="intruder")
    try:
        assert squatter.stdout is not None and squatter.stdout.readline() == "up\n"
        found = look(box).failed(
            "ports", "port 30002 of dsv4-decode.service is held by process ", "python3 -c"
        )
        assert "deployment.retires" in found["advice"]
        unseen = look(box, user="operator")
        unseen.failed("ports", "port 30002", "a process of intruder, which this user cannot see")
    finally:
        squatter.kill()
        squatter.wait()
    until("the port is free", lambda: look(box).rc == 0)
    box.write("/etc/systemd/system/old.service", OLD)
    box.run(["systemctl", "start", "old.service"]).check()
    until("the old server", lambda: box.http("http://127.0.0.1:30000/health")[0] == 200)
    look(box).failed("ports", "port 30000 of dsv4-prefill.service is held by process ", "of old.service")
    write_deployment(box, deployment(**{'name = "dsv4"': 'name = "dsv4"\nretires = ["old.service"]'}))
    look(box).passed("ports")
    box.run(["systemctl", "stop", "old.service"]).check()
    # One prefill becomes two: the running one is ours if pd-units' own records say so.
    box.write(f"/etc/systemd/system/{PREFILL}", OLD)
    box.run(["systemctl", "start", PREFILL]).check()
    until("the first prefill", lambda: box.http("http://127.0.0.1:30000/health")[0] == 200)
    second = '[[prefill]]\ngpus = [4, 5]\nnuma = "none"\nport = 30003\nbootstrap_port = 8999\n\n[[decode]]'
    write_deployment(box, deployment(**{"[[decode]]": second}))
    look(box).failed("ports", f"of {PREFILL}", f"systemctl disable --now {PREFILL}")
    box.write("/var/lib/pd-units/dsv4/manifest.json", json.dumps({"schema": 1, "files": {PREFILL: "0"}}))
    look(box).passed("ports")


OLD = """
[Service]
ExecStart=/opt/sglang/bin/python -m sglang.launch_server --model-path /models/tiny --port 30000
"""


def test_environment_files(box: Box) -> None:
    file = "/etc/pd-units/nccl.env"
    write_deployment(
        box, deployment(**{'user = "sglang"': f'user = "sglang"\nenvironment_files = ["{file}"]'})
    )
    look(box).failed("environment-files", f"{file} does not exist", "environment_files")
    cases = {
        "NCCL_DEBUG=WARN\nexport NCCL_P2P_LEVEL=PHB\n": ("error", f"{file}:2 begins with export"),
        "# fine\n\nsource /opt/env.sh\n": ("warning", f"{file}:3 is no assignment"),
        "LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH\n": ("error", f"{file}:1 sets LD_LIBRARY_PATH"),
        "CUDA_VISIBLE_DEVICES=0,1\n": ("error", f"{file}:1 sets CUDA_VISIBLE_DEVICES"),
        "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\n": (
            "warning",
            "holds a secret, and its mode is 0644",
            "chmod 600",
        ),
        "A=1\\\r\nB=2\r\n": ("error", "line ends of Windows"),
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n": ("warning", "expandable_segments", "NIXL"),
    }
    for text, (severity, *words) in cases.items():
        box.write(file, text)
        look(box).failed("environment-files", *words, severity=severity)
    box.write(file, "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\nNCCL_P2P_LEVEL=PHB\n", mode=0o600)
    look(box).passed("environment-files")
    look(box, user="operator").passed("environment-files")
    box.sh(f"rm {file}; mkdir {file}")
    look(box).failed("environment-files", f"{file} is a directory")
    segments = 'PYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True"'
    write_deployment(box, deployment(**{"[engine.environment]": f"[engine.environment]\n{segments}"}))
    look(box).failed(
        "environment-files", "PYTORCH_CUDA_ALLOC_CONF of dsv4-prefill.service", severity="warning"
    )


def test_environment_files_are_read_as_systemd_reads_them(box: Box) -> None:
    odd = ODD_FILE + "XC=1\r\nXD='2'\r\nXE=3\\\r\nXF=4\r"
    box.write("/opt/odd.env", odd)
    got = box.run(
        ["systemd-run", "-q", "--pipe", "--wait", "-pEnvironmentFile=/opt/odd.env", "env", "-0"]
    ).check()
    variables = dict(each.split("=", 1) for each in got.out.split("\0") if each.startswith("X"))
    assert variables == {name: value for _, name, value in assignments(odd) if name}
    box.sh(r"printf 'A=caf\351\n' >/opt/odd.env")
    assert box.run(["systemd-run", "-q", "--wait", "-pEnvironmentFile=/opt/odd.env", "true"]).rc != 0


ODD_FILE = r"""
X1='one
X2=two'
X3="a
\"b\" \x \$HOME\
c" 'd' e # f
X4 = it's
X5=a\ b\
c
# it's = X6
;X7=1
=X8=1
X9="a"  "b"
words 'X10=1
XB=1
"""


def test_what_a_user_may_not_look_into_is_said(box: Box) -> None:
    text = deployment(**{"/opt/sglang/bin/python": "/root/v/bin/python", "/models/tiny": "/root/models/m"})
    text = text.replace('user = "sglang"', 'user = "sglang"\nenvironment_files = ["/root/etc/nccl.env"]')
    text = text.replace("[engine.environment]", '[engine.environment]\nTMPDIR = "/root/tmp"')
    write_deployment(box, text)
    box.sh(
        "mkdir -p /root/v/bin /root/models/m /root/etc /root/tmp; touch /root/etc/nccl.env; chmod 700 /root"
    )
    found = look(box, user="operator")
    assert found.rc == 0
    for name in ("engine", "model", "environment-files", "limits"):
        found.failed(name, "/root/", "run preflight as root", severity="warning")


def test_install_stops_before_it_touches_anything(box: Box) -> None:
    write_deployment(box, deployment(**{'model = "/models/tiny"': 'model = "/models/none"'}))
    done = pd_units(box, "install", "--skip", "gpu", "--json")
    assert done.rc == 13
    assert "/models/none does not exist" in json.dumps(done.json())
    assert not box.exists(f"/etc/systemd/system/{PREFILL}")
    text = pd_units(box, "install", "--skip", "gpu").err
    assert "model: /models/none does not exist (/models does)" in text
    assert "mend engine.model" in text
