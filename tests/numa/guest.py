"""What happens inside the two-node machine: test devices dressed as GPUs, pd-units installed, and the truth
measured without it. Prints one JSON object a line; the host's test judges them.

Standard library only, run as root by numa-test.service.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

PCI = Path("/sys/bus/pci/devices")
DRESS = Path("/run/dress")
MARK = "pd-units numa test: complete"
NVIDIA_MAJOR = 195
RTX_PRO_6000 = "0x2bb1"
FILE = Path("/etc/pd-units/dsv4.toml")
PREFILL, DECODE, ROUTER = (f"dsv4-{role}.service" for role in ("prefill", "decode", "router"))
BALLAST_MB = 50
DEPLOYMENT = f"""
[deployment]
name = "dsv4"

[engine]
kind = "sglang"
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"

[engine.environment]
PYTHONPATH = "/test/ballast"
PD_BALLAST_MB = "{BALLAST_MB}"

[engine.sm120]
SGLANG_SM120_MMA_FLASHMLA = "1"
SGLANG_SM120_TRITON_INDEXER = "1"

[engine.args]
trust-remote-code = true
load-format = "dummy"

[[prefill]]
gpus = [0, 1, 2, 3]
numa = "auto"
port = 30000
bootstrap_port = 8998
dist_init_port = 30335
args = {{ mem-fraction-static = 0.70 }}

[[decode]]
gpus = [4, 5, 6, 7]
numa = "auto"
port = 30002
dist_init_port = 30435
args = {{ mem-fraction-static = 0.60 }}

[router]
host = "0.0.0.0"
port = 30001
python = "/opt/router/bin/python"
"""
BEGAN = time.monotonic()
LIBC = ctypes.CDLL(None, use_errno=True)
MS_BIND = 4096


def tell(step: str, **facts: object) -> None:
    """One line of the answer."""
    print(json.dumps({"step": step, "at_s": round(time.monotonic() - BEGAN, 1), **facts}), flush=True)


def run(*argv: str, timeout_s: float = 600.0) -> dict[str, object]:
    """What a command did; `json` if its standard output is."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)
    facts: dict[str, object] = {
        "argv": argv,
        "rc": done.returncode,
        "out": done.stdout,
        "err": done.stderr[-6000:],
    }
    try:
        facts["json"] = json.loads(done.stdout)
        facts["out"] = ""
    except ValueError:
        pass
    return facts


def must(*argv: str, timeout_s: float = 600.0) -> str:
    """Its standard output. Raises: RuntimeError with everything it said if it failed."""
    done = run(*argv, timeout_s=timeout_s)
    if done["rc"]:
        raise RuntimeError(f"{done}")
    return str(done["out"])


# Test devices as GPUs


def over(path: Path, text: str) -> None:
    """Puts a text in the place of a file that cannot be written."""
    cover = DRESS / str(path.resolve()).strip("/").replace("/", "_")
    cover.write_text(text)
    bind(cover, path)


def bind(source: Path, target: Path) -> None:
    """mount --bind, without a process for each. Raises: OSError."""
    if LIBC.mount(str(source).encode(), str(target).encode(), None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), f"mount --bind {source} {target}")


