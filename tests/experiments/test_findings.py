"""Verdicts from what was found: which seeds count, what it cost, what made it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import (
    Assertion,
    Findings,
    Observed,
    Question,
    Variation,
    above,
    gap,
    verdicts,
)
from sinkscope.experiments import findings as kept
from sinkscope.experiments.provenance import provenance_of
from sinkscope.statistics.claims import Claim, SeedsAbove
from sinkscope.training import Run


def seen(label: str, seed: int, value: float, status: str = "finished") -> Observed:
    metrics = {"m": value} if status == "finished" else {}
    return Observed(f"{label}-{seed}", status, seed, metrics, seconds=10.0)


def question(*effects: object, seeds: int = 3) -> Question:
    claim = Claim("claim", "its statement", "a test", SeedsAbove(0.0, seeds))
    made = tuple(Assertion(claim, effect) for effect in effects)
    return Question("q", "Is it?", "a test", tuple(map(Variation, "abc")), made)


def found(**missing: set[int]) -> Findings:
    """Three seeds of a (1), b (3) and c (5), without some."""
    values = {"a": 1.0, "b": 3.0, "c": 5.0}
    runs = {
        label: {seed: seen(label, seed, value) for seed in range(3) if seed not in missing.get(label, set())}
        for label, value in values.items()
    }
    failed = {label: dict.fromkeys(seeds, "no") for label, seeds in missing.items()}
    return Findings("q", "nano", 3, runs, failed)


def b_minus_a(runs) -> float:
    return runs["b"]["m"] - runs["a"]["m"]


def c_minus_a(runs) -> float:
    return runs["c"]["m"] - runs["a"]["m"]


def test_a_reading_is_what_the_file_says_now_and_reads_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    whole = Path.read_text

    def counted(path: Path, *args: object, **options: object) -> str:
        reads.append(path)
        return whole(path, *args, **options)

    reading = kept.Reading(tmp_path, "q", "nano")
    assert reading.now() is None
    for value in (1.0, 2.0):
        kept.write(tmp_path, Findings("q", "nano", 1, {"a": {0: seen("a", 0, value)}}))
        monkeypatch.setattr(Path, "read_text", counted)
        for _ in range(3):
            found = reading.now()
            assert found is not None
            assert found.runs["a"][0]["m"] == value
        monkeypatch.setattr(Path, "read_text", whole)
    assert len(reads) == 2
    kept.path_of(tmp_path, "q", "nano").write_text("{")
    with pytest.raises(InputError, match="cannot read"):
        reading.now()
    kept.path_of(tmp_path, "q", "nano").unlink()
    assert reading.now() is None


def test_a_claim_counts_the_seeds_that_have_what_it_reads() -> None:
    whole, broken = verdicts(question(b_minus_a, c_minus_a), found(c={1}))
    assert (whole.outcome, len(whole.evidence), whole.reason) == ("supported", 3, "")
    assert broken.outcome == "inconclusive"
    assert [evidence.case for evidence in broken.evidence] == ["seed 0", "seed 2"]
    assert broken.reason == "seed 1 left out: no run of 'c'"
    (enough,) = verdicts(question(c_minus_a, seeds=2), found(c={1}))
    assert (enough.outcome, enough.residual, enough.spread) == ("supported", 4.0, 0.0)


def test_reasons_name_every_missing_variation() -> None:
    (verdict,) = verdicts(question(c_minus_a), found(a={0, 2}, c={1}))
    assert verdict.outcome == "not run at this scale"
    assert verdict.reason == "seeds 0, 2 left out: no run of 'a'; seed 1 left out: no run of 'c'"


def test_an_effect_that_makes_do_without_a_run_does_not_count_its_seed() -> None:
    def forgiving(runs) -> float:
        return runs["c"]["m"] if "c" in runs else math.nan

    (verdict,) = verdicts(question(forgiving), found(c={0}))
    assert [evidence.case for evidence in verdict.evidence] == ["seed 1", "seed 2"]


def test_a_run_that_diverged_is_there_and_decides_nothing() -> None:
    findings = found()
    findings.runs["b"][1] = seen("b", 1, 0.0, status="diverged")
    (verdict,) = verdicts(question(b_minus_a), findings)
    assert (verdict.outcome, len(verdict.evidence)) == ("inconclusive", 3)
    assert verdict.reason == "seed 1 undecided: 'b' diverged"
    assert verdicts(question(lambda runs: float(runs["b"].diverged)), findings)[0].reason == ""


def test_an_effect_with_a_misspelt_label_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"unknown variation of experiment 'q' 'bb'"):
        verdicts(question(lambda runs: runs["bb"]["m"]), found())


def test_a_fault_of_an_effect_is_not_taken_for_a_missing_run() -> None:
    with pytest.raises(KeyError, match="elsewhere"):
        verdicts(question(lambda runs: {}["elsewhere"]), found())


def test_cost_counts_a_shared_run_once() -> None:
    findings = found(c={0})
    findings.runs["b"][0] = findings.runs["a"][0]
    assert findings.cost == {"runs": 7, "seconds": 70.0, "seconds_per_run": 10.0}
    assert Findings("q", "nano", 3, {}).cost == {"runs": 0, "seconds": 0.0, "seconds_per_run": 0.0}


def test_the_record_holds_cost_and_goes_round(tmp_path: Path) -> None:
    findings = found(c={1})
    path = kept.write(tmp_path, findings)
    assert json.loads(path.read_text())["cost"]["runs"] == 8
    assert kept.read(tmp_path, "q", "nano") == findings


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_half_a_record_is_reported_by_its_name(part: float, tmp_path: Path) -> None:
    path = kept.write(tmp_path, found())
    path.write_text(path.read_text()[: int(part * path.stat().st_size)])
    with pytest.raises(InputError, match=f"cannot read {path}"):
        kept.read(tmp_path, "q", "nano")
    assert kept.write(tmp_path, found()) == path
    assert kept.read(tmp_path, "q", "nano") == found()


@pytest.mark.parametrize("name", ["../q", "a/b", "", "."])
def test_a_name_that_would_lead_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must hold no '/'"):
        kept.path_of(tmp_path, name, "nano")


CPU, GPU = ({"device": name, "threads": 1, "system": "Linux", "machine": "x86_64"} for name in ("cpu", "gpu"))


@pytest.mark.parametrize(
    ("hosts", "kept_runs", "told"),
    [
        ([{**CPU, "runs": 6}], 4, [{**CPU, "runs": 5}]),  # one kind made them all
        ([{**CPU, "runs": 3}, {**GPU, "runs": 3}], 6, [{**CPU, "runs": 4}, {**GPU, "runs": 3}]),  # none was left out
        ([{**CPU, "runs": 3}, {**GPU, "runs": 3}], 4, [CPU, GPU]),  # nobody knows which
        ([CPU, {**GPU, "runs": 3}], 3, [CPU, GPU]),
        ([{**GPU, "runs": 3}], 0, [{**CPU, "runs": 1}]),
    ],
)
def test_provenance_of_runs_that_a_record_keeps(hosts, kept_runs, told, tmp_path: Path) -> None:
    record = {"status": "finished", "host": CPU, "versions": {"torch": "2"}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    recorded = [({"versions": {"torch": "1, 2", "old": "3"}, "hosts": hosts}, kept_runs)] if kept_runs else []
    made = provenance_of([Run(tmp_path)], recorded)
    assert made["hosts"] == told
    assert made["versions"] == ({"torch": "1, 2", "old": "3"} if kept_runs else {"torch": "2"})
    alone = provenance_of([], [({"versions": {"torch": "1, 2"}, "hosts": hosts}, 6)])
    assert alone["versions"] == {"torch": "1, 2"}


def test_provenance_of_several_records_adds_up_what_is_known() -> None:
    several = [({"hosts": [{**CPU, "runs": 3}]}, 2), ({"hosts": [{**CPU, "runs": 4}, {**GPU, "runs": 1}]}, 5)]
    assert provenance_of([], several)["hosts"] == [{**CPU, "runs": 6}, {**GPU, "runs": 1}]
    unknown = [*several, ({"hosts": [CPU, GPU]}, 1), ({"hosts": [{**CPU, "runs": 1}]}, 1)]
    assert provenance_of([], unknown)["hosts"] == [CPU, GPU]


def test_provenance_tells_the_kinds_of_machine_and_all_versions(tmp_path: Path) -> None:
    cpu, gpu = ({"device": name, "threads": 1, "system": "Linux", "machine": "x86_64"} for name in ("cpu", "gpu"))
    for index, (host, version) in enumerate([(cpu, "1"), (gpu, "2"), (cpu, "2")]):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "record.json").write_text(
            json.dumps({"status": "finished", "host": host, "versions": {"torch": version, "python": "3"}})
        )
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "record.json").write_text("{")
    runs = [Run(tmp_path / name) for name in ("0", "1", "2", "0", "damaged", "absent")]
    made = provenance_of(runs)
    assert made["hosts"] == [{**cpu, "runs": 2}, {**gpu, "runs": 1}]
    assert made["versions"]["torch"] == "1, 2"


def asked_from(seed: int, effect: object) -> Question:
    return Question("q", "?", "a test", tuple(map(Variation, "abc")), (above(0.5, effect, "c", "s", "a test", seed),))


@pytest.mark.parametrize("effect", [gap("m", "b", "a"), b_minus_a], ids=["over runs", "in a seed"])
def test_seeds_that_were_seen_before_do_not_count(effect) -> None:
    """Seeds 0 to 2 say b − a = 2; the fresh ones say 0, on the whole."""
    fresh = {
        label: {seed: seen(label, seed, 1.0 + turn * (seed - 4) / 1e3) for seed in (3, 4, 5)}
        for label, turn in (("a", 1), ("b", -1))
    }
    runs = {label: {**found().runs[label], **fresh.get(label, {})} for label in "abc"}
    (every,) = verdicts(asked_from(0, effect), Findings("q", "nano", 6, runs))
    (later,) = verdicts(asked_from(3, effect), Findings("q", "nano", 6, runs))
    assert every.residual == pytest.approx(1.0)
    assert (later.residual, later.outcome) == (pytest.approx(0.0), "refuted")
    assert [evidence.case for evidence in later.evidence] == ["seed 3", "seed 4", "seed 5"]
    assert "seeds 0, 1, 2" in later.reason
    assert "seen before this was asked" in later.reason
    (elsewhere,) = verdicts(asked_from(3, effect), Findings("q", "mini", 6, runs), "mini")
    assert elsewhere.residual == pytest.approx(1.0)  # no run of that scale had been seen
    (none,) = verdicts(asked_from(3, effect), found())
    assert none.outcome == "not run at this scale"
    assert "seen before this was asked" in none.reason


def test_a_run_does_not_stand_for_another_seed() -> None:
    """Else one run counts twice, and a verdict of two seeds is one of three."""
    data = found().to_dict()
    data["runs"]["a"]["1"] = data["runs"]["a"]["0"]
    with pytest.raises(InputError, match="'a', seed 1: this is the run of seed 0"):
        Findings.from_dict(data)
