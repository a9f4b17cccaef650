"""Each claim says which commit stated it, whether runs were there before, and agrees with the history."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sinkscope.experiments import QUESTIONS, SHIPPED, Findings, Observed, above, known, level, stated
from sinkscope.experiments import statements as module
from sinkscope.experiments.equal_loss import SeedWise
from sinkscope.experiments.statements import TABLE, key, key_of

ROOT = Path(__file__).parents[2]
ASKED = QUESTIONS["emergence"]
CLAIM = next(one for one in ASKED.assertions if one.claim.name == "steadily")


def table() -> dict:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def git(*words: str) -> str:
    told = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip(f"git {words[0]}: {told.stderr.strip() or 'no history here'}")
    return told.stdout


def test_every_claim_has_an_entry():
    entries = table()["claims"]
    missing = [
        (name, one.claim.name)
        for name, asked in QUESTIONS.own.items()
        for one in asked.assertions
        if key_of(one) not in entries.get(name, {})
    ]
    assert missing == [], "commit the claims, then run python -m tools.pages.statements, and commit its table"


def test_an_entry_is_a_commit_of_this_history_and_its_date():
    entries = {tuple(entry) for keys in table()["claims"].values() for entry in keys.values()}
    dates = {}
    for line in git("log", "--format=%H %ct").splitlines():
        commit, _, seconds = line.partition(" ")
        dates[commit[:8]] = datetime.fromtimestamp(int(seconds), UTC).isoformat(timespec="seconds")
    if len(dates) < 50:
        pytest.skip("a shallow clone: its history is cut")
    for commit, date in entries:
        assert dates.get(commit) == date, commit


@pytest.mark.long
def test_the_newest_statements_are_in_their_commit_and_not_in_the_one_before():
    from tools.pages.statements import claims_at

    claims = table()["claims"]
    newest = max((tuple(entry) for keys in claims.values() for entry in keys.values()), key=lambda entry: entry[1])[0]
    before, own = (claims_at(git("rev-parse", name).strip()) for name in (f"{newest}~1", newest))
    assert before
    assert own
    ours = {(name, one) for name, keys in claims.items() for one, (commit, _) in keys.items() if commit == newest}
    assert ours
    for name, one in ours:
        assert one in own[name]
        assert one not in before.get(name, set())


def test_a_claim_is_its_words_and_its_number_however_they_are_spelled():
    assert key("The normalised Rate", 3.0) == key("the  normalized rate", 3)
    assert key("the rate", 3.0) != key("the rate", 1.0)
    assert key("the rate", 3.0) != key("the mass", 3.0)
    assert key("this is its list", 1.0) != key("thiz iz its lizt", 1.0)


def findings(**runs: Observed) -> Findings:
    return Findings("emergence", "nano", 9, {"softmax": {run.seed: run for run in runs.values()}})


def test_runs_before_and_after_the_statement_are_told_apart(monkeypatch):
    entry = {"claims": {"emergence": {key_of(CLAIM): ["abc", "2025-05-05T10:00:00+00:00"]}}, "runs": {}}
    monkeypatch.setattr(module, "_table", lambda: entry)
    early, late = (
        Observed(f"r{day}", "finished", seed, started=f"2025-05-{day:02}T10:00:00+00:00")
        for seed, day in enumerate((4, 6))
    )
    assert stated(ASKED, CLAIM, findings(late=late)).when == "beforehand"
    assert stated(ASKED, CLAIM, findings(early=early, late=late)).when == "afterwards"
    assert stated(ASKED, CLAIM, None).when == "not known"
    assert stated(ASKED, CLAIM, findings(late=late)).said == "stated 2025-05-05 (abc), first run 2025-05-06"
    assert stated(ASKED, CLAIM, None).said == "stated 2025-05-05 (abc), no run yet"
    fresh = replace(CLAIM, from_seed=1)
    assert stated(ASKED, fresh, findings(early=early, late=late)).when == "beforehand"


def test_a_premise_that_is_added_makes_it_another_claim():
    effect = level("sink_0", "softmax")
    plain = above(1.0, effect, "mine", "my statement", "me")
    guarded = above(1.0, SeedWise(effect, "no sink to begin with"), "mine", "my statement", "me")
    assert key_of(guarded) != key_of(plain) == key("my statement", 1.0)
    assert key_of(guarded) == key("My  statement", 1.0, "no sink to begin with")


def test_a_run_without_a_date_is_as_old_as_its_record(monkeypatch):
    old = Observed("old", "finished", 0)
    for date, when in (("04", "afterwards"), ("05", "with its first runs"), ("06", "beforehand")):
        entry = {
            "claims": {"emergence": {key_of(CLAIM): ["abc", "2025-05-05T10:00:00+00:00"]}},
            "runs": {"old": f"2025-05-{date}T10:00:00+00:00"},
        }
        monkeypatch.setattr(module, "_table", lambda entry=entry: entry)
        assert stated(ASKED, CLAIM, findings(old=old)).when == when
        assert stated(ASKED, CLAIM, findings(unheard=replace(old, run="unheard"))).when == "not known"


def test_a_clock_that_jumps_makes_no_claim_older(monkeypatch):
    entry = {
        "claims": {"emergence": {key_of(CLAIM): ["abc", "2025-05-05T10:00:00+00:00"]}},
        "runs": {"odd": "2025-05-04T10:00:00+00:00"},
    }
    monkeypatch.setattr(module, "_table", lambda: entry)
    for wrong in ("2999-01-01T00:00:00+00:00", "1970-01-01T00:00:00+00:00"):
        odd = Observed("odd", "finished", 0, started=wrong)
        assert stated(ASKED, CLAIM, findings(odd=odd)).when == "afterwards"  # as its record's day says
        assert stated(ASKED, CLAIM, findings(odd=replace(odd, run="unheard"))).when == "not known"


def test_a_user_s_own_claim_is_not_known():
    mine = above(1.0, level("sink_0", "softmax"), "mine", "my statement", "me")
    own = replace(ASKED, name="mine", assertions=(mine,))
    assert stated(own, mine, None) == module.Stated("", "", "", "not known")
    assert stated(own, mine, None).said == ""


def test_the_runs_that_come_with_the_package_are_dated():
    records = known([SHIPPED], "nano")
    dated = table()["runs"]
    names = {run.run for found in records.records.values() for seeds in found.runs.values() for run in seeds.values()}
    assert {name for name in names if name not in dated} <= {
        run.run
        for found in records.records.values()
        for seeds in found.runs.values()
        for run in seeds.values()
        if run.started
    }
    late = [
        (asked.name, one.claim.name)
        for asked in QUESTIONS.own.values()
        for one in asked.assertions
        if stated(asked, one, records.of(asked)).when == "afterwards"
    ]
    assert ("fixed-token", "the massive activation follows") not in late  # no run of before can decide it
    assert ("normalisation", "added back: massive") in late
