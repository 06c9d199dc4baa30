"""Templates, shipped units and presets, from the installed package or from the source tree."""

from __future__ import annotations

from pathlib import Path

from pd_units.errors import ExitCode, TemplateError

_PACKAGE = Path(__file__).resolve().parent
#: In the wheel the directories lie inside the package; in a source tree (and so in an editable
#: install) templates/ and units/ lie beside src/.
_PLACES = (_PACKAGE, _PACKAGE.parent.parent)

TEMPLATE_NAMES = (
    "backend.j2",
    "decode.service.j2",
    "macros.j2",
    "prefill.service.j2",
    "router.service.j2",
    "standalone.service.j2",
)
SHIPPED_UNIT_NAMES = ("pd-units@.target", "pd-units.slice")


def _directory(kind: str, member: str) -> Path:
    for place in _PLACES:
        directory = place / kind
        if (directory / member).is_file():
            return directory
    raise TemplateError(
        f"this installation of pd-units lacks {kind}/{member}",
        detail=f"looked in {' and '.join(str(place / kind) for place in _PLACES)}",
        hint="install it anew: the package was built without its data",
    )


def read_templates() -> dict[str, str]:
    """Text of each unit template, by file name. Raises: TemplateError 20 if one is missing."""
    return {name: _read(_directory("templates", name) / name) for name in TEMPLATE_NAMES}


def read_shipped_units() -> dict[str, str]:
    """Text of each unit that is shipped as it is, by unit name. Raises: TemplateError 20."""
    return {name: _read(_directory("units", name) / name) for name in SHIPPED_UNIT_NAMES}


def preset_names() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    return tuple(sorted(path.stem for path in (_PACKAGE / "presets").glob("*.toml")))


def read_preset(name: str) -> str:
    """TOML text of a preset. Raises: KeyError if there is none of that name."""
    if name not in preset_names():
        raise KeyError(name)
    return _read(_PACKAGE / "presets" / f"{name}.toml")


def read_engine_data(name: str) -> str:
    """Text of a data file of engines/. Raises: TemplateError 20 if it is missing."""
    path = _PACKAGE / "engines" / name
    if not path.is_file():
        raise TemplateError(f"this installation of pd-units lacks engines/{name}", hint="install it anew")
    return _read(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TemplateError(f"cannot read {path}: {error.strerror}", exit_code=ExitCode.TEMPLATE) from error
