"""The same install twice: nothing changes, no unit is touched, in less than half a second of its own."""

from __future__ import annotations

import json

from faults import TWO, Host, two

from rig.box import Box

# Processor time of a command and all that it started, in seconds, with its standard output.
MEASURE = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
text = process.stdout.read().decode()
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, text]))
"""


def test_twice_the_same_install(box: Box) -> None:
    host = Host(box, "two", TWO)
    host.write(two("0.75"))
    host.install().check()
    before = host.mains()
    stamps = box.sh("find /etc/systemd/system /var/lib/pd-units -printf '%p %T@ %i\\n' | sort")
    reloads = box.journal(None, "--grep=Reloading|Reload requested")
    seconds = []
    for _ in range(5):
        argv = ["python3", "-I", "-c", MEASURE, "pd-units", "install", "--skip", "gpu", "--json"]
        code, used, text = json.loads(box.run(argv).check().out)
        assert code == 0
        answer = json.loads(text)
        assert answer["changed"] is False
        assert {change["kind"] for each in answer["deployments"] for change in each["changes"]} == {"keep"}
        seconds.append(used)
    print(f"an install that changes nothing: {min(seconds):.2f} s of processor time")
    assert min(seconds) < 0.5, seconds
    assert host.mains() == before
    assert box.sh("find /etc/systemd/system /var/lib/pd-units -printf '%p %T@ %i\\n' | sort") == stamps
    assert box.journal(None, "--grep=Reloading|Reload requested") == reloads
