"""Compute capability of NVIDIA GPUs by PCI device number or product name, for hosts where NVML does not say.

Device numbers are handed out in blocks of 128, one per chip (pci.ids); a chip has one compute capability.
"""

from __future__ import annotations

import re
from typing import Final

#: First device number of a chip's block -> compute capability.
_BLOCKS: Final = {
    0x1D80: "7.0",  # GV100
    0x1E00: "7.5",  # TU102
    0x1E80: "7.5",  # TU104
    0x1F00: "7.5",  # TU106
    0x1F80: "7.5",  # TU117
    0x2080: "8.0",  # GA100
    0x2180: "7.5",  # TU116
    0x2200: "8.6",  # GA102
    0x2300: "9.0",  # GH100
    0x2480: "8.6",  # GA104
    0x2500: "8.6",  # GA106
    0x2580: "8.6",  # GA107
    0x2680: "8.9",  # AD102
    0x2700: "8.9",  # AD103
    0x2780: "8.9",  # AD104
    0x2800: "8.9",  # AD106
    0x2880: "8.9",  # AD107
    0x2900: "10.0",  # GB100
    0x2B80: "12.0",  # GB202
    0x2C00: "12.0",  # GB203
    0x2D00: "12.0",  # GB206
    0x2D80: "12.0",  # GB207
    0x2E00: "12.1",  # GB10
    0x2F00: "12.0",  # GB205
    0x3180: "10.3",  # GB110
}
_NAMES: Final = (
    (r"RTX PRO \d+.*Blackwell|RTX 50\d\d", "12.0"),
    (r"\bGB10\b", "12.1"),
    (r"\bG?B300\b", "10.3"),
    (r"\bG?B[12]00\b", "10.0"),
    (r"\bG?H[128]00\b|\bH20\b", "9.0"),
    (r"\bL4\b|\bL40S?\b|RTX 40\d\d|RTX \d000 Ada|RTX 6000 Ada", "8.9"),
    (r"\bA(10G?|16|2|40)\b|RTX A\d000|RTX 30\d\d", "8.6"),
    (r"\bA(100|30|800)\b", "8.0"),
    (r"\bT4\b|RTX 20\d\d", "7.5"),
    (r"\bV100\b", "7.0"),
)


def compute_capability(device: int | None, name: str | None) -> str | None:
    """Compute capability such as "12.0"; None for a GPU that is not in the tables."""
    if device is not None and (found := _BLOCKS.get(device & ~0x7F)):
        return found
    return next((found for pattern, found in _NAMES if name and re.search(pattern, name)), None)
