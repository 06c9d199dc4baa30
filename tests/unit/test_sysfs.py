"""Topology read from recorded trees of /sys and /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pd_units.adapters.sysfs import read_topology
from pd_units.adapters.systemd_files import systemd_version
from pd_units.topology import Gpu, NumaNode


class Tree:
    """Builds a tree as the kernel shows it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def node(self, number: int, cpus: str, *, kib: int = 1024, distances: str = "") -> None:
        base = f"sys/devices/system/node/node{number}"
        self.write(f"{base}/cpulist", cpus)
        self.write(f"{base}/meminfo", f"Node {number} MemTotal:       {kib} kB\nNode {number} MemFree: 1 kB")
        if distances:
            self.write(f"{base}/distance", distances)

    def pci(
        self,
        address: str,
        *,
        vendor: str = "0x10de",
        kind: str = "0x030200",
        device: str = "0x2335",
        numa: str = "-1",
        driver: str | None = None,
    ) -> Path:
        base = f"sys/devices/pci0000:00/{address}"
        for name, text in (("vendor", vendor), ("class", kind), ("device", device), ("numa_node", numa)):
            self.write(f"{base}/{name}", text)
        link = self.root / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(self.root / base, link.parent))
        if driver:
            target = self.root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (self.root / base / "driver").symlink_to(os.path.relpath(target, self.root / base))
        return self.root / base

    def driver_says(self, address: str, **fields: str) -> None:
        lines = [f"{name.replace('_', ' ')}: \t {value}" for name, value in fields.items()]
        self.write(f"proc/driver/nvidia/gpus/{address}/information", "\n".join(lines))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_two_nodes_with_a_driver(tree: Tree) -> None:
    name = "NVIDIA RTX PRO 6000 Blackwell"
    tree.node(0, "0-31,64-95", kib=2048, distances="10 32")
    tree.node(1, "32-63,96-127", distances="32 10")
    tree.pci("0000:81:00.0", device="0x2bb5", kind="0x030200", numa="1", driver="nvidia")
    tree.pci("0000:01:00.0", device="0x2bb1", kind="0x030000", numa="0", driver="nvidia")
    tree.pci("0000:02:00.0", vendor="0x1a03", kind="0x030000", numa="0")
    tree.pci("0000:01:00.1", kind="0x040300", numa="0")  # the GPU's audio function
    tree.driver_says(
        "0000:01:00.0", Model="NVIDIA RTX PRO 6000 Blackwell", GPU_UUID="GPU-a", GPU_Excluded="No"
    )
    tree.driver_says("0000:81:00.0", Model=name, GPU_UUID="GPU-????????")
    found = read_topology(tree.root)
    assert found.numa_nodes == (
        NumaNode(id=0, cpus="0-31,64-95", memory_bytes=2048 * 1024, distances=(10, 32)),
        NumaNode(id=1, cpus="32-63,96-127", memory_bytes=1024 * 1024, distances=(32, 10)),
    )
    assert found.gpus == (
        Gpu(index=0, uuid="GPU-a", pci_address="0000:01:00.0", numa=0, name=name, compute_capability="12.0"),
        Gpu(index=1, uuid=None, pci_address="0000:81:00.0", numa=1, name=name, compute_capability="12.0"),
    )


def test_gpus_count_in_pci_order_over_domains(tree: Tree) -> None:
    for address in ("10000:01:00.0", "0001:01:00.0", "0000:c1:00.0", "0000:0a:00.0"):
        tree.pci(address)
    gpus = read_topology(tree.root).gpus or ()
    assert [gpu.pci_address for gpu in gpus] == [
        "0000:0a:00.0",
        "0000:c1:00.0",
        "0001:01:00.0",
        "10000:01:00.0",
    ]
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert {gpu.compute_capability for gpu in gpus} == {"9.0"}
    assert {gpu.numa for gpu in gpus} == {None}


def test_gpus_that_cuda_does_not_count(tree: Tree) -> None:
    tree.pci("0000:01:00.0", driver="vfio-pci")
    tree.pci("0000:02:00.0", driver="nvidia")
    tree.pci("0000:03:00.0", driver="nvidia")
    tree.pci("0000:04:00.0")  # fell off the driver
    virtual = tree.pci("0000:05:00.0", driver="nvidia")
    (virtual / "physfn").symlink_to("..")
    tree.driver_says("0000:02:00.0", Model="NVIDIA H200", GPU_UUID="GPU-2", GPU_Excluded="Yes")
    tree.driver_says("0000:03:00.0", Model="NVIDIA H200", GPU_UUID="GPU-3")
    assert [(gpu.index, gpu.pci_address) for gpu in read_topology(tree.root).gpus or ()] == [
        (0, "0000:03:00.0")
    ]


