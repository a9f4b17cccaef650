"""A run's folder belongs to one process at a time."""

from pathlib import Path

from sinkscope.files import LOCK, locked


def test_what_a_killed_process_left_is_cleared(tmp_path: Path):
    (tmp_path / ".record.json.abcd_123.unfinished").mkdir()
    (tmp_path / "record.json").touch()
    with locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {LOCK, "record.json"}
