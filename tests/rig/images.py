"""Images that boxes boot from: cached layers, each keyed by the hash of what it is made of.

base     Debian with systemd, by mmdebstrap (about 30 s, once)
python   the virtual environments with third-party wheels from PyPI (router, Ansible, pd-units' dependencies)
product  pd-units itself and the stub engine (seconds, whenever their sources change)
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rig.host import debian_mirror

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "pd-units-boxes"
PACKAGES = ["systemd", "systemd-sysv", "dbus", "procps", "iproute2", "python3"]
PACKAGES += ["python3-venv", "python3-systemd", "python3-gi", "python3-pydbus"]
PIP_SETUP = """
set -eu
umask 022
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/mnt PIP_NO_CACHE_DIR=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
"""
ROUTER = "sglang-router==0.3.2"
SGLANG_VERSIONS = {"/opt/sglang": "0.5.13", "/opt/sglang-0.5.23": "0.5.23"}
BASE_SETUP = """
set -eu
useradd --system --create-home --home-dir /home/sglang --shell /usr/sbin/nologin sglang
useradd --create-home --gid operator operator
useradd --create-home --groups systemd-journal reader
useradd --create-home intruder
mkdir -p /var/log/journal /models/tiny /etc/pd-units
echo '{"architectures": ["LlamaForCausalLM"]}' >/models/tiny/config.json
install -d -o sglang -g sglang /var/lib/stub-engine
install -d /etc/stub-engine
# A known identity: without one, systemd takes each boot for the first and enables every unit that it finds.
echo 5bd0a0bd31f14f1d8e2f3b1f0a6c5d4e >/etc/machine-id
echo box >/etc/hostname
printf '127.0.0.1 localhost box\\n' >/etc/hosts
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    console-getty.service systemd-networkd.service getty@tty1.service; do
    ln -sf /dev/null /etc/systemd/system/$unit
done
rm -rf /var/cache/apt /usr/share/doc /usr/share/man /usr/share/locale
"""
PYTHON_SETUP = (
    PIP_SETUP
    + """
python3 -m venv --system-site-packages /opt/pd-units
/opt/pd-units/bin/pip install -q click jinja2
python3 -m venv /opt/router
/opt/router/bin/pip install -q sglang-router
python3 -m venv /opt/ansible
/opt/ansible/bin/pip install -q ansible-core
"""
)
PRODUCT_SETUP = (
    PIP_SETUP
    + """
if ls /mnt/pd_units-*.whl >/dev/null 2>&1; then
    /opt/pd-units/bin/pip install -q pd-units
    ln -s /opt/pd-units/bin/pd-units /usr/local/bin/pd-units
fi
"""
)
_MARKS: list[IO[str]] = []  # held until the process ends


@dataclass(frozen=True)
class Suite:
    """A Debian release that boxes run: its systemd and Python, which the wheels must match."""

    name: str
    systemd: int
    python: str


SUITES = {252: Suite("bookworm", 252, "3.11"), 257: Suite("trixie", 257, "3.13")}


@dataclass(frozen=True)
class Image:
    """Layers of a bootable root, lowest first."""

    suite: Suite
    layers: tuple[Path, ...]


def digest_of(file: Path) -> str:
    return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One builder of `name` at a time, across processes."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _run(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Runs quietly. Raises: SystemExit with everything that was printed."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env=env)
    if done.returncode:
        sys.stderr.buffer.write(done.stdout + done.stderr)
        raise SystemExit(f"ended with {done.returncode}: {argv[0]} {argv[1]} ...")


def _fresh(path: Path) -> Path:
    """An empty directory to build in, renamed to `path` when complete; an interrupted build's goes."""
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _in_use(layer: Path) -> None:
    """Marks a layer as used by this process until it ends, so that no other one drops it."""
    mark = layer.with_name(f"{layer.name}.used").open("w")
    fcntl.flock(mark, fcntl.LOCK_SH)
    _MARKS.append(mark)


def _drop_older(kind: str, keep: Path) -> None:
    """Removes layers of the same kind made of other things, but for those that somebody still uses."""
    for old in CACHE.glob(f"{kind}-*"):
        if not old.is_dir() or old == keep or old.suffix:
            continue
        mark = old.with_name(f"{old.name}.used")
        with mark.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(old, ignore_errors=True)
            mark.unlink(missing_ok=True)


