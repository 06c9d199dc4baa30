"""Rules as data: the shipped ones are sound, an operator's are added, and bad ones are refused by name."""

# ruff: noqa: E501  (files in one line each)
from __future__ import annotations

import time
from pathlib import Path

import pytest

from pd_units.diagnosis import NOT_RETRIED, Cause, Classifier, load_rules
from pd_units.engines.patterns import PatternError, compile_pattern
from pd_units.errors import DeploymentError, ExitCode
from pd_units.evidence import Strength

RULES = load_rules(extra_dirs=())
HEAD = 'schema = 1\nengine = "sglang"\n'


# ------------------------------------------------------------------------------------- the shipped rules
def test_every_cause_has_advice_and_words():
    for cause in Cause:
        if cause is not Cause.NONE:
            assert RULES.advice[cause], cause
            assert RULES.summary[cause], cause


def test_advice_names_keys_of_the_deployment_file():
    for cause in (
        Cause.OOM_WEIGHTS,
        Cause.OOM_KV_CACHE,
        Cause.PORT_IN_USE,
        Cause.MISSING_MODEL,
        Cause.BAD_ARGUMENT,
    ):
        advice = RULES.advice[cause]
        assert any(
            key in advice for key in ("engine.", "mem-fraction-static", "gpus", "port", "readiness.")
        ), cause


def test_every_phase_has_an_honest_silence():
    silence = {phase.name: phase.silence_s for phase in RULES.phases}
    assert silence["capturing"] >= 25 * 60
    assert silence["warming"] >= 30 * 60
    assert silence["compiling"] >= 40 * 60
    assert all(60 <= seconds <= 3600 for seconds in silence.values())


def test_phases_of_placement_exist():
    names = {phase.name for phase in RULES.phases}
    assert RULES.placement is not None and set(RULES.placement.phases) <= names
    for rule in RULES.exceptions:
        assert rule.phases <= names, rule.name


def test_rules_have_names_of_their_own():
    names = [rule.name for rule in RULES.failures] + [rule.name for rule in RULES.exceptions]
    assert len(names) == len(set(names))


def test_symptoms_name_no_cause():
    for rule in RULES.failures:
        assert (rule.cause is Cause.UNKNOWN) == (rule.strength is Strength.SYMPTOM), rule.name


def test_no_rule_matches_the_advice_of_another():
    """What pd-units itself prints of a cause means nothing, even without its own prefix."""
    classifier = Classifier(RULES, role="prefill")
    for text in (*RULES.advice.values(), *RULES.summary.values()):
        classifier.feed(text)
    assert classifier.decisive is None and not classifier.symptom and not classifier.ready_line


def test_unknown_engine():
    with pytest.raises(DeploymentError, match="nothing is known"):
        load_rules("no-such-engine")


# --------------------------------------------------------------------------------------- an operator's
def write(tmp_path, text, name="site.toml"):
    (tmp_path / name).write_text(text)
    return (tmp_path,)


def test_operators_rules_come_first(tmp_path):
    dirs = write(
        tmp_path,
        HEAD + '[[failure]]\nname = "our-mount"\ncause = "missing-model"\nstrength = "decisive"\n'
        "patterns = ['Stale file handle']\n"
        '[advice]\nmissing-model = "mount /srv/models again"\n',
    )
    classifier = Classifier(load_rules(extra_dirs=dirs))
    for line in ("[2026-01-02 03:04:05] server_args=ServerArgs()", "OSError: [Errno 116] Stale file handle"):
        classifier.feed(line)
    diagnosis = classifier.diagnose()
    assert (diagnosis.cause, diagnosis.advice) == ("missing-model", "mount /srv/models again")
    assert diagnosis.evidence[0].rule == "our-mount"


def test_operators_benign_texts_are_believed(tmp_path):
    dirs = write(tmp_path, HEAD + "[[benign]]\nname = \"ours\"\npatterns = ['harmless here']\n")
    lines = ["server_args=ServerArgs()", "Segmentation fault, but harmless here"]
    classifier = Classifier(load_rules(extra_dirs=dirs))
    for line in lines:
        classifier.feed(line)
    assert classifier.diagnose().verdict == "starting"


def test_rules_of_another_engine_are_left_alone(tmp_path):
    dirs = write(tmp_path, 'schema = 1\nengine = "other"\n[[nonsense]]\n')
    assert len(load_rules(extra_dirs=dirs).failures) == len(RULES.failures)