def dress() -> list[str]:
    """Makes the test devices look like GPUs, driver and device nodes included; their addresses."""
    DRESS.mkdir()
    addresses = []
    for device in sorted(PCI.iterdir()):
        node = int((device / "numa_node").read_text())
        if (device / "vendor").read_text().strip() != "0x1b36" or (
            device / "device"
        ).read_text().strip() != "0x0005":
            continue
        over(device / "vendor", "0x10de\n")
        over(device / "device", f"{RTX_PRO_6000}\n")
        over(device / "class", "0x030000\n" if node == 0 else "0x030200\n")
        addresses.append(device.name)
    driver = DRESS / "driver"
    for number, address in enumerate(addresses):
        folder = driver / "nvidia/gpus" / address
        folder.mkdir(parents=True)
        information = {
            "Model": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "IRQ": "0",
            "GPU UUID": f"GPU-{number:08x}-0000-4000-8000-000000000000",
            "Bus Location": address,
            "Device Minor": str(number),
            "GPU Excluded": "No",
        }
        (folder / "information").write_text(
            "".join(f"{key}: \t {value}\n" for key, value in information.items())
        )
        device_node(f"nvidia{number}", number)
    for name, minor in (("nvidiactl", 255), ("nvidia-uvm", 254)):
        device_node(name, minor)
    (driver / "nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    bind(driver, Path("/proc/driver"))
    return addresses


def device_node(name: str, minor: int) -> None:
    """A device node as nvidia-modprobe makes it."""
    os.mknod(f"/dev/{name}", 0o020666, os.makedev(NVIDIA_MAJOR, minor))
    Path(f"/dev/{name}").chmod(0o666)


def unplug(address: str) -> None:
    """Takes a GPU off the bus, as a hot unplug does; its driver then forgets it."""
    for name in ("vendor", "device", "class"):
        must("umount", str((PCI / address / name).resolve()))
    (PCI / address / "remove").write_text("1")
    shutil.rmtree(DRESS / "driver/nvidia/gpus" / address)


# The truth, measured without pd-units


def pids_of(unit: str) -> list[int]:
    """The unit's processes, without pd-units' own."""
    group = must("systemctl", "show", "--property=ControlGroup", "--value", unit).strip()
    pids = [int(pid) for pid in Path(f"/sys/fs/cgroup{group}/cgroup.procs").read_text().split()]
    return [pid for pid in pids if b"pd_units" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


def pages_of(pid: int) -> dict[str, int]:
    """Anonymous pages by NUMA node, from numa_maps."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if " file=" not in line and " anon=" in line:
            for node, count in re.findall(r" N(\d+)=(\d+)", line):
                found[node] = found.get(node, 0) + int(count)
    return found


def measure(unit: str) -> list[dict[str, object]]:
    """Of each process of a unit: its pages, its CPUs, its policy, its pin."""
    rows = []
    for pid in pids_of(unit):
        status = dict(re.findall(r"^(\w+):\s*(.*)$", Path(f"/proc/{pid}/status").read_text(), re.M))
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        wanted = ("CUDA_", "SGLANG_SM120")
        maps = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
        rows.append(
            {
                "pid": pid,
                "name": status["Name"],
                "cpus": status["Cpus_allowed_list"],
                "pages": pages_of(pid),
                "policies": sorted({line.split()[1] for line in maps}),
                "environment": dict(v.split("=", 1) for v in environment if v.startswith(wanted)),
            }
        )
    return rows


def open_as(unit: str, paths: list[str]) -> dict[str, str]:
    """What a process in the unit's control group gets when it opens each device: ENXIO is a device with
    nothing behind it, EPERM one that the unit may not have."""
    group = must("systemctl", "show", "--property=ControlGroup", "--value", unit).strip()
    code = (
        "import errno, json, os, sys\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "found = {}\n"
        "for path in sys.argv[2:]:\n"
        "    try:\n"
        "        os.close(os.open(path, os.O_RDWR)); found[path] = 'opened'\n"
        "    except OSError as error:\n"
        "        found[path] = errno.errorcode[error.errno]\n"
        "print(json.dumps(found))"
    )
    done = run("python3", "-I", "-c", code, f"/sys/fs/cgroup{group}/cgroup.procs", *paths)
    return dict(done["json"])


# The scenes


def drop_in(unit: str, text: str) -> None:
    folder = Path(f"/etc/systemd/system/{unit}.d")
    folder.mkdir(exist_ok=True)
    (folder / "50-operator.conf").write_text(text)


def scene_discovery() -> list[str]:
    addresses = dress()
    nodes = {a: int((PCI / a / "numa_node").read_text()) for a in addresses}
    tell("dressed", addresses=addresses, numa=nodes)
    tell("topology", **run("pd-units", "topology", "--json"))
    FILE.write_text(DEPLOYMENT)
    tell("preflight", **run("pd-units", "preflight", "--json", str(FILE)))
    return addresses


def scene_install() -> None:
    done = run("pd-units", "install", "--json", str(FILE))
    tell("install", **done)
    if done["rc"]:
        raise RuntimeError("the install failed")
    for unit in (PREFILL, DECODE):
        tell("measured", unit=unit, processes=measure(unit))
    tell("status", **run("pd-units", "status", "--json"))
    tell("status-of-operator", **run("runuser", "-u", "operator", "--", "pd-units", "status", "--json"))


def scene_wrong_pins() -> None:
    """Decode bound to the other node, with device rules; prefill on other GPUs, one process astray."""
    devices = "\n".join(
        f"DeviceAllow=/dev/{name} rw"
        for name in ("nvidia4", "nvidia5", "nvidia6", "nvidia7", "nvidiactl", "nvidia-uvm")
    )
    binding = "NUMAMask=\nNUMAMask=0\nCPUAffinity=\nCPUAffinity=0-1"
    drop_in(DECODE, f"[Service]\n{binding}\nDevicePolicy=closed\n{devices}\n")
    drop_in(PREFILL, "[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=4,5,6,7 PD_BALLAST_ASTRAY=1\n")
    must("systemctl", "daemon-reload")
    must("systemctl", "restart", PREFILL, DECODE)
    for unit in (PREFILL, DECODE):
        tell("measured-wrong", unit=unit, processes=measure(unit))
    tell("status-wrong", **run("pd-units", "status", "--json"))
    nodes = [f"/dev/nvidia{number}" for number in range(8)]
    tell("devices", closed=open_as(DECODE, nodes), open=open_as(PREFILL, nodes))


def scene_lost_gpu(addresses: list[str]) -> None:
    unplug(addresses[2])
    tell("status-lost-gpu", **run("pd-units", "status", "--json"))


def scene_clock() -> None:
    must("date", "--set=1999-12-31 23:00:00")
    tell(
        "preflight-1999",
        **run("pd-units", "preflight", "--json", "--skip", "gpu", "--skip", "engine", str(FILE)),
    )


def main() -> None:
    tell("booted", release=os.uname().release, systemd=must("systemctl", "--version").split()[1])
    addresses = scene_discovery()
    scene_install()
    scene_wrong_pins()
    scene_lost_gpu(addresses)
    scene_clock()
    tell(MARK)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        tell("failed", error=repr(error), journal=run("journalctl", "-b", "-n", "60", "--no-pager")["out"])
        raise
