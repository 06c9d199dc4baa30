"""An operator's afternoon, played on a box: docs/tutorial/afternoon.md is what its terminal shows.

PD_UNITS_WRITE_DOCS=1 pytest tests/fault/test_fault_afternoon.py     writes the page anew
"""

from __future__ import annotations

import difflib
import os
import subprocess
from pathlib import Path

from transcript import tidy

from rig.box import Box, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "afternoon.md"
FILE = "/etc/pd-units/dsv4.toml"
DEPLOYMENT = """\
[deployment]
name = "dsv4"

[engine]
kind = "sglang"
python = "/opt/sglang/bin/python"
model = "/models/tiny"
user = "sglang"

[engine.args]
trust-remote-code = true

[[prefill]]
gpus = [0, 1]
port = 30000
bootstrap_port = 8998
dist_init_port = 30335
args = { mem-fraction-static = 0.70 }

[[decode]]
gpus = [2, 3]
port = 30002
dist_init_port = 30435
args = { mem-fraction-static = 0.60 }

[router]
port = 30001
python = "/opt/router/bin/python"
"""
# What the engine says of a model directory without its index: the stub that stands for it does not look.
# Decode still loads when prefill says so.
HALF_COPIED = (
    "delay = { init = 3 }\n"
    'fail = { phase = "weights", exit = 1, text = "OSError: Error no file named '
    'model.safetensors.index.json found in directory /models/new" }\n'
)
STILL_LOADING = 'hang = "init"'


class Afternoon:
    """The page as it grows: prose, and commands with what they print."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.lines: list[str] = []
        self.file = DEPLOYMENT

    def say(self, *paragraphs: str) -> None:
        for paragraph in paragraphs:
            self.lines += [paragraph, ""]

    def run(self, command: str, *, user: str = "root", rc: int = 0) -> str:
        """A command as it is typed, with its output in the order in which a terminal shows it."""
        done = self.box.run(["sh", "-c", f"{command} 2>&1"], user=user)
        assert done.rc == rc, (command, done.rc, done.out)
        self._show([(command, user, tidy(done.out), rc)])
        return done.out

    def _show(self, commands: list[tuple[str, str, str, int]]) -> None:
        self.lines.append("```console")
        for command, user, text, rc in commands:
            self.lines.append(f"{'#' if user == 'root' else '$'} {command}")
            self.lines += text.splitlines()
            if rc:
                self.lines += ["# echo $?", str(rc)]
        self.lines += ["```", ""]

    def edit(self, old: str, new: str) -> None:
        """A change of the deployment's file."""
        assert old in self.file, old
        self.file = self.file.replace(old, new)
        self.box.write(FILE, self.file)

    def interrupt(self, command: str) -> None:
        """The command, and Ctrl-C while its units load."""
        process = self.box.popen(["sh", "-c", f"exec {command} 2>&1"])
        for unit in ("dsv4-prefill.service", "dsv4-decode.service"):
            self.box.wait_state(unit, "activating/start-post")
        self.box.run(["pkill", "-INT", "-f", "bin/pd-units install"]).check()
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 130, out
        before, mark, after = out.partition("dsv4: ")
        self._show([(command, "root", f"{tidy(before)}\n^C\n{tidy(mark + after)}", 130)])

    @property
    def page(self) -> str:
        return "\n".join(self.lines).rstrip() + "\n"


def orders(box: Box, prefill: str, decode: str | None = None) -> None:
    """What the stub engines do from their next start on; both the same without `decode`."""
    for port, text in ((30000, prefill), (30002, prefill if decode is None else decode)):
        box.write(f"/etc/stub-engine/{port}.toml", text)


def morning(day: Afternoon) -> None:
    box = day.box
    box.write(FILE, day.file)
    day.say(
        "# An operator's afternoon",
        "*This page is the transcript of a test: `tests/fault/test_fault_afternoon.py` plays it on a "
        "throw-away "
        "systemd box, with a stub in place of the engine and the real router, and fails if a word differs. "
        "Times, "
        "process IDs and warnings that only concern the box are left out, and progress is shortened to "
        "each unit's "
        "last line. The box has no GPU, hence `--skip gpu`. A `$` is an ordinary user's prompt, a `#` is "
        "root's.*",
        "## A pair, from one file",
        f"`{FILE}` describes a prefill server, a decode server and their router:",
    )
    day.lines += ["```toml", *day.file.rstrip().splitlines(), "```", ""]
    day.say("Anybody may ask what installing it would do:")
    day.run("pd-units install --skip gpu --check", user="operator")
    day.say(
        "Then root does it. Backends start together, the router after them; the command ends when a "
        "generation has "
        "come back through the router."
    )
    day.run("pd-units install --skip gpu")
    day.say("Once more changes nothing. A playbook may run it every night.")
    day.run("pd-units install --skip gpu")


