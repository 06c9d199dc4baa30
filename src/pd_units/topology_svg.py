"""A host's topology as an SVG drawing for a report. Pure; same facts, same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from pd_units.naming import Role, stem
from pd_units.topology import Gpu, HostTopology, Nic, NumaNode
from pd_units.topology_text import (
    Place,
    Tenant,
    facts_of,
    places_of,
    short_name,
    size_text,
    summary,
)

_WIDTH = 960
_MARGIN = 20
_PADDING = 14
_COLUMNS = 4
_TILE_W = (_WIDTH - 2 * _MARGIN - 2 * _PADDING - (_COLUMNS - 1) * 10) // _COLUMNS
_TILE_H = 84
_CHIP_H = 26
_LINE = 18
_TEXT_MAX = 27
_FILLS = {
    Role.PREFILL: "#cfe3fb",
    Role.DECODE: "#fde3c4",
    Role.STANDALONE: "#d8efd3",
    Role.ROUTER: "#eeeeee",
}
_FREE = "#ffffff"
_STYLE = (
    "text{font-family:sans-serif;font-size:12px;fill:#222}.h{font-size:14px;font-weight:bold}"
    ".s{fill:#555;font-size:11px}.box{fill:#f6f6f4;stroke:#888}.tile{stroke:#666}"
)


class _Canvas:
    """Elements, and how far down they reach."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.y = _MARGIN

    def text(self, x: int, y: int, text: str, style: str = "") -> None:
        kind = f' class="{style}"' if style else ""
        self.elements.append(f'<text x="{x}" y="{y}"{kind}>{_escape(text)}</text>')

    def box(self, x: int, y: int, width: int, height: int, style: str, fill: str = "") -> None:
        colour = f' fill="{fill}"' if fill else ""
        self.elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" class="{style}"{colour}/>'
        )

    def finish(self) -> str:
        height = self.y + _MARGIN
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">'
        ground = '<rect width="100%" height="100%" fill="#fff"/>'
        return "\n".join([head, f"<style>{_STYLE}</style>", ground, *self.elements, "</svg>", ""])


def draw_svg(topology: HostTopology, tenants: Sequence[Tenant] = ()) -> str:
    """The drawing: a box a NUMA node, a tile a GPU in its unit's colour, a chip a NIC, then the notes."""
    canvas = _Canvas()
    canvas.text(_MARGIN, canvas.y + 14, summary(topology), "h")
    canvas.y += 28
    for place in places_of(topology):
        _draw_place(canvas, place, topology.numa_nodes or (), tenants)
    _draw_legend(canvas, tenants)
    for note in topology.notes:
        canvas.text(_MARGIN, canvas.y + _LINE, note, "s")
        canvas.y += _LINE
    return canvas.finish()


def _draw_place(canvas: _Canvas, place: Place, nodes: Sequence[NumaNode], tenants: Sequence[Tenant]) -> None:
    rows = -(-len(place.gpus) // _COLUMNS)
    chips = -(-len(place.nics) // _COLUMNS)
    top = canvas.y
    height = 46 + rows * (_TILE_H + 10) + chips * (_CHIP_H + 8) + (4 if rows or chips else 0)
    canvas.box(_MARGIN, top, _WIDTH - 2 * _MARGIN, height, "box")
    title, facts = _captions(place.node, nodes)
    canvas.text(_MARGIN + _PADDING, top + 21, title, "h")
    canvas.text(_MARGIN + _PADDING, top + 37, facts, "s")
    y = top + 48
    for number, gpu in enumerate(place.gpus):
        _draw_gpu(canvas, gpu, _column(number), y + number // _COLUMNS * (_TILE_H + 10), tenants)
    y += rows * (_TILE_H + 10)
    for number, nic in enumerate(place.nics):
        _draw_nic(canvas, nic, _column(number), y + number // _COLUMNS * (_CHIP_H + 8))
    canvas.y = top + height + 12


def _column(number: int) -> int:
    return _MARGIN + _PADDING + number % _COLUMNS * (_TILE_W + 10)


def _captions(node: NumaNode | None, nodes: Sequence[NumaNode]) -> tuple[str, str]:
    if node is None:
        return "No NUMA node known", "nothing is bound for these"
    return f"NUMA node {node.id}", " · ".join(facts_of(node, nodes))


def _draw_gpu(canvas: _Canvas, gpu: Gpu, x: int, y: int, tenants: Sequence[Tenant]) -> None:
    owners = [tenant for tenant in tenants if gpu.index in tenant.gpus]
    canvas.box(x, y, _TILE_W, _TILE_H, "tile", _FILLS[owners[0].role] if owners else _FREE)
    known = (gpu.pci_address, gpu.compute_capability, size_text(gpu.memory_bytes))
    lines = [
        (f"GPU {gpu.index}" + (" (MIG)" if gpu.mig else ""), "h"),
        (_cut(short_name(gpu) or "model not known"), ""),
        (", ".join(each for each in known if each), "s"),
        (_cut(", ".join(stem(owner.unit) for owner in owners) or ("free" if tenants else "")), ""),
    ]
    for number, (text, style) in enumerate(lines):
        canvas.text(x + 10, y + 19 + number * 19, text, style)


def _draw_nic(canvas: _Canvas, nic: Nic, x: int, y: int) -> None:
    canvas.box(x, y, _TILE_W, _CHIP_H, "tile", "#e9e4f5" if nic.rdma else _FREE)
    what = "RDMA" if nic.rdma else "NIC"
    canvas.text(x + 10, y + 17, _cut(f"{what} {nic.name} {nic.pci_address or ''}".rstrip()), "s")


def _draw_legend(canvas: _Canvas, tenants: Sequence[Tenant]) -> None:
    roles = [role for role in _FILLS if any(tenant.role is role and tenant.gpus for tenant in tenants)]
    for number, role in enumerate(roles):
        x = _MARGIN + number * 130
        canvas.box(x, canvas.y, 16, 16, "tile", _FILLS[role])
        canvas.text(x + 24, canvas.y + 13, str(role))
    canvas.y += 24 if roles else 0


def _escape(text: str) -> str:
    """Text of an element; what XML cannot hold becomes a question mark."""
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"
