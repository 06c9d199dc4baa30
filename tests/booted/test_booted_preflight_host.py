"""Every preflight check of the host fails for real on a booted box: limits, drop-ins, journal, disk, GPUs."""

from __future__ import annotations

from preflighting import covered, drop_in, fault, four_gpus, look
from serving import DEPLOYMENT, PREFILL, deployment, write_deployment

from rig.box import Box, until


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
    with drop_in(box, "service.d", "KillMode=process\nwords"):
        found = look(box)
        found.failed("systemd", "service.d/fault.conf:3 is ignored by systemd", severity="warning")
        found.failed("systemd", "KillMode=process")
    with drop_in(box, "dsv4-.service.d", "PrivateDevices=yes"):
        look(box, "--topology", four_gpus(box), skip="gpu-memory").failed(
            "gpu", "PrivateDevices=yes", "sees no GPU"
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
