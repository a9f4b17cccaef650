"""Records of experiments: their runs, what they cost, what made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope import experiments
from sinkscope.errors import InputError
from sinkscope.experiments import Findings, Observed
from sinkscope.experiments import findings as kept
from sinkscope.experiments.running import provenance_of
from sinkscope.training import Run


def seen(label: str, seed: int, value: float, status: str = "finished") -> Observed:
    metrics = {"m": value} if status == "finished" else {}
    return Observed(f"{label}-{seed}", status, seed, metrics, seconds=10.0)


def found(**missing: set[int]) -> Findings:
    """Three seeds of a (1), b (3) and c (5), without some."""
    values = {"a": 1.0, "b": 3.0, "c": 5.0}
    runs = {
        label: {seed: seen(label, seed, value) for seed in range(3) if seed not in missing.get(label, set())}
        for label, value in values.items()
    }
    failed = {label: dict.fromkeys(seeds, "no") for label, seeds in missing.items()}
    return Findings("q", "nano", 3, runs, failed)


def test_a_reading_is_what_the_file_says_now_and_reads_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    whole = Path.read_text

    def counted(path: Path, *args: object, **options: object) -> str:
        reads.append(path)
        return whole(path, *args, **options)

    reading = kept.RecordFile(tmp_path, "q", "nano")
    assert reading.now() is None
    for value in (1.0, 2.0):
        kept.write_findings(tmp_path, Findings("q", "nano", 1, {"a": {0: seen("a", 0, value)}}))
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


def test_cost_counts_a_shared_run_once() -> None:
    findings = found(c={0})
    findings.runs["b"][0] = findings.runs["a"][0]
    assert findings.cost == {"runs": 7, "seconds": 70.0, "seconds_per_run": 10.0}
    assert Findings("q", "nano", 3, {}).cost == {"runs": 0, "seconds": 0.0, "seconds_per_run": 0.0}


def test_the_record_holds_cost_and_goes_round(tmp_path: Path) -> None:
    findings = found(c={1})
    path = kept.write_findings(tmp_path, findings)
    assert json.loads(path.read_text())["cost"]["runs"] == 8
    assert kept.read_findings(tmp_path, "q", "nano") == findings


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_half_a_record_is_reported_by_its_name(part: float, tmp_path: Path) -> None:
    path = kept.write_findings(tmp_path, found())
    path.write_text(path.read_text()[: int(part * path.stat().st_size)])
    with pytest.raises(InputError, match=f"cannot read {path}"):
        kept.read_findings(tmp_path, "q", "nano")
    assert kept.write_findings(tmp_path, found()) == path
    assert kept.read_findings(tmp_path, "q", "nano") == found()


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


def test_a_run_does_not_stand_for_another_seed() -> None:
    """Else one run counts twice, and a verdict of two seeds is one of three."""
    data = found().to_dict()
    data["runs"]["a"]["1"] = data["runs"]["a"]["0"]
    with pytest.raises(InputError, match="'a', seed 1: this is the run of seed 0"):
        Findings.from_dict(data)


def test_a_run_is_not_two_models() -> None:
    data = found().to_dict()
    data["runs"]["a"]["7"] = {**data["runs"]["a"]["0"], "seed": 7}
    with pytest.raises(InputError, match=f"{data['runs']['a']['0']['run']} is there as seed 0 and as seed 7"):
        Findings.from_dict(data)


@pytest.mark.parametrize("note", [3, {"sha256": 5}])
def test_a_damaged_note_of_a_file_is_a_damaged_record(note: object) -> None:
    data = found().to_dict()
    data["runs"]["a"]["0"]["registered"] = {"mine": note}
    with pytest.raises(InputError, match="registered holds no notes of files"):
        Findings.from_dict(data)


@pytest.mark.parametrize(("old", "new"), [("read", "read_findings"), ("Progress", "SweepProgress")])
def test_an_earlier_name_is_read_with_a_warning(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"experiments\.{old} is sinkscope\.experiments\.{new} now"):
        assert getattr(experiments, old) is getattr(experiments, new)