def _base(suite: Suite) -> Path:
    recipe = digest(PACKAGES, BASE_SETUP)
    done = CACHE / f"base-{suite.name}-{recipe}"
    with locked(f"base-{suite.name}"):
        _in_use(done)
        if done.is_dir():
            return done
        _say(f"building the {suite.name} image (systemd {suite.systemd}), once")
        partial = _fresh(done)
        root = partial / "root"
        keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        argv += [f"--keyring={keyring}"] if keyring.exists() else []
        argv.append('--customize-hook=chroot "$1" sh -c "$PD_UNITS_BOX_SETUP"')
        argv += [suite.name, str(root), debian_mirror()]
        _run(argv, env={**os.environ, "PD_UNITS_BOX_SETUP": BASE_SETUP, "LANG": "C.UTF-8"})
        partial.rename(done)
        _drop_older(f"base-{suite.name}", done)
    return done


def _layer(done: Path, below: Sequence[Path], wheels: Path, script: str) -> None:
    """Runs `script` in a chroot over `below`, with `wheels` on /mnt; what it changed becomes `done`/root."""
    partial = _fresh(done)
    for name in ("root", "work", "merged"):
        (partial / name).mkdir()
    lower = ":".join(str(layer) for layer in reversed(below))
    inside = f"""
    set -eu
    cd {partial}
    mount -t overlay -o lowerdir={lower},upperdir={partial}/root,workdir={partial}/work overlay merged
    mount --bind {wheels} merged/mnt
    mount --rbind /dev merged/dev
    mount -t proc proc merged/proc
    mount -t tmpfs tmpfs merged/tmp
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 chroot merged sh -c "$1"
    """
    _run(["unshare", "-mpf", "--kill-child", "--propagation", "private", "sh", "-c", inside, "sh", script])
    shutil.rmtree(partial / "work")
    (partial / "merged").rmdir()
    partial.rename(done)


def _python(suite: Suite, base: Path, pip: Sequence[str]) -> Path:
    done = CACHE / f"python-{suite.name}-{digest(base.name, PYTHON_SETUP, ROUTER)}"
    with locked(f"python-{suite.name}"):
        _in_use(done)
        if done.is_dir():
            return done
        _say(f"fetching the router and Ansible for Python {suite.python}, once")
        wheels = CACHE / f"wheels-{suite.name}"
        wheels.mkdir(exist_ok=True)
        download(pip, suite, wheels, [ROUTER, "click>=8.1", "jinja2>=3.1"])
        download(pip, suite, wheels, ["ansible-core"])
        _layer(done, [base / "root"], wheels, PYTHON_SETUP)
        _drop_older(f"python-{suite.name}", done)
    return done


def download(pip: Sequence[str], suite: Suite, to: Path, requirements: Sequence[str]) -> None:
    """Wheels from PyPI for the suite's Python, whatever Python this host has."""
    machine = platform.machine()
    argv = [*pip, "download", "--quiet", "--only-binary=:all:", "--implementation=cp"]
    argv.append(f"--python-version={suite.python}")
    for glibc in ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014"):
        argv.append(f"--platform={glibc}_{machine}")
    _run([*argv, f"--dest={to}", *requirements])


def _stub_setup() -> str:
    """Virtual environments with the stub engine, one for each version that it can play."""
    lines = [PRODUCT_SETUP]
    for path, version in SGLANG_VERSIONS.items():
        lines.append(f"python3 -m venv --without-pip {path}")
        site = f'"$({path}/bin/python -c \'import sysconfig; print(sysconfig.get_path("purelib"))\')"'
        lines.append(f"python3 -m zipfile -e /mnt/sglang-{version}-py3-none-any.whl {site}")
        lines.append(f"{path}/bin/python -m compileall -q {site}")  # its user may not write there
    return "\n".join(lines)


def _product(suite: Suite, below: Sequence[Path], wheels: Path) -> Path:
    script = _stub_setup()
    contents = [digest_of(wheel) for wheel in sorted(wheels.glob("*.whl"))]
    done = CACHE / f"product-{suite.name}-{digest(*(layer.parent.name for layer in below), script, contents)}"
    with locked(f"product-{suite.name}"):
        _in_use(done)
        if not done.is_dir():
            _layer(done, below, wheels, script)
            _drop_older(f"product-{suite.name}", done)
    return done


def build(systemd: int, *, wheels: Path, pip: Sequence[str]) -> Image:
    """The image for that systemd version, with the wheels of the folder `wheels` installed.

    `pip` is a command line for downloading; it is used only when a layer must be built.
    """
    suite = SUITES[systemd]
    base = _base(suite)
    python = _python(suite, base, pip)
    product = _product(suite, [base / "root", python / "root"], wheels)
    return Image(suite, tuple(layer / "root" for layer in (base, python, product)))