def test_no_gpu_is_unknown_without_a_driver_and_none_with_one(tree: Tree) -> None:
    tree.pci("0000:02:00.0", vendor="0x1a03", kind="0x030000")
    assert read_topology(tree.root).gpus is None
    (tree.root / "proc/driver/nvidia/gpus").mkdir(parents=True)
    assert read_topology(tree.root).gpus == ()


def test_gpus_that_only_the_driver_shows(tree: Tree) -> None:
    tree.driver_says("0000:06:00.0", Model="NVIDIA H200", GPU_UUID="GPU-6")
    assert read_topology(tree.root).gpus == (
        Gpu(index=0, uuid="GPU-6", pci_address="0000:06:00.0", name="NVIDIA H200", compute_capability="9.0"),
    )


def test_sparse_memory_only_and_offline_nodes(tree: Tree) -> None:
    tree.node(8, "4-7", distances="40 10 80")
    tree.node(0, "0-3", distances="10 40 80")
    tree.node(252, "", kib=4096, distances="80 80 10")
    tree.node(3, "8-11")
    tree.write("sys/devices/system/node/online", "0,8,252")
    nodes = read_topology(tree.root).numa_nodes or ()
    assert [(node.id, node.cpus) for node in nodes] == [(0, "0-3"), (8, "4-7"), (252, "")]
    assert nodes[2].memory_bytes == 4096 * 1024


def test_recordings_with_cpu_masks_only(tree: Tree) -> None:
    tree.write("sys/devices/system/node/node0/cpumap", "00000000,0000000f,0000ffff")
    (node,) = read_topology(tree.root).numa_nodes or ()
    assert node == NumaNode(id=0, cpus="0-15,32-35")


def test_no_numa_and_no_sysfs(tree: Tree) -> None:
    assert read_topology(tree.root).numa_nodes is None
    assert read_topology(tree.root).nics is None
    (tree.root / "sys/devices/system/cpu").mkdir(parents=True)
    assert read_topology(tree.root).numa_nodes == ()


def test_nics(tree: Tree) -> None:
    device = tree.pci("0000:c1:00.0", vendor="0x15b3", kind="0x020000", numa="1")
    for path in ("sys/class/net/ens1", "sys/class/infiniband/mlx5_0"):
        (tree.root / path).mkdir(parents=True)
        (tree.root / path / "device").symlink_to(os.path.relpath(device, tree.root / path))
    virtio = tree.pci("0000:00:03.0", vendor="0x1af4", kind="0x020000")
    (virtio / "virtio0").mkdir()
    (tree.root / "sys/class/net/eth0").mkdir()
    (tree.root / "sys/class/net/eth0/device").symlink_to(virtio / "virtio0")
    (tree.root / "sys/class/net/lo").mkdir()
    nics = read_topology(tree.root).nics or ()
    assert [(nic.name, nic.pci_address, nic.numa) for nic in nics] == [
        ("ens1", "0000:c1:00.0", 1),
        ("eth0", "0000:00:03.0", None),
        ("mlx5_0", "0000:c1:00.0", 1),
    ]


def test_nonsense_is_not_known(tree: Tree) -> None:
    tree.pci("0000:01:00.0", numa="many", device="thing")
    tree.write("sys/devices/system/node/node0/cpulist", "0-3-5")
    tree.write("sys/devices/system/node/node0/meminfo", "?")
    found = read_topology(tree.root)
    assert found.gpus == (Gpu(index=0, pci_address="0000:01:00.0"),)
    assert found.numa_nodes == (NumaNode(id=0, cpus=""),)


@pytest.mark.parametrize(
    ("library", "version"),
    [
        ("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so", 252),
        ("usr/lib/systemd/libsystemd-shared-257.9-1.fc42.so", 257),
        ("usr/lib64/systemd/libsystemd-shared-249.so", 249),
        ("usr/lib/systemd/other", None),
    ],
)
def test_systemd_version_from_files(tree: Tree, library: str, version: int | None) -> None:
    tree.write(library, "")
    assert systemd_version(tree.root) == version
