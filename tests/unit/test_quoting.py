"""What is quoted is read back unchanged by our own parser; booted tests ask systemd the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_units.model_fields import text_problem
from pd_units.quoting import quote_argument, quote_mount, quote_program, quote_value, quote_word
from pd_units.unitfile import parse_command, parse_unit, split_words

ODD = "%$\"'\\;#{}[]()=~@-+:!| \t*?`&<>"
TEXT = st.text(st.one_of(st.sampled_from(ODD), st.characters(codec="utf-8"))).filter(
    lambda value: text_problem(value) is None
)


@given(st.lists(TEXT, min_size=1))
def test_arguments_come_back(values: list[str]) -> None:
    line = "ExecStart=/bin/x " + " ".join(map(quote_argument, values))
    (value,) = parse_unit(f"[Service]\n{line}\n").values("Service", "ExecStart")
    (command,) = parse_command(value)
    assert command.argv == ("/bin/x", *values)


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), TEXT, min_size=1))
def test_environment_comes_back(variables: dict[str, str]) -> None:
    lines = [f"Environment={quote_word(f'{name}={value}')}" for name, value in variables.items()]
    assert parse_unit("\n".join(["[Service]", *lines])).environment == variables


@given(TEXT)
def test_values_come_back_or_are_refused(value: str) -> None:
    try:
        line = f"X={quote_value(value)}"
    except ValueError:
        assert value != value.strip() or value.endswith("\\")
        return
    (entry,) = parse_unit(f"[Service]\n{line}\n").entries
    assert entry.value.replace("%%", "%") == value


@given(TEXT.filter(bool))
def test_mount_paths_hold_one_word(path: str) -> None:
    """RequiresMountsFor= keeps backslashes, which split_words undoes: double them to look at the rest."""
    quoted = quote_mount("/" + path)
    (word,) = split_words(quoted.replace("\\", "\\\\"))
    assert word.replace("%%", "%") == "/" + path


@pytest.mark.parametrize("quote", [quote_argument, quote_mount, quote_program, quote_value, quote_word])
@pytest.mark.parametrize("end", ["\n", "\r", "\0"])
def test_line_ends_are_refused(quote, end: str) -> None:
    with pytest.raises(ValueError, match="newline or NUL"):
        quote(f"/a{end}b")


@pytest.mark.parametrize("path", ["relative", "/a'b", '/a"b', "/a\\b", "/a$b"])
def test_programs_systemd_refuses(path: str) -> None:
    with pytest.raises(ValueError, match="path of a program"):
        quote_program(path)


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("plain-value/1.0:a=b,c@d", "plain-value/1.0:a=b,c@d"),
        ("50%", "50%%"),
        ("$HOME", "$$HOME"),
        (";", '";"'),
        ("", '""'),
        ("a b", '"a b"'),
        ('"', '"\\""'),
        ("\\", '"\\\\"'),
        ("a\tb", '"a\\tb"'),
        ("é", '"é"'),
    ],
)
def test_argument_spellings(value: str, quoted: str) -> None:
    assert quote_argument(value) == quoted


def test_programs_may_hold_blanks_and_percents() -> None:
    (command,) = parse_command(f"+{quote_program('/opt/a b/50%')} -I")
    assert (command.prefix, command.argv) == ("+", ("/opt/a b/50%", "-I"))
