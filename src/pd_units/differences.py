"""What differs between two unit texts, in words: by directive, secrets masked.

Only directives that a running main process received matter for whether it must be replaced. They are compared
as systemd applies them: drop-ins after the unit file, lists reset by an empty value, the last value of the
others.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from pd_units.masking import CHANGED, HIDDEN, mask, mask_both, mask_variable, printable, words_of
from pd_units.unitfile import UnitFile, parse_unit, split_words

Directives = Mapping[str, tuple[str, ...]]

# Directives that the running main process never received: a change there needs no restart.
_NOT_OF_MAIN = re.compile(
    r"Exec(Condition|StartPre|StartPost|Reload|Stop|StopPost)|Timeout\w*Sec|Restart\w*|RuntimeMaxSec|"
    r"NotifyAccess|KillMode|\w*KillSignal|SendSIGKILL|SendSIGHUP|SuccessExitStatus|Type|OOMPolicy|RemainAfterExit"
)
# Directives that gather values; of every other one the last value holds.
_LISTS = re.compile(
    r"Exec\w+|\w*Environment|EnvironmentFile|\w*Paths?|\w*Directory|\w*Directories|Device\w+|System\w+|"
    r"Load\w+|SetCredential\w*|Bind\w+|SupplementaryGroups|Capability\w+|AmbientCapabilities|LogExtraFields"
)
_DIGITS = 16
_MARK = re.compile(rf" \[sha256:([0-9a-f]{{{_DIGITS}}})\]\Z")
#: The key under which a text that systemd could not read either is compared as a whole.
UNREADABLE = "text"
_COMMAND = "command"


def unified(name: str, old: str, new: str) -> str:
    """A unified diff of a unit file, secrets masked."""
    path = f"/etc/systemd/system/{name}"
    before, after = mask_both(old, new)
    lines = difflib.unified_diff(
        before.splitlines(),
        after.splitlines(),
        fromfile=path if old else "/dev/null",
        tofile=path if new else "/dev/null",
        lineterm="",
    )
    return printable("\n".join(lines))


def main_directives(*texts: str) -> dict[str, tuple[str, ...]]:
    """What a main process receives from a unit file and its drop-ins, in the order in which they apply.

    Values that hold a secret are masked and marked by a digest: fit for the eyes of everybody.
    """
    found = service_directives(*texts)
    return {key: values for key, values in found.items() if not _NOT_OF_MAIN.fullmatch(key)}


def service_directives(*texts: str) -> dict[str, tuple[str, ...]]:
    """Every directive of [Service], as `main_directives` shows them."""
    found = _service(texts)
    return {key: tuple(_public(key, each) for each in values) for key, values in found.items() if values}


def digest_of(directives: Directives) -> str:
    """A digest of directives, whatever their order, and whatever is masked in them."""
    return _sha256(
        "\0".join(f"{key}\1{_identity(each)}" for key in sorted(directives) for each in directives[key])
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _service(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        try:
            entries = parse_unit(text).entries
        except ValueError:
            found[UNREADABLE] = (text,)  # systemd skips a line or two of it: compared as it is
            continue
        for entry in entries:
            if entry.section == "Service":
                listed = entry.value and _LISTS.fullmatch(entry.key)
                before = found.get(entry.key, ()) if listed else ()
                found[entry.key] = (*before, entry.value) if entry.value else ()
    if "Environment" in found:
        found["Environment"] = _variables(found["Environment"])
    return found


def _variables(assignments: Iterable[str]) -> tuple[str, ...]:
    """One NAME=VALUE a variable: the last assignment holds."""
    variables: dict[str, str] = {}
    for value in assignments:
        try:
            words = split_words(value)
        except ValueError:
            words = (value,)  # systemd ignores it
        variables.update({word.partition("=")[0]: word for word in words})
    return tuple(variables.values())


def _public(key: str, value: str, *, words: bool = False) -> str:
    """A value fit for all eyes; where it is masked, a digest tells it from others.

    A variable of Environment= is unquoted already, unless `words`.
    """
    if key == UNREADABLE:
        masked = HIDDEN
    elif key == "Environment" and not words:
        masked = mask_variable(value)
    else:
        masked = mask(f"{key}={value}").removeprefix(f"{key}=")
    return value if masked == value else f"{masked} [sha256:{_sha256(value)[:_DIGITS]}]"


def shown(value: str) -> str:
    """A value of `main_directives` without its digest."""
    return _MARK.sub("", value)


def _identity(value: str) -> str:
    """What tells a value from others. What is masked may change between releases, and means no change."""
    marked = _MARK.search(value)
    return marked[1] if marked else _sha256(value)[:_DIGITS]


def _others(values: Iterable[str], known: Iterable[str]) -> list[str]:
    """Those of the values that are none of the known ones, as they are shown."""
    identities = set(map(_identity, known))
    return [shown(value) for value in values if _identity(value) not in identities]


def differing(before: Directives, after: Directives) -> list[str]:
    """The keys whose values differ, in order."""
    return [key for key in {**before, **after} if _identities(before, key) != _identities(after, key)]


def _identities(directives: Directives, key: str) -> list[str]:
    return sorted(map(_identity, directives.get(key, ())))


def describe_keys(before: Directives, after: Directives, keys: Iterable[str]) -> str:
    """How the values of `keys` differ, in words."""
    return printable("; ".join(_describe_key(key, before.get(key, ()), after.get(key, ())) for key in keys))


def main_changes(old: str, new: str) -> str:
    """Why a main process of unit text `old` must be replaced, "" if it received nothing that changed."""
    before, after = main_directives(old), main_directives(new)
    return describe_keys(before, after, differing(before, after))


def describe(old: str, new: str) -> str:
    """What differs between two unit files, by directive."""
    try:
        before, after = _directives(parse_unit(old)), _directives(parse_unit(new))
    except ValueError as error:
        return f"it cannot be read as a unit file: {error}"
    keys = [key for key in {**before, **after} if before.get(key, ()) != after.get(key, ())]
    return describe_keys(before, after, keys)


def directives_diff(name: str, before: Directives, after: Directives) -> str:
    """A unified diff of two sets of directives: what a process received, and what it would receive now."""
    lines = difflib.unified_diff(
        _assignments(before),
        _assignments(after, before),
        fromfile=f"{name}, as its process was started",
        tofile=f"{name}, with its drop-ins",
        lineterm="",
        n=0,
    )
    return printable("\n".join(lines))


def _assignments(directives: Directives, other: Directives | None = None) -> list[str]:
    """A line each. Of values that are shown alike, those that `other` has not are marked as changed."""
    lines = []
    for key in sorted(directives):
        known = other.get(key, ()) if other is not None else ()
        alike, changed = set(map(shown, known)), _others(directives[key], known)
        for value in map(shown, directives[key]):
            lines.append(f"{key}={value}" + (CHANGED if value in alike and value in changed else ""))
    return lines


def _directives(unit: UnitFile) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for entry in unit.entries:
        found.setdefault(entry.key, []).append(_public(entry.key, entry.value, words=True))
    return {key: tuple(values) for key, values in found.items()}


def _describe_key(key: str, before: Sequence[str], after: Sequence[str]) -> str:
    if key == UNREADABLE:
        return "a file that cannot be read as a unit file changed"
    gone, come = _others(before, after), _others(after, before)
    if len(gone) == len(come) == 1:
        if key.startswith("Exec"):
            return f"{key} changed: {_describe_words(words_of(gone[0]), words_of(come[0]))}"
        if gone != come:
            return f"{key} changed: {gone[0]} -> {come[0]}"
    alike = [value for value in come if value in gone]
    parts = [f"{key} changed: {value}{CHANGED}" for value in alike]
    parts += [f"{key} added: {value}" for value in come if value not in alike]
    parts += [f"{key} removed: {value}" for value in gone if value not in alike]
    return "; ".join(parts) or f"{key} reordered"


def _describe_words(before: Sequence[str], after: Sequence[str]) -> str:
    old, new = _options(before), _options(after)
    parts = []
    for name in {**old, **new}:
        if old.get(name) == new.get(name):
            continue
        if name not in old:
            parts.append(f"{name} {new[name]} added".replace("  ", " "))
        elif name not in new:
            parts.append(f"{name} {old[name]} removed".replace("  ", " "))
        elif name == _COMMAND:
            parts.append(_describe_command(words_of(old[name]), words_of(new[name])))
        else:
            parts.append(f"{name} {old[name]} -> {new[name]}".replace("  ", " "))
    if not parts:  # all is shown alike: what is hidden has changed
        hidden = [f"{name} {value}".strip() for name, value in new.items() if HIDDEN in f"{name} {value}"]
        parts = [each.removeprefix(f"{_COMMAND} ") + CHANGED for each in hidden]
    return ", ".join(parts) or "the order of words"


def _describe_command(before: Sequence[str], after: Sequence[str]) -> str:
    gone = [word for word in before if word not in after]
    come = [word for word in after if word not in before]
    return f"{' '.join(gone or before)} -> {' '.join(come or after)}"


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options of a command line and their values; the command itself under _COMMAND."""
    found: dict[str, list[str]] = {_COMMAND: []}
    name = _COMMAND
    for word in words:
        if word.startswith("--"):
            name = word
            found.setdefault(name, [])
        else:
            found[name].append(word)
    return {key: " ".join(values) for key, values in found.items()}
