"""What looks as if it held a secret. One rule for the warning, the masks and the files' modes."""

from __future__ import annotations

import re

_SECRET_WORD = re.compile(
    r"(?:^|[_-])(TOKEN|KEY|APIKEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(?:$|[_-])", re.I
)
# Options and variables that count tokens, or name a file.
_NO_SECRET = re.compile(
    r"(?:PER|FIRST)[_-]TOKEN$|(?:^|[_-])TOKEN[_-](?:NUM|USAGE|DISTRIBUTION|LATENCY|MAP)|[_-](?:PATH|FILE)$",
    re.I,
)
_SECRET_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|xox[abp]-\S+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^\s:/@]*:[^\s/@]+@"
)
_WORTH_NOTHING = {"", "0", "1", "true", "false"}


def is_secret(name: str, value: object) -> bool:
    """Whether an option or variable looks as if it held a secret, by its name or its value."""
    text = str(value)
    named = isinstance(value, str) and _SECRET_WORD.search(name) and not _NO_SECRET.search(name)
    return bool(named and text.lower() not in _WORTH_NOTHING) or _SECRET_VALUE.search(text) is not None