def trouble(day: Afternoon) -> None:
    box = day.box
    day.say("## A wrong model path", 'Somebody edits the file: `model = "/models/nwe"`.')
    day.edit('"/models/tiny"', '"/models/nwe"')
    day.run("pd-units install --skip gpu", rc=13)
    day.say(
        "That is found before anything is touched. The typing error is mended, `/models/new` is there; but "
        "it was "
        "copied only by half. No check sees that. The engine does:"
    )
    day.edit('"/models/nwe"', '"/models/new"')
    box.sh("cp -r /models/tiny /models/new")
    orders(box, HALF_COPIED, STILL_LOADING)
    process = box.popen(["sh", "-c", "pd-units install --skip gpu 2>&1"])
    until(
        "the way back",
        lambda: box.run(["grep", "-qs", '"rollback"', "/var/lib/pd-units/dsv4/operation.json"]).rc == 0,
    )
    orders(box, "")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 43, out
    day._show([("pd-units install --skip gpu", "root", tidy(out), 43)])
    day.say(
        "43 says: it failed, and what worked before is ready again. The same file is not tried a second "
        "time just "
        "because a playbook runs again:"
    )
    day.run("pd-units install --skip gpu", rc=40)
    day.say("The model goes back to what it was, and there is nothing left to do.")
    day.edit('"/models/new"', '"/models/tiny"')
    day.run("pd-units install --skip gpu | head -n 2")


def drop_in(day: Afternoon) -> None:
    day.say(
        "## A drop-in",
        "`systemctl edit dsv4-decode` puts a line of the operator's own beside the unit. It survives every "
        "install, "
        "and it is part of every diff:",
    )
    path = "/etc/systemd/system/dsv4-decode.service.d/override.conf"
    day.box.write(path, "[Service]\nEnvironment=NCCL_DEBUG=INFO\n")
    day.run(f"cat {path}")
    day.run("pd-units diff dsv4 --skip gpu")
    day.run("pd-units install --skip gpu")


def upgrade(day: Afternoon) -> None:
    box = day.box
    day.say(
        "## An upgrade, Ctrl-C, and a reboot",
        "The new engine lies in an environment of its own; one line of the file changes. Half-way through "
        "the "
        "operator thinks better of it:",
    )
    day.edit("/opt/sglang/bin/python", "/opt/sglang-0.5.23/bin/python")
    orders(box, "delay = { weights = 6 }")
    day.interrupt("pd-units install --skip gpu")
    orders(box, "")
    day.say("Nothing is lost, and everybody can see where it stands:")
    until("decode is ready", lambda: box.state("dsv4-decode.service") == "active/running", timeout_s=60)
    until("the router is ready", lambda: box.state("dsv4-router.service") == "active/running", timeout_s=60)
    day.run("pd-units status", user="operator")
    day.run("pd-units history dsv4")
    day.say("Then the host is rebooted. What had been begun is finished before any unit starts, by itself:")
    box.reboot()
    day.lines += ["```console", "# reboot", "```", ""]
    day.run("pd-units wait-ready", user="operator")
    text = box.journal("pd-units-recover.service", "--boot=0")
    said = [line for line in text.splitlines() if line.startswith("pd-units:")]
    day._show([("journalctl -b -u pd-units-recover -o cat -g pd-units:", "root", tidy("\n".join(said)), 0)])


def evening(day: Afternoon) -> None:
    day.say(
        "## Back, and away",
        "The new engine is slower than hoped. `rollback` goes back to what it replaced, and waits for it:",
    )
    day.run("pd-units rollback dsv4")
    day.run("pd-units history dsv4")
    day.say("At the end of the day the box is needed for something else.")
    day.run("pd-units uninstall dsv4 --purge")
    day.run("pd-units status", user="operator", rc=10)
    day.say(
        "The deployment's file and the drop-in are the operator's, and still there. Exit codes are in "
        "[the reference](../reference/cli.md), more about going back in [the how-to](../how-to/roll-back.md)."
    )


def test_the_page_is_what_a_terminal_shows(box: Box) -> None:
    day = Afternoon(box)
    for part in (morning, trouble, drop_in, upgrade, evening):
        part(day)
    if os.environ.get("PD_UNITS_WRITE_DOCS"):
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(day.page)
        return
    written = PAGE.read_text() if PAGE.exists() else ""
    difference = difflib.unified_diff(
        written.splitlines(), day.page.splitlines(), "written", "played", lineterm=""
    )
    assert written == day.page, "\n".join(difference)


def test_the_pages_links_lead_somewhere() -> None:
    for target in ("../reference/cli.md", "../how-to/roll-back.md"):
        assert (PAGE.parent / target).exists(), target
    assert subprocess.run(["grep", "-q", "# An operator's afternoon", str(PAGE)]).returncode == 0
