"""Every preflight check fails for real on a booted box, in words that an operator can act on.

A box gets many faults, one after the other: each is made, found, and mended again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from serving import DEPLOYMENT, FILE, PREFILL, deployment, pd_units, write_deployment

from rig.box import Box, until

EVERY_CHECK = (
    "systemd journal gpu gpu-memory numa kernel-flags model engine ports limits environment-files disk"
)
HOUSEHOLD = "/run/fault"  # what faults are made of


@dataclass
class Found:
    """What preflight answered."""

    rc: int
    checks: list[dict[str, Any]]

    def failed(self, name: str, *words: str, severity: str = "error") -> dict[str, Any]:
        """The failure of `name` whose evidence or advice holds every word. Raises: AssertionError."""
        for check in self.checks:
            text = f"{check['evidence']} -> {check['advice']}"
            if check["name"] == name and not check["ok"] and all(word in text for word in words):
                assert check["severity"] == severity, check
                assert check["advice"], check
                if severity == "error":
                    assert self.rc == 13, (self.rc, check)
                return check
        bad = [f"{c['name']}: {c['evidence']} -> {c['advice']}" for c in self.checks if not c["ok"]]
        raise AssertionError(f"no failure of {name} with {words}; rc {self.rc}; failures: {bad}")

    def passed(self, name: str) -> None:
        """Raises: AssertionError with what failed."""
        mine = [check for check in self.checks if check["name"] == name]
        assert mine and all(check["ok"] for check in mine), mine

    def silent(self, name: str, *words: str) -> None:
        """Raises: AssertionError if a failure of `name` holds every word."""
        for check in self.checks:
            text = f"{check['evidence']} -> {check['advice']}"
            assert not (check["name"] == name and not check["ok"] and all(w in text for w in words)), check


def look(box: Box, *words: str, user: str = "root", skip: str = "gpu") -> Found:
    skipped = [word for name in skip.split() for word in ("--skip", name)]
    done = pd_units(box, "preflight", *skipped, "--json", *words, FILE, user=user)
    assert done.rc in (0, 13), (done.rc, done.out, done.err)
    answer = done.json()
    assert answer["exit_code"] == done.rc
    return Found(done.rc, answer["checks"])


@contextlib.contextmanager
def fault(box: Box, make: str, mend: str) -> Iterator[None]:
    """A fault by shell, mended afterwards."""
    box.sh(make)
    try:
        yield
    finally:
        box.sh(mend)


def covered(box: Box, path: str, text: str) -> contextlib.AbstractContextManager[None]:
    """Another text in the place of a file of /proc or /sys."""
    cover = f"{HOUSEHOLD}/{path.strip('/').replace('/', '_')}"
    box.write(cover, text)
    return fault(box, f"mount --bind {cover} {path}", f"umount {path}")


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


OLD = """
[Service]
ExecStart=/opt/sglang/bin/python -m sglang.launch_server --model-path /models/tiny --port 30000
"""


def test_limits(box: Box) -> None:
    write_deployment(box)
    with fault(box, "mount -o remount,size=64m /dev/shm", "mount -o remount,size=2g /dev/shm"):
        look(box).failed("limits", "/dev/shm holds 64 MiB", "remount", severity="warning")
    with fault(box, "truncate -s 1900m /dev/shm/left; fallocate -l 1700m /dev/shm/left", "rm /dev/shm/left"):
        look(box).failed("limits", "/dev/shm has ", "ls -l /dev/shm", severity="warning")
    with fault(box, "mount -o remount,noexec /tmp", "mount -o remount,exec /tmp"):
        look(box).failed("limits", "/tmp is mounted noexec", "TMPDIR", severity="warning")
        write_deployment(
            box, deployment(**{"[engine.environment]": '[engine.environment]\nTMPDIR = "/var/tmp"'})
        )
        look(box).silent("limits", "noexec")
        write_deployment(box)
    with covered(box, "/proc/sys/fs/nr_open", "4096\n"):
        look(box).failed("limits", "fs.nr_open is 4,096", "sysctl -w fs.nr_open", severity="warning")
    with drop_in(box, "service.d", "LimitMEMLOCK=64K\nLimitNOFILE=1024:4096"):
        found = look(box)
        found.failed(
            "limits", "service.d/fault.conf:2 sets LimitMEMLOCK=64K for dsv4-prefill", severity="warning"
        )
        found.failed("limits", "LimitNOFILE=1024:4096", "1048576", severity="warning")
    locked = box.sh("sed 's/^Max locked memory.*/Max locked memory  8388608  8388608  bytes/' /proc/1/limits")
    raising = box.sh("sed 's/^CapEff:.*/CapEff:\\t000001ffffffffff/' /proc/1/status")
    with covered(box, "/proc/1/limits", locked):
        # A container may not raise limits, unless it was given CAP_SYS_RESOURCE.
        look(box).failed(
            "limits", "systemd may lock no more than 8 MiB", "ulimit memlock", severity="warning"
        )
        with covered(box, "/proc/1/status", raising):
            look(box).passed("limits")


def drop_in(box: Box, folder: str, text: str) -> contextlib.AbstractContextManager[None]:
    path = f"/etc/systemd/system/{folder}/fault.conf"
    box.write(path, f"[Service]\n{text}\n")
    return fault(box, "true", f"rm {path}")


def test_drop_ins_that_undo_what_is_rendered(box: Box) -> None:
    write_deployment(box)
    for directive, name, severity in (
        ("MemoryDenyWriteExecute=yes", "systemd", "error"),
        ("SuccessExitStatus=SIGKILL", "systemd", "error"),
        ("KillMode=process", "systemd", "error"),
        ("ProtectHome=yes", "model", "error"),
        ("PrivateNetwork=yes", "ports", "error"),
    ):
        with drop_in(box, f"{PREFILL}.d", directive):
            look(box).failed(name, f"fault.conf:2 sets {directive} for {PREFILL}", severity=severity)
    with drop_in(box, f"{PREFILL}.d", "KillMode=process\nKillMode=mixed"):
        look(box).silent("systemd", "KillMode")
    with drop_in(box, "dsv4-.service.d", "PrivateDevices=yes"):
        look(box, "--topology", four_gpus(box), skip="gpu-memory").failed(
            "gpu", "PrivateDevices=yes", "sees no GPU"
        )


def four_gpus(box: Box, **more: Any) -> str:
    """A topology file with four GPUs on two NUMA nodes."""
    gpus = [
        {
            "index": n,
            "pci_address": f"0000:{0x41 + n:02x}:00.0",
            "numa": n // 2,
            "name": "RTX PRO 6000",
            **more,
        }
        for n in range(4)
    ]
    nodes = [{"id": 0, "cpus": "0"}, {"id": 1, "cpus": "1"}]
    box.write("/opt/topology.json", json.dumps({"gpus": gpus, "numa_nodes": nodes}))
    return "/opt/topology.json"


def test_environment_files(box: Box) -> None:
    file = "/etc/pd-units/nccl.env"
    write_deployment(
        box, deployment(**{'user = "sglang"': f'user = "sglang"\nenvironment_files = ["{file}"]'})
    )
    look(box).failed("environment-files", f"{file} does not exist", "environment_files")
    cases = {
        "NCCL_DEBUG=WARN\nexport NCCL_P2P_LEVEL=PHB\n": ("error", f"{file}:2 begins with export"),
        "# fine\n\nsource /opt/env.sh\n": ("warning", f"{file}:3 is no assignment: 'source /opt/env.sh'"),
        "LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH\n": ("warning", f"{file}:1 sets LD_LIBRARY_PATH to"),
        "CUDA_VISIBLE_DEVICES=0,1\n": ("error", f"{file}:1 sets CUDA_VISIBLE_DEVICES"),
        "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\n": (
            "warning",
            "holds a secret, and its mode is 0644",
            "chmod 600",
        ),
        "A=1\r\nB=2\r\n": ("error", "line ends of Windows"),
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


def test_the_journal(box: Box) -> None:
    write_deployment(box)
    box.write("/etc/systemd/journald.conf.d/fault.conf", "[Journal]\nStorage=none\n")
    box.run(["systemctl", "restart", "systemd-journald"]).check()
    look(box).failed(
        "journal", "Storage=none in /etc/systemd/journald.conf.d/fault.conf", "Storage=persistent"
    )
    box.write("/etc/systemd/journald.conf.d/fault.conf", "[Journal]\nStorage=volatile\n")
    box.sh(
        "systemctl stop systemd-journald.socket systemd-journald-dev-log.socket systemd-journald; "
        "rm -rf /var/log/journal; systemctl start systemd-journald.socket systemd-journald; logger hello"
    )
    found = look(box)
    found.passed("journal")
    assert any("forgotten at a reboot" in check["evidence"] for check in found.checks)
    box.sh("rm /etc/systemd/journald.conf.d/fault.conf")
    look(box, user="intruder").failed("journal", "not readable for this user", severity="warning")


def test_systemd_and_our_own_files(box: Box) -> None:
    write_deployment(box)
    with fault(box, "chmod o+w /opt/pd-units/bin", "chmod o-w /opt/pd-units/bin"):
        look(box).failed(
            "systemd", "/opt/pd-units/bin can be written by others than root", "only root can write"
        )
    with fault(
        box, "mv /run/dbus/system_bus_socket /run/dbus/away", "mv /run/dbus/away /run/dbus/system_bus_socket"
    ):
        look(box).failed("systemd", "systemd does not answer on the system bus", "dbus")
    look(box)


def test_disk(box: Box) -> None:
    write_deployment(box)
    with fault(box, "mount -t tmpfs -o size=8m,mode=777 small /home/sglang", "umount /home/sglang"):
        look(box).failed("disk", "/home/sglang has 8 MiB free", "kernel caches", severity="warning")
    with fault(box, "mv /home/sglang /home/away", "mv /home/away /home/sglang"):
        look(box).failed(
            "disk", "the home directory /home/sglang of sglang does not exist", severity="warning"
        )
        cache = '[engine.environment]\nXDG_CACHE_HOME = "/var/cache/sglang"'
        box.sh("install -d -o sglang /var/cache/sglang")
        write_deployment(box, deployment(**{"[engine.environment]": cache}))
        assert not [c for c in look(box).checks if c["name"] == "disk" and "home" in c["evidence"]]
        write_deployment(box)
    with fault(box, "chown root /home/sglang", "chown sglang /home/sglang"):
        look(box).failed("disk", "/home/sglang cannot be written by sglang", severity="warning")
    with fault(
        box,
        "mkdir /var/lib/pd-units; mount -t tmpfs -o size=1m small /var/lib/pd-units",
        "umount /var/lib/pd-units",
    ):
        look(box).failed("disk", "/var/lib/pd-units has 1 MiB free", "make room")


def test_numa_and_kernel_flags(box: Box) -> None:
    write_deployment(box, DEPLOYMENT.replace('numa = "none"', 'numa = "none"'))
    look(box, "--topology", four_gpus(box)).failed(
        "numa", "the engine binds its ranks by numactl", "apt install numactl", severity="warning"
    )
    auto = DEPLOYMENT.replace('numa = "none"', 'numa = "auto"')
    write_deployment(box, auto)
    with drop_in(box, f"{PREFILL}.d", "NUMAPolicy=bind\nNUMAMask=1\nCPUAffinity=1"):
        found = look(box, "--topology", four_gpus(box))
        found.failed("numa", "sets NUMAMask=1 for dsv4-prefill.service", severity="warning")
        found.failed("numa", "sets CPUAffinity=1", severity="warning")
    meminfo = "Node 0 MemTotal: 8388608 kB\nNode 0 MemFree: 1048576 kB\nNode 0 Active(file): 4 kB\n"
    box.sh("cp -r /sys/devices/system/node /run/node 2>/dev/null || true; mkdir -p /run/node/node0")
    box.write("/run/node/node0/meminfo", meminfo)
    with fault(box, "mount --bind /run/node /sys/devices/system/node", "umount /sys/devices/system/node"):
        found = look(box, "--topology", four_gpus(box))
        found.failed("numa", "NUMA node 0 has 1.0 GiB available for 2 ranks", severity="warning")
    flags = '[engine.sm120]\nSGLANG_SM120_FLASHMLA_BACKEND = "fast"\n\n[engine.args]'
    write_deployment(
        box, auto.replace("[engine.args]", flags).replace("/opt/sglang/bin", "/opt/sglang-0.5.23/bin")
    )
    found = look(box, "--topology", four_gpus(box, compute_capability="9.0"), skip="gpu-memory")
    found.failed("kernel-flags", "SGLANG_SM120_FLASHMLA_BACKEND is 'fast'", severity="warning")
    found.failed("kernel-flags", "has compute capability 9.0", severity="warning")
    skipped = look(box, "--topology", four_gpus(box, compute_capability="9.0"))
    assert not [check for check in skipped.checks if "capability 9.0" in check["evidence"]]


SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) echo "00000000:41:00.0, 97887, $(cat /run/fault/used)"; echo 00000000:42:00.0, 97887, 4 ;;
--query-compute-apps=*) cat /run/fault/apps ;;
esac
"""


