"""The parser follows systemd.syntax(7)."""

from __future__ import annotations

import pytest

from pd_units.unitfile import Command, parse_command, parse_unit, read_unit, split_words

UNIT = """# first
; second
[Unit]
Description=  a thing\t

After=a.service
After=
After=b.service c.service

[Service]
ExecStart=/bin/x \\
    --one 1 \\
# a comment between joined lines
    --two 2
  Environment=A=1 "B=two words"
Environment='A=3'
Odd = spaced
"""


def test_keeps_order_repeats_and_lines() -> None:
    unit = parse_unit(UNIT)
    assert {entry.section for entry in unit.entries} == {"Unit", "Service"}
    assert unit.values("Unit", "After") == ("b.service c.service",)
    assert unit.last("Unit", "Description") == "a thing"
    assert [entry.line for entry in unit.entries][:4] == [4, 6, 7, 8]
    assert unit.last("Service", "Odd") == "spaced"
    assert unit.last("Service", "Absent") is None
    assert unit.keys("Unit") == ("Description", "After")


def test_joined_lines_are_one_command() -> None:
    (command,) = parse_command(parse_unit(UNIT).last("Service", "ExecStart") or "")
    assert command.argv == ("/bin/x", "--one", "1", "--two", "2")


def test_later_assignments_of_a_variable_win() -> None:
    assert parse_unit(UNIT).environment == {"A": "3", "B": "two words"}


def test_an_empty_assignment_resets_a_list() -> None:
    unit = parse_unit(
        "[Service]\nExecStart=/bin/a\nEnvironment=A=1\nExecStart=\nExecStart=/bin/b\nEnvironment=A=2\n"
    )
    assert unit.values("Service", "ExecStart") == ("/bin/b",)
    assert unit.environment == {"A": "2"}


def test_a_trailing_backslash_joins() -> None:
    unit = parse_unit("[Unit]\nDescription=a\\\nb\nAfter=x\\\\\n")
    assert unit.last("Unit", "Description") == "a b"
    assert unit.last("Unit", "After") == "x\\\\"  # two backslashes: an escaped one, no join


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a  b\tc", ("a", "b", "c")),
        ("'a b' \"c d\"", ("a b", "c d")),
        ("a'b c'd", ("ab cd",)),
        (r'"\x41\101\u00e9\U0001F600"', ("AAé😀",)),
        (r"\xc3\xa9", ("é",)),
        (r"a\sb\tc\n", ("a b\tc\n",)),
        ("''", ("",)),
        ("", ()),
    ],
)
def test_words(value: str, words: tuple[str, ...]) -> None:
    assert split_words(value) == words


@pytest.mark.parametrize("value", ["'open", r"\q", r"\x4", r"\x00", "\\"])
def test_words_systemd_refuses(value: str) -> None:
    with pytest.raises(ValueError, match=r"quote|escape|NUL"):
        split_words(value)


def test_commands_prefixes_and_separators() -> None:
    assert parse_command(r'-@/bin/a "x;" \; ";" $$b %%c ; +/bin/b') == (
        Command("-@", ("/bin/a", "x;", ";", ";", "$b", "%c")),
        Command("+", ("/bin/b",)),
    )


@pytest.mark.parametrize("text", ["Key=value\n", "[Unit]\nno equals\n", "[Unit\nA=b\n"])
def test_lines_systemd_would_skip_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d"):
        parse_unit(text)


@pytest.mark.parametrize(
    ("line", "why", "rest"),
    [
        ("just words", "there is no = in it", True),
        ("=value", "there is no name before its =", True),
        ("# caf\udce9", "", True),
        ("Nice=caf\udce9", "it is not UTF-8 text", False),
        ("[Service", "it is no section header: ] is missing", False),
    ],
)
def test_what_systemd_skips_and_where_it_stops(line: str, why: str, rest: bool) -> None:
    """As 252 and 257 say of such files (systemd-analyze verify)."""
    unit, skipped = read_unit(f"[Service]\nA=1\n{line}\nB=2\n")
    assert unit.keys("Service") == (("A", "B") if rest else ("A",))
    assert [(each.line, each.why) for each in skipped] == ([(3, why)] if why else [])
    assert read_unit("A=1\n[Service]\nB=2\n")[0].keys("Service") == ("B",)
