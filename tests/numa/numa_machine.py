"""A virtual machine with two NUMA nodes and four dressed-up GPUs on each, for one run of guest.py.

The root is the box image (tests/rig/images.py) as a read-only ext4 disk; a second disk carries this tree and
the test in; all changes stay in the guest's memory. The second serial port carries the answer out, one JSON
object a line. Nothing but the emulator is started, no KVM is needed, and nothing is left but the cache.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rig.host import debian_mirror
from rig.images import ROOT, Image, digest, locked

HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache" / "pd-units-numa"
KERNEL_SUITE = "bookworm"
MODULES = ("virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci")
MODULES += ("virtio_blk", "overlay")
INIT = """\
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in {modules}; do insmod /modules/$module.ko || echo "no module $module"; done
mount -t ext4 -o ro /dev/vda /disk
mount -t ext4 -o ro /dev/vdb /test
mount -t tmpfs -o size=60%,mode=0755 changes /changes
mkdir /changes/upper /changes/work
mount -t overlay -o lowerdir=/test/product:/disk,upperdir=/changes/upper,workdir=/changes/work root /root
mkdir -p /root/test
mount --bind /test /root/test
umount /sys /proc
mount --move /dev /root/dev
exec switch_root /root /sbin/init
"""
SERVICE = """\
[Unit]
Description=The test in the machine
After=multi-user.target dbus.service

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /test/guest.py
StandardOutput=file:/dev/ttyS1
StandardError=journal+console
ExecStopPost=/bin/systemctl reboot --force --force
"""
_DISK = """\
set -eu
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work merged
mount -t overlay -o lowerdir="$2",upperdir=upper,workdir=work root merged
rm -rf merged/opt/ansible merged/var/lib/apt/lists/*
exec mke2fs -q -t ext4 -O ^has_journal -E root_owner=0:0 -m 0 -L root -d merged "$3" 1200M
"""
#: The last line of a run that came to its end. Without it nothing has passed.
MARK = "pd-units numa test: complete"
GPUS_PER_NODE = 4
MEMORY_MIB_PER_NODE = 1536
#: A bound for a machine that hangs; a good one takes three to four minutes on two cores.
DEADLINE_S = 1500.0


class MachineError(Exception):
    """The machine did not come to the end of its test; the text holds what it said last, and its console."""


class Parts(NamedTuple):
    """What the emulator is started with."""

    kernel: Path
    initrd: Path
    disk: Path


# What the machine starts from


def parts_for(image: Image) -> Parts:
    """Kernel, initrd and root disk, from the cache or made now. Raises: SystemExit with the tool's output."""
    kernel = _kernel()
    return Parts(kernel / "vmlinuz", kernel / "initrd", _disk(image.layers[:-1]))


def _run(argv: Sequence[str], **more: Any) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"ended with {done.returncode}: {argv[0]} ...\n{done.stdout}{done.stderr}")


@contextmanager
def _made(kind: str, recipe: str) -> Iterator[tuple[Path, Path | None]]:
    """(the finished path, a folder to make it from); the folder is None if it is there already."""
    CACHE.mkdir(parents=True, exist_ok=True)
    done = CACHE / f"{kind}-{recipe}"
    with locked(f"numa-{kind}"):
        if done.exists():
            yield done, None
            return
        with tempfile.TemporaryDirectory(prefix=f"{kind}-", suffix=".partial", dir=CACHE) as folder:
            yield done, Path(folder)
        for old in CACHE.glob(f"{kind}-*"):
            if old != done and old.suffix != ".partial":
                shutil.rmtree(old) if old.is_dir() else old.unlink()


def _kernel() -> Path:
    """A folder with vmlinuz and initrd. The kernel's package is unpacked, never installed."""
    with _made("kernel", digest(KERNEL_SUITE, MODULES, INIT)) as (done, folder):
        if folder is None:
            return done
        root = folder / "root"
        keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        argv = ["mmdebstrap", "--quiet", "--variant=extract", "--architectures=amd64"]
        argv += ["--include=linux-image-cloud-amd64,busybox-static"]
        argv += [f"--keyring={keyring}"] if keyring.exists() else []
        _run([*argv, KERNEL_SUITE, str(root), debian_mirror()])
        ready = folder / "ready"
        ready.mkdir()
        (kernel,) = (root / "boot").glob("vmlinuz-*")
        shutil.copyfile(kernel, ready / "vmlinuz")
        files: dict[str, tuple[int, bytes]] = {
            "init": (0o100755, INIT.format(modules=" ".join(MODULES)).encode()),
            "bin/busybox": (0o100755, (root / "bin/busybox").read_bytes()),
        }
        for name in MODULES:
            (module,) = (root / "lib/modules").rglob(f"{name}.ko")
            files[f"modules/{name}.ko"] = (0o100644, module.read_bytes())
        for name in ("bin", "modules", "dev", "proc", "sys", "disk", "test", "changes", "root"):
            files[name] = (0o040755, b"")
        (ready / "initrd").write_bytes(cpio(files))
        ready.rename(done)
    return done


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """An initrd of {path: (mode, content)}. Source: initramfs buffer format, kernel documentation (newc)."""
    archive = bytearray()
    entries = [*sorted(files.items()), ("TRAILER!!!", (0, b""))]
    for number, (name, (mode, data)) in enumerate(entries, 1):
        encoded = name.encode() + b"\0"
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0]
        archive += b"070701" + "".join(f"{field:08X}" for field in fields).encode() + encoded
        archive += b"\0" * (-len(archive) % 4) + data
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)


def _disk(layers: Sequence[Path]) -> Path:
    """An ext4 file system with the layers, one on top of the other; what the test does not need stays out."""
    recipe = digest(_DISK, *(layer.parent.name for layer in layers))
    with _made("root", recipe) as (done, folder):
        if folder is None:
            return done
        lower = ":".join(str(layer) for layer in reversed(layers))
        disk = done.with_name(f"{done.name}.partial")
        try:
            words = ["sh", "-c", _DISK, "sh", str(folder), lower, str(disk)]
            _run(["unshare", "-m", "--propagation", "private", *words])
            disk.rename(done)
        finally:
            disk.unlink(missing_ok=True)
    return done


def _test_disk(to: Path, layers: Sequence[Path], folder: Path) -> None:
    """The second disk: this tree, installed, as a layer; the test; and the unit that runs it."""
    content = folder / "content"
    content.mkdir()
    _run(["cp", "-a", str(layers[-1]), str(content / "product")])
    _compile(layers[:-1], content / "product", folder)
    units = content / "product/etc/systemd/system"
    wants = units / "multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    (units / "numa-test.service").write_text(SERVICE)
    (wants / "numa-test.service").symlink_to("../numa-test.service")
    for name in ("guest.py", "ballast"):
        _run(["cp", "-a", str(HERE / name), str(content / name)])
    _run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", str(content), str(to), "64M"])


def _compile(below: Sequence[Path], layer: Path, folder: Path) -> None:
    """Compiles the stub engine's modules, which the emulated processor would take a minute for."""
    lower = ":".join(str(each) for each in reversed(below))
    script = f"""
    set -eu
    mkdir {folder}/work {folder}/merged
    mount -t overlay -o lowerdir={lower},upperdir={layer},workdir={folder}/work root {folder}/merged
    exec chroot {folder}/merged python3 -m compileall -q --invalidation-mode unchecked-hash /opt/sglang/lib
    """
    _run(["unshare", "-m", "--propagation", "private", "sh", "-c", script])


# One run


def emulator(parts: Parts, test_disk: Path, console: Path) -> list[str]:
    """The command line. `thread=single`: with more the guest's kernel panics now and then."""
    nodes = range(2)
    memory = MEMORY_MIB_PER_NODE
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max"]
    argv += ["-smp", "4,sockets=2,cores=2,threads=1", "-m", f"{memory * len(nodes)}M", "-nic", "none"]
    for node in nodes:
        argv += ["-object", f"memory-backend-ram,id=m{node},size={memory}M"]
        argv += ["-numa", f"node,nodeid={node},cpus={2 * node}-{2 * node + 1},memdev=m{node}"]
    argv += ["-numa", "dist,src=0,dst=1,val=21"]
    for node in nodes:
        bus = f"pcie.{node + 1}"
        argv += ["-device", f"pxb-pcie,id={bus},bus=pcie.0,bus_nr={64 + 64 * node},numa_node={node}"]
        for slot in range(GPUS_PER_NODE):
            port = f"port{node}.{slot}"
            where = f"bus={bus},chassis={16 * node + slot + 1},addr={slot}"
            argv += ["-device", f"pcie-root-port,id={port},{where}"]
            argv += ["-device", f"pci-testdev,bus={port}"]
    for name, path in (("root", parts.disk), ("test", test_disk)):
        argv += ["-drive", f"if=none,id={name},file={path},format=raw,readonly=on"]
        argv += ["-device", f"virtio-blk-pci,drive={name},bus=pcie.0"]
    argv += ["-kernel", str(parts.kernel), "-initrd", str(parts.initrd)]
    words = "console=ttyS0 panic=-1 quiet mitigations=off random.trust_cpu=on systemd.show_status=no"
    # why masked: the login on the console would wait 90 s for a device that udev does not announce here
    argv += ["-append", f"{words} systemd.mask=serial-getty@ttyS0.service"]
    argv += ["-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"]
    return [*argv, "-chardev", "stdio,id=answer,signal=off", "-serial", "chardev:answer"]


def run_machine(image: Image, *, deadline_s: float = DEADLINE_S) -> list[dict[str, Any]]:
    """What guest.py said, in order. Raises: MachineError unless it came to its end and said so."""
    parts = parts_for(image)
    with tempfile.TemporaryDirectory(prefix="pd-units-numa-") as name:
        folder = Path(name)
        test_disk, console = folder / "test.ext4", folder / "console"
        _test_disk(test_disk, image.layers, folder)
        console.touch()
        machine = subprocess.Popen(
            emulator(parts, test_disk, console),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            lines = _listen(machine, time.monotonic() + deadline_s)
        finally:
            if machine.poll() is None:
                machine.kill()
            machine.wait()
        return _answer(lines, console.read_text(errors="replace"), machine.returncode)


def _listen(machine: subprocess.Popen[bytes], deadline: float) -> list[str]:
    """Its lines until it ends, or until the deadline."""
    assert machine.stdout is not None
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(machine.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(min(left, 1.0)):
                data = os.read(machine.stdout.fileno(), 65536)
                if not data:
                    break
                said += data
    return said.decode(errors="replace").splitlines()


def _answer(lines: Sequence[str], console: str, code: int) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # cut off: the mark will be missing
    if not found or found[-1].get("step") != MARK:
        steps = "\n".join(f"{each.get('at_s')} s: {json.dumps(each)[:2000]}" for each in found)
        rest = "\n".join(line for line in lines if not line.startswith("{"))
        raise MachineError(
            f"the machine did not come to its end (emulator ended with {code})\n"
            f"--- steps\n{steps[-8000:]}\n--- emulator\n{rest[-2000:]}\n--- console\n{console[-6000:]}"
        )
    return found
