from sinkscope.experiments import Findings, Observed, findings


def test_what_cannot_be_reported_is_bad_input(sinkscope, tmp_path):
    assert "nothing at" in sinkscope("report", "absent").error
    (tmp_path / "broken.nc").write_bytes(b"\x89HDF no more")
    assert "broken.nc" in sinkscope("report", "broken.nc").error
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_bad_input(sinkscope, tmp_path):
    (tmp_path / "a-file").write_text("")
    assert "cannot write" in sinkscope("report", "runs", "--out", "a-file/page.html").error


def record(folder):
    run = Observed("nano-softmax-1", "finished", 0, {"sink_0": 5.0}, (1, 2), {"sink/position_0": (0.0, 5.0)}, 60.0)
    return findings.write_findings(folder, Findings("inputs", "nano", 1, {"softmax": {0: run}}))


def test_experiments_become_a_page(sinkscope, tmp_path):
    record(tmp_path / "results")
    answer = sinkscope("report", "results", "--out", "page.html", "--json")
    assert answer.code == 0, answer.err
    assert answer.json == {"report": "page.html", "sections": ["Verdicts", "Experiments"]}
    assert "nano-softmax-1" in (tmp_path / "page.html").read_text()


def test_a_damaged_record_is_bad_input(sinkscope, tmp_path):
    path = record(tmp_path / "results")
    path.write_text(path.read_text()[:100])
    assert "inputs.json" in sinkscope("report", "results").error
    assert "inputs.json" in sinkscope("report", path).error
    assert not (tmp_path / "report.html").exists()
