"""What of unit files and command lines is hidden, and what is shown of a hidden value that changed."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_units.differences import (
    describe,
    describe_keys,
    differing,
    digest_of,
    directives_diff,
    main_changes,
    main_directives,
    unified,
)
from pd_units.masking import mask
from pd_units.quoting import quote_argument, quote_word
from pd_units.secrecy import is_secret

HF = "hf_" + "a1" * 15


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('Environment="HF_TOKEN=abc def ghi" A=1', "Environment=HF_TOKEN=*** A=1"),
        ('Environment = "A=1" \'DB_PASSWD=x y\' B=2', "Environment = \"A=1\" DB_PASSWD=*** B=2"),
        ('ExecStart=/e "--api-key=-my long key" --port 1', "ExecStart=/e --api-key=*** --port 1"),
        (r'ExecStart=/e --api-key "a\" b" --port 1', "ExecStart=/e --api-key *** --port 1"),
        ("--api-key -starts-with-a-dash --port 1", "--api-key *** --port 1"),
        ("--api-key one two --port 1", "--api-key *** *** --port 1"),
        ("--api-key \\\n    k \\\n    --port 1", "--api-key \\\n    *** \\\n    --port 1"),
        ("OPENAI_KEY=k SSH_PASSPHRASE=p", "OPENAI_KEY=*** SSH_PASSPHRASE=***"),
        (f"--args {HF} sk-{'b' * 20} plain", "--args *** *** plain"),
        ("DATABASE_URL=postgres://me:pass@db/x", "DATABASE_URL=***"),
        ('Environment="HF_TOKEN=never closed\nA=1', "Environment=HF_TOKEN=***\nA=1"),
        (f"# it's {HF}\nA=1", "# ***\nA=1"),
        ("--ssl-keyfile-password p --ssl-keyfile /k", "--ssl-keyfile-password *** --ssl-keyfile /k"),
        ("SetCredential=name:two words\nA=1", "SetCredential=name:***\nA=1"),
    ],
)  # fmt: skip
def test_a_secret_is_hidden_to_its_end(text: str, masked: str) -> None:
    assert mask(text) == masked
    assert mask(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "--max-prefill-tokens 8192 --max-total-tokens 1 --num-reserved-decode-tokens 512",
        "--tokenizer-path /models/t --speculative-num-draft-tokens 4 --tls-key-path /k",
        "--bucket-time-to-first-token 0.1 0.2 --kt-max-deferred-experts-per-token 2",
        "--speculative-token-map /m.pt HF_TOKEN_PATH=/root/t USE_API_KEY=0",
        "--model http://127.0.0.1:30000 'two words' \"A=b c\"",
        "Environment=HF_TOKEN=",
    ],
)
def test_what_is_no_secret_stays_as_it_is_spelt(text: str) -> None:
    assert mask(text) == text


WORDS = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), min_size=6)


@given(value=WORDS)
def test_any_secret_is_hidden_however_it_is_quoted(value: str) -> None:
    if not is_secret("HF_TOKEN", value):
        return
    assert mask(f"Environment={quote_word('HF_TOKEN=' + value)} A=1") == "Environment=HF_TOKEN=*** A=1"
    assert mask(f"--x {quote_argument('--api-key=' + value)} --y") == "--x --api-key=*** --y"
    if not value.startswith("--"):
        assert mask(f"--api-key {quote_argument(value)} --y") == "--api-key *** --y"


UNIT = (
    "[Service]\nExecStart=/bin/e \\\n    --max-prefill-tokens {n} \\\n    --api-key {key}\n"
    'Environment="HF_TOKEN={token}"\nEnvironment=A={n}\n'
)


def unit(n: str = "1", key: str = "k1", token: str = "t 1") -> str:
    return UNIT.format(n=n, key=key, token=token)


def test_an_ordinary_option_is_shown() -> None:
    assert describe(unit(), unit(n="2")) == (
        "ExecStart changed: --max-prefill-tokens 1 -> 2; Environment changed: A=1 -> A=2"
    )
    assert main_changes(unit(), unit(n="2")) == describe(unit(), unit(n="2"))
    diff = unified("a", unit(), unit(n="2"))
    assert "-    --max-prefill-tokens 1 \\" in diff and "+    --max-prefill-tokens 2 \\" in diff
    assert "(changed)" not in diff


def test_a_secret_that_changed_is_seen_to_have_changed() -> None:
    old, new = unit(), unit(key="k2", token="t 2")
    words = "ExecStart changed: --api-key *** (changed); Environment changed: HF_TOKEN=*** (changed)"
    assert describe(old, new) == main_changes(old, new) == words
    diff = unified("a", old, new).splitlines()
    assert {"-    --api-key ***", "+    --api-key *** (changed)"} <= set(diff)
    assert {"-Environment=HF_TOKEN=***", "+Environment=HF_TOKEN=*** (changed)"} <= set(diff)
    received = directives_diff("a", main_directives(old), main_directives(new)).splitlines()
    assert {"-Environment=HF_TOKEN=***", "+Environment=HF_TOKEN=*** (changed)"} <= set(received)
    assert unified("a", old, old) == ""


def test_several_secrets_that_changed_at_once() -> None:
    old = main_directives("[Service]\nEnvironment=HF_TOKEN=a DB_PASSWORD=b C=1\n")
    new = main_directives("[Service]\nEnvironment=HF_TOKEN=x DB_PASSWORD=y C=2\n")
    assert describe_keys(old, new, differing(old, new)) == (
        "Environment changed: HF_TOKEN=*** (changed); Environment changed: DB_PASSWORD=*** (changed); "
        "Environment added: C=2; Environment removed: C=1"
    )


def test_another_masking_is_no_change() -> None:
    """A record of a release that hid more, or less, is one of the same process."""
    value = "/bin/e --max-prefill-tokens 8192"
    mark = hashlib.sha256(value.encode()).hexdigest()[:16]
    before = {"ExecStart": (f"/bin/e --max-prefill-tokens *** [sha256:{mark}]",)}
    assert differing(before, {"ExecStart": (value,)}) == []
    assert digest_of(before) == digest_of({"ExecStart": (value,)})
    assert differing(before, {"ExecStart": (value + "0",)}) == ["ExecStart"]


def test_a_text_that_systemd_cannot_read_is_kept_from_all_eyes() -> None:
    found = main_directives("[Service]\nA=1\n", f"{HF}\n")
    assert HF not in str(found)
    assert differing(found, main_directives("[Service]\nA=1\n", f"{HF}2\n")) == ["text"]
    assert HF not in describe("[Service]\nA=1\n", f"[Service]\n{HF}\n")


def test_bytes_that_are_no_text_are_written_as_escapes() -> None:
    """A unit edited by hand in Latin-1: its words and its diff go to outputs that take UTF-8 only."""
    bad = unit() + "# caf\udce9\nDescription=caf\udce9\n"
    for text in (unified("a", bad, unit()), describe(bad, unit()), main_changes(bad, unit())):
        text.encode()
    assert r"-# caf\xe9" in unified("a", bad, unit()).splitlines()
    mixed = {"Nice": ("\udce9",)}
    assert describe_keys(mixed, {}, ["Nice"]) == r"Nice removed: \xe9"
    assert directives_diff("a", mixed, {}).encode()