def test_gpus_their_driver_and_their_memory(box: Box) -> None:
    """The box has no GPU: PCI devices, the driver's /proc and nvidia-smi are put in their places."""
    write_deployment(box)
    look(box, skip="disk").failed("gpu", "no NVIDIA GPU is visible on this host", "--skip gpu")
    topology = ["--topology", four_gpus(box)]
    box.sh(DRESS)
    with fault(box, "mount --bind /run/pci /sys/bus/pci/devices", "umount /sys/bus/pci/devices"):
        look(box, *topology, skip="gpu-memory").failed(
            "gpu", "the GPUs are on the PCI bus, and NVIDIA's driver is not loaded", "modprobe nvidia"
        )
        with fault(box, "mount --bind /run/driver /proc/driver", "umount /proc/driver"):
            found = look(box, *topology, skip="gpu-memory")
            found.failed("gpu", "the driver is loaded, but ", "/dev/nvidia-uvm", "nvidia-modprobe")
            found.failed("gpu", "1 NVSwitches, nvidia-fabricmanager.service is inactive", "enable --now")
            box.sh("for n in nvidiactl nvidia-uvm nvidia0 nvidia1; do ln -s /dev/null /dev/$n; done")
            with fault(
                box, "rm /dev/nvidia0; touch /dev/nvidia0; chmod 600 /dev/nvidia0", "chmod 666 /dev/nvidia0"
            ):
                look(box, *topology, skip="gpu-memory").failed(
                    "gpu", "sglang may not use /dev/nvidia0", "usermod"
                )
            box.write(
                "/etc/systemd/system/nvidia-fabricmanager.service",
                "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n",
            )
            box.run(["systemctl", "start", "nvidia-fabricmanager.service"]).check()
            look(box, *topology, skip="gpu-memory").passed("gpu")
    box.write("/usr/local/bin/nvidia-smi", SMI, mode=0o755)
    holder = box.popen(["sleep", "300"], user="intruder")
    pid = until("the holder", lambda: box.run(["pgrep", "-u", "intruder", "sleep"]).out.strip())
    box.write("/run/fault/used", "90000")
    box.write("/run/fault/apps", f"00000000:41:00.0, {pid}, 89000\n")
    try:
        look(box, *topology, skip="disk").failed(
            "gpu-memory",
            "GPU 0 of dsv4-prefill.service: ",
            f"is held by process {pid} sleep",
            "runs out of memory",
        )
    finally:
        holder.kill()
        holder.wait()
    box.write("/run/fault/apps", "")
    look(box, *topology, skip="disk").failed("gpu-memory", "no process that is seen here")
    box.write("/run/fault/used", "3000")
    look(box, *topology, skip="disk").failed("gpu-memory", "2.9 GiB of 95.6 GiB", severity="warning")
    box.write("/run/fault/used", "300")
    look(box, *topology, skip="disk").passed("gpu-memory")


DRESS = r"""
mkdir -p /run/pci/0000:41:00.0 /run/pci/0000:50:00.0 /run/driver/nvidia/gpus
echo 0x10de | tee /run/pci/0000:41:00.0/vendor >/run/pci/0000:50:00.0/vendor
echo 0x030200 >/run/pci/0000:41:00.0/class; echo 0x068000 >/run/pci/0000:50:00.0/class
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build' >/run/driver/nvidia/version
for n in 0 1; do
    mkdir /run/driver/nvidia/gpus/0000:4$((n + 1)):00.0
    printf 'Device Minor: \t %s\n' $n >/run/driver/nvidia/gpus/0000:4$((n + 1)):00.0/information
done
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