BAD = {
    "not TOML": ("[[failure]\n", "not TOML"),
    "no schema": ('[[benign]]\npatterns = ["harmless"]\n', "schema = 1 is missing"),
    "unknown table": (HEAD + "[[failures]]\n", "unknown table 'failures'"),
    "unknown key": (HEAD + '[[failure]]\nname = "x"\ncause = "nccl"\npatterns = ["boom"]\npatern = "y"\n', "unknown key 'patern'"),
    "unknown cause": (HEAD + '[[failure]]\nname = "x"\ncause = "gremlins"\npatterns = ["boom"]\n', "no such cause"),
    "unknown strength": (HEAD + '[[failure]]\nname = "x"\ncause = "nccl"\nstrength = "very"\npatterns = ["boom"]\n', "strength must be"),
    "rank": (HEAD + '[[failure]]\nname = "x"\ncause = "nccl"\nrank = 0\npatterns = ["boom"]\n', "rank must be"),
    "no pattern": (HEAD + '[[failure]]\nname = "x"\ncause = "nccl"\n', "patterns is missing"),
    "no name": (HEAD + '[[failure]]\ncause = "nccl"\npatterns = ["boom"]\n', "name is missing"),
    "syntax": (HEAD + "[[failure]]\nname = \"x\"\ncause = \"nccl\"\npatterns = ['boo(m']\n", "not a regular expression"),
    "nested": (HEAD + "[[failure]]\nname = \"x\"\ncause = \"nccl\"\npatterns = ['boom(a+)+b']\n", "repeat within a repeat"),
    "too broad": (HEAD + "[[failure]]\nname = \"x\"\ncause = \"nccl\"\npatterns = ['.*']\n", "fixed text"),
    "slow": (HEAD + "[[failure]]\nname = \"x\"\ncause = \"nccl\"\npatterns = ['.*boom.*x.*y']\n", "run for too long"),
    "case": (HEAD + "[[failure]]\nname = \"x\"\ncause = \"nccl\"\npatterns = ['(?i)boom']\n", "case-insensitive"),
    "reference": (HEAD + "[[failure]]\nname = \"x\"\ncause = \"nccl\"\npatterns = ['(boom).\\1']\n", "back references"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_rules_are_refused_with_file_rule_and_line(tmp_path, name):
    text, said = BAD[name]
    with pytest.raises(DeploymentError) as caught:
        load_rules(extra_dirs=write(tmp_path, text), strict=True)
    faults = [str(fault) for fault in caught.value.faults]
    assert any(said in fault for fault in faults), faults
    assert all("site.toml" in fault for fault in faults)
    assert caught.value.exit_code is ExitCode.INVALID


def test_every_fault_at_once_each_with_its_line(tmp_path):
    text = HEAD + '[[failure]]\nname = "first"\ncause = "nccl"\npatterns = [\'(a\']\n'
    text += '[[failure]]\nname = "second"\ncause = "nope"\npatterns = [\'boom\']\n'
    with pytest.raises(DeploymentError) as caught:
        load_rules(extra_dirs=write(tmp_path, text), strict=True)
    where = [fault.where for fault in caught.value.faults]
    assert [place.rsplit("site.toml", 1)[1] for place in where] == [
        ":6 [failure first]",
        ":9 [failure second]",
    ]


def test_a_watcher_goes_on_without_the_bad_file(tmp_path):
    """A mistake in a rule must not stop an engine from starting: the file is left out, and told."""
    write(tmp_path, HEAD + "[[benign]]\nname = \"good\"\npatterns = ['harmless here']\n", "a.toml")
    write(tmp_path, HEAD + "[[benign]]\nname = \"bad\"\npatterns = ['(a']\n", "b.toml")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    rules = load_rules(extra_dirs=(tmp_path,))
    assert len(rules.benign) == len(RULES.benign) + 1
    assert [fault.where.rsplit("/", 1)[1] for fault in rules.faults] == ["b.toml:5 [benign bad]", "c.toml"]


def test_unreadable_rules_are_told(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DeploymentError) as caught:
        load_rules(extra_dirs=(tmp_path,), strict=True)
    assert caught.value.exit_code is ExitCode.UNREADABLE


# --------------------------------------------------------------------------------------------- patterns
@pytest.mark.parametrize(
    ("source", "literals"),
    [
        ("boom", {"boom"}),
        ("exit code -?\\d+ seen", {"exit code "}),
        ("(foo|bar) baz", {"foo baz", "bar baz"}),
        ("[Aa]ddress already", {"Address already", "address already"}),
        ("x{0,3}plain", {"plain"}),
        ("ab(cde)?f", set()),
        ("err 98 here", {" here"}),
    ],
)
def test_literals_of_a_pattern(source, literals):
    if not literals:
        with pytest.raises(PatternError):
            compile_pattern(source)
        return
    assert set(compile_pattern(source).literals) == literals


def test_worst_lines_are_bounded_for_every_shipped_pattern():
    """A line made of a rule's own texts, as long as rules will see, costs little."""
    classifier = Classifier(RULES)
    classifier.feed("server_args=ServerArgs()")
    for rule in RULES.failures:
        for pattern in rule.patterns:
            line = " ".join(pattern.literals) * (4096 // len(pattern.literals[0]))
            began = time.process_time()
            classifier.feed(line[:4096])
            assert time.process_time() - began < 1.0, rule.name


def test_documented_causes_are_the_shipped_ones():
    """docs/reference/causes.md says what the rules say."""
    text = (Path(__file__).parents[2] / "docs/reference/causes.md").read_text(encoding="utf-8")
    for cause in Cause:
        if cause is Cause.NONE:
            continue
        name = f"**{cause}**" if cause in NOT_RETRIED else str(cause)
        assert f"| {name} | {RULES.summary[cause]} | {RULES.advice[cause]} |" in text
