"""Two at once: the second waits, or says who is at work; readers see one generation or the other."""

from __future__ import annotations

import json
import time

from faults import TWO, Host, two

from rig.box import Box, until

A, B = "0.75", "0.65"
# Every reader's answers are gathered inside the box, in a loop without a pause.
READER = """
import json, subprocess, sys, time
end, seen = time.monotonic() + float(sys.argv[1]), []
while time.monotonic() < end:
    done = subprocess.run(sys.argv[2:], capture_output=True, text=True)
    seen.append([done.returncode, done.stdout, done.stderr])
print(json.dumps(seen))
"""


def test_the_second_install_waits_or_names_the_first(box: Box) -> None:
    host = Host(box, "two", TWO)
    host.write(two(A))
    box.write("/etc/stub-engine/31000.toml", "delay = { weights = 3 }")
    first = box.popen(["pd-units", "install", "--skip", "gpu", "--json"])
    until("the first is at work", lambda: host.operation() is not None)
    hasty = host.install("--lock-timeout", "0s")
    assert hasty.rc == 32
    assert "another pd-units is at work" in hasty.json()["message"]
    holder = box.sh("pgrep -f 'bin/pd-units install --skip gpu --json' | head -n 1").strip()
    assert f"process {holder}" in hasty.json()["detail"]
    patient = box.popen(["pd-units", "install", "--skip", "gpu", "--json", "--lock-timeout", "60s"])
    answers = [json.loads(process.communicate(timeout=90)[0]) for process in (first, patient)]
    assert [answer["exit_code"] for answer in answers] == [0, 0]
    assert [answer["changed"] for answer in answers] == [True, False]


def test_two_installs_of_different_files_end_with_one_of_them(box: Box) -> None:
    host = Host(box, "two", TWO)
    host.write(two(A))
    host.install().check()
    for fraction in (B, "0.55"):
        box.write(f"/root/{fraction}.toml", two(fraction))
    both = [
        box.popen(["pd-units", "install", "--skip", "gpu", "--lock-timeout", "60s", f"/root/{fraction}.toml"])
        for fraction in (B, "0.55")
    ]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    texts = host.texts().values()
    assert len({B if f"static {B}" in text else "0.55" for text in texts}) == 1
    assert host.index()["generation"] == 3
    assert host.status()["state"] == "ready"


def test_readers_never_see_half_a_set(box: Box) -> None:
    host = Host(box, "two", TWO)
    host.write(two(A))
    host.install().check()
    box.write("/usr/local/bin/reader.py", READER)
    names = ["status", "wait-ready", "diff"]
    verbs = [
        ["status", "--json"],
        ["wait-ready", "--json", "--timeout", "20s"],
        ["diff", "two", "--skip", "gpu", "--json"],
    ]
    readers = [
        box.popen(["python3", "-I", "/usr/local/bin/reader.py", "12", "pd-units", *verb], user=user)
        for verb, user in zip(verbs, ("operator", "operator", "root"), strict=True)
    ]
    began = time.monotonic()
    for fraction in (B, A):
        host.write(two(fraction))
        host.install().check()
    assert time.monotonic() - began < 60
    for name, reader in zip(names, readers, strict=True):
        out, err = reader.communicate(timeout=90)
        answers = json.loads(out)
        assert len(answers) >= 2, (name, err)
        for rc, text, prose in answers:
            assert "Traceback" not in prose, (name, prose)
            told = json.loads(text)
            assert rc in (0, 40, 41) if name == "wait-ready" else rc == 0, (name, rc, text, prose)
            if name == "diff":
                continue
            for deployment in told["deployments"]:
                assert [unit["unit"] for unit in deployment["units"]] == list(TWO)
                assert deployment["generation"] in (1, 2, 3)
                if deployment["state"] == "ready":
                    assert {unit["state"] for unit in deployment["units"]} == {"ready"}
                assert deployment["interrupted"] is None, deployment["interrupted"]
