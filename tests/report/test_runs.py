import json

import pytest

from sinkscope.errors import InputError
from sinkscope.report.runs import StoredRun, read_run


def write_log(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_reads_rows_and_record(tmp_path):
    folder = write_log(tmp_path / "nano-softmax-abc", '{"step": 1, "loss": 7.5}\n{"step": 2, "loss": 7.0}\n')
    (folder / "record.json").write_text(json.dumps({"status": "finished"}))
    run = read_run(folder)
    assert run.label == "nano-softmax-abc"
    assert run.curve("loss") == ([1, 2], [7.5, 7.0])
    assert run.record["status"] == "finished"


def test_a_line_still_being_written_is_left_out(tmp_path):
    run = read_run(write_log(tmp_path / "run", '{"step": 1, "loss": 7.5}\n{"step": 2, "lo'))
    assert run.step == 1


def test_a_curve_holds_only_finite_values_of_rows_that_have_the_metric():
    run = StoredRun(
        "r", ({"step": 1, "loss": 2.0}, {"step": 2}, {"step": 3, "loss": float("nan")}, {"step": 4, "loss": None})
    )
    assert run.curve("loss") == ([1], [2.0])
    assert run.last("loss") == 2.0
    assert run.last("sink/position_0") is None


@pytest.mark.parametrize("line", ["not json", "[1]", '{"loss": 1}', '{"step": null}'])
def test_a_corrupt_line_is_named(tmp_path, line):
    folder = write_log(tmp_path / "run", f'{{"step": 1}}\n{line}\n')
    with pytest.raises(InputError, match="line 2"):
        read_run(folder)


def test_a_folder_without_a_log_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"not a run folder"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_corrupt_record_is_refused(tmp_path, text):
    folder = write_log(tmp_path / "run", "")
    (folder / "record.json").write_text(text)
    with pytest.raises(InputError, match=r"record\.json"):
        read_run(folder)


def test_a_log_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(InputError, match="line 1"):
        read_run(tmp_path)
