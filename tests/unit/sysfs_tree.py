"""Trees of /sys and /proc as text: composed after machines that exist, materialised for a test.

One line a thing, words quoted as in a shell:

    node 0 cpus=0-3 mem=1024 dist="10 20"   a NUMA node; also map=0000000f (a mask), each part optional
    file PATH TEXT       link PATH TARGET       dir PATH       bytes PATH HEX
    pci ADDRESS at=pci0000:00/0000:00:01.0 class=030200 vendor=10de device=2335 numa=0 driver=nvidia
                         a function below `at`, linked from sys/bus/pci/devices; also local=0-3 and vf
    net NAME ADDRESS     ib NAME ADDRESS    a network or RDMA device of such a function; also below=virtio0
    gpu ADDRESS KEY=VALUE...                    what NVIDIA's driver says of a GPU ("GPU UUID=...")
    without PATH         takes away what the lines above made

What must be read from it stands beside it:

    ## node 0 cpus=0-3 mem=1024 dist="10 20"    mem in KiB; in order, all of them
    ## gpu 0 0000:01:00.0 numa=0 uuid=GPU-1 name="NVIDIA H200" cc=9.0 minor=0 mig
    ## nic mlx5_0 0000:02:00.0 numa=0 rdma
    ## nodes none        () in place of nodes; `null`, not known; the same for gpus and nics
    ## driver 580.159.03
    ## note "a sentence that begins so"         all of them
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from pd_units.topology import Gpu, HostTopology, Nic, NumaNode

TREES = Path(__file__).parent / "trees"


def tree_names() -> list[str]:
    return sorted(path.stem for path in TREES.glob("*.tree"))


def read_tree(name: str) -> str:
    return (TREES / f"{name}.tree").read_text(encoding="utf-8")


def build(text: str, root: Path) -> Path:
    """Materialises the tree below `root`."""
    tree = _Builder(root)
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, *words = shlex.split(line)
            make = getattr(tree, f"make_{word}")
            if word in ("file", "bytes", "link", "dir", "without"):
                make(*words)
            else:
                make(*_positional(words), **_named(words))
    return root


def _positional(words: list[str]) -> list[str]:
    return [word for word in words if "=" not in word]


def _named(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


class _Builder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.functions: dict[str, str] = {}

    def _place(self, path: str) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def make_file(self, path: str, text: str = "") -> None:
        self._place(path).write_bytes(text.encode().decode("unicode_escape").encode() + b"\n")

    def make_bytes(self, path: str, text: str) -> None:
        self._place(path).write_bytes(bytes.fromhex(text))

    def make_link(self, path: str, target: str) -> None:
        self._place(path).symlink_to(target)

    def make_dir(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def make_without(self, path: str) -> None:
        place = self.root / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()

    def make_node(self, number: str, **parts: str) -> None:
        base = f"sys/devices/system/node/node{number}"
        self.make_dir(base)
        for key, name in (("cpus", "cpulist"), ("map", "cpumap"), ("dist", "distance")):
            if key in parts:
                self.make_file(f"{base}/{name}", parts[key])
        if "mem" in parts:
            line = f"Node {number} MemTotal:       {parts['mem']} kB\\nNode {number} MemFree:  1 kB"
            self.make_file(f"{base}/meminfo", line)

    def make_pci(self, address: str, *flags: str, at: str = "pci0000:00", **parts: str) -> None:
        base = f"sys/devices/{at}/{address}"
        self.functions[address] = base
        self.make_dir(base)
        for key in ("class", "vendor", "device"):
            if key in parts:
                self.make_file(f"{base}/{key}", f"0x{parts[key]}")
        for key, name in (("numa", "numa_node"), ("local", "local_cpulist"), ("localmap", "local_cpus")):
            if key in parts:
                self.make_file(f"{base}/{name}", parts[key])
        self._link_up(f"sys/bus/pci/devices/{address}", base)
        if "driver" in parts:
            driver = f"sys/bus/pci/drivers/{parts['driver']}"
            self.make_dir(driver)
            self._link_up(f"{base}/driver", driver)
        if "vf" in flags:
            self.make_link(f"{base}/physfn", "../0000:00:00.0")

    def make_net(self, name: str, address: str, below: str = "", kind: str = "net") -> None:
        function = f"{self.functions[address]}/{below}".rstrip("/")
        device = f"{function}/{kind}/{name}"
        self.make_dir(device)
        self._link_up(f"{device}/device", function)
        self._link_up(f"sys/class/{kind}/{name}", device)

    def make_ib(self, name: str, address: str) -> None:
        self.make_net(name, address, kind="infiniband")

    def make_gpu(self, address: str, **fields: str) -> None:
        lines = "\\n".join(f"{key}: \\t {value}" for key, value in fields.items())
        self.make_file(f"proc/driver/nvidia/gpus/{address}/information", lines)

    def _link_up(self, path: str, target: str) -> None:
        """A relative link, as the kernel makes them."""
        self.make_link(path, os.path.relpath(self.root / target, (self.root / path).parent))


def expected(text: str) -> tuple[HostTopology, list[str]]:
    """(topology, beginnings of the notes) that the `##` lines say."""
    nodes: list[NumaNode] = []
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    absent: dict[str, tuple[()] | None] = {}
    driver, notes = None, []
    for line in text.splitlines():
        if not line.startswith("## "):
            continue
        word, *words = shlex.split(line[3:])
        plain, named = _positional(words), _named(words)
        match word:
            case "node":
                nodes.append(_node(int(plain[0]), named))
            case "gpu":
                gpus.append(_gpu(plain, named))
            case "nic":
                numa = int(named["numa"]) if "numa" in named else None
                rdma = None if "no-driver" in plain else "rdma" in plain
                nics.append(Nic(name=plain[0], pci_address=plain[1], numa=numa, rdma=rdma))
            case "nodes" | "gpus" | "nics":
                absent[word] = None if plain == ["null"] else ()
            case "driver":
                driver = plain[0]
            case "note":
                notes.append(words[0])
            case _:
                raise ValueError(line)
    topology = HostTopology(
        numa_nodes=tuple(nodes) or absent["nodes"],
        gpus=tuple(gpus) or absent["gpus"],
        nics=tuple(nics) or absent["nics"],
        driver=driver,
    )
    return topology, notes


def _node(number: int, named: dict[str, str]) -> NumaNode:
    return NumaNode(
        id=number,
        cpus=named.get("cpus"),
        memory_bytes=int(named["mem"]) * 1024 if "mem" in named else None,
        distances=tuple(map(int, named.get("dist", "").split())),
    )


def _gpu(plain: list[str], named: dict[str, str]) -> Gpu:
    return Gpu(
        index=int(plain[0]),
        pci_address=plain[1],
        numa=int(named["numa"]) if "numa" in named else None,
        uuid=named.get("uuid"),
        name=named.get("name"),
        compute_capability=named.get("cc"),
        mig=True if "mig" in plain else None,
        minor=int(named["minor"]) if "minor" in named else None,
    )
