"""Builds the stub engine's wheel, in the sglang version that it is to play. Standard library only.

python3 tests/stub/build.py 0.5.13 OUTPUT_DIR
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = (2020, 1, 1, 0, 0, 0)  # same input, same bytes: the rig keys its layers by the wheel's hash


def build_wheel(version: str, to: Path) -> Path:
    """The path of the wheel. Raises: ValueError for a version whose options are not known."""
    if not (HERE / "sglang" / "options" / f"{version}.tsv").exists():
        raise ValueError(f"the stub engine does not play sglang {version}")
    info = f"sglang-{version}.dist-info"
    files = {"sglang/version.py": f'__version__ = "{version}"\n'.encode()}
    for path in sorted((HERE / "sglang").rglob("*")):
        if path.suffix in (".py", ".tsv"):
            files[str(path.relative_to(HERE))] = path.read_bytes()
    summary = "Test double of sglang for pd-units: no model, no GPU"
    metadata = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\nSummary: {summary}\n"
    files[f"{info}/METADATA"] = metadata.encode()
    wheel_facts = "Wheel-Version: 1.0\nGenerator: pd-units-tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/WHEEL"] = wheel_facts.encode()
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}")
    record.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = "\n".join(record).encode() + b"\n"
    to.mkdir(parents=True, exist_ok=True)
    wheel = to / f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, STAMP), data)
    return wheel


if __name__ == "__main__":
    print(build_wheel(sys.argv[1], Path(sys.argv[2])))
