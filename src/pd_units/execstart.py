"""The command line that a unit declares. A running process may have put a title in place of its own."""

from __future__ import annotations

from pd_units.adapters.dropins import find_drop_ins
from pd_units.naming import Names
from pd_units.received import texts_of
from pd_units.unitfile import UnitFile, parse_command, read_unit


def exec_start(names: Names, unit: str) -> tuple[str, ...]:
    """The arguments of a unit's ExecStart=, with its drop-ins; () if they cannot be read.

    Not /proc/PID/cmdline: sglang's router calls itself `sglang::router`, and its options are gone from there.
    """
    try:
        text = (names.unit_dir / unit).read_text(encoding="utf-8")
        parsed = [read_unit(each)[0] for each in texts_of(text, find_drop_ins(unit, names.root))]
        whole = UnitFile(tuple(entry for each in parsed for entry in each.entries))
        commands = parse_command(whole.last("Service", "ExecStart") or "")
    except (OSError, ValueError):
        return ()
    return commands[-1].argv if commands else ()
