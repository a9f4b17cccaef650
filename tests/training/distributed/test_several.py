"""A recipe on two processes, whole models in both (DDP) or spread over them (FSDP2), is the run of one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.model.checkpoints import list_checkpoints
from sinkscope.training import Recipe, Run
from sinkscope.training.run import checkpoints
from tests.training.distributed.launching import Launched, launched
from tests.training.helpers import killed_at, rows, trained, weights

pytestmark = pytest.mark.release

Make = Callable[..., Recipe]
DEATH = 7
WAYS = {"ddp": "tests.training.distributed.trained_together", "fsdp": "tests.training.distributed.sharded_together"}
TERMS = (
    "loss.activation_penalty.kind=infinity",
    "loss.activation_penalty.strength=0.05",
    "loss.z_loss=0.01",
    "validation_windows=7",
)
OTHER = ("loss.prefix=3", "data.packing=intra_document", "micro_batch=1", "optimizer.clip=0.5")


class Together:
    """What one launch of two processes left: a run of each sort, and the folder of one that was killed."""

    def __init__(self, folder: Path, way: str, how: Launched) -> None:
        self.folder, self.way, self.how = folder, way, how

    def run(self, name: str) -> Run:
        (path,) = (self.folder / name).iterdir()
        return Run(path)


@pytest.fixture(scope="module", params=WAYS)
def together(
    request: pytest.FixtureRequest, tiny: Make, corpus: str, tmp_path_factory: pytest.TempPathFactory
) -> Together:
    way, folder = request.param, tmp_path_factory.mktemp(f"together-{request.param}")
    begun = folder / "begun-on-one"
    if way == "ddp":
        with pytest.MonkeyPatch.context() as patch:
            killed_at(DEATH, tiny(), begun, patch)
    else:
        task = {"recipe": [f"data.corpus={corpus}"], "out": str(begun), "parallel": way, "die": DEATH}
        launched("-m", WAYS[way], json.dumps(task), logs=folder / "one", processes=1)
    sorts: dict[str, dict[str, object]] = {
        "whole": {},
        "other": {"recipe": [f"data.corpus={corpus}", *OTHER]},
        "terms": {"recipe": [f"data.corpus={corpus}", *TERMS]},
        "begun-on-one": {},
        "unwatched": {"plain": True},
        "killed": {"die": DEATH},
    }
    tasks = [
        {"recipe": [f"data.corpus={corpus}"], "out": str(folder / name), "parallel": way, **sort}
        for name, sort in sorts.items()
    ]
    how = launched("-m", WAYS[way], *map(json.dumps, tasks), logs=folder / "logs")
    return Together(folder, way, how)


def assert_close(one: Run, other: Run) -> None:
    """The same rows but for rounding, and weights that drifted no further than Adam lets rounding drift."""
    ours, theirs = rows(one), rows(other)
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        heads, expected = left.pop("heads", {}), right.pop("heads", {})
        assert left == pytest.approx(right, rel=2e-4, abs=1e-6)
        assert heads.keys() == expected.keys()
        for name, values in heads.items():  # four digits are kept
            assert values == pytest.approx(expected[name], rel=2e-3, abs=2e-4)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=2e-4, rtol=1e-3)


def test_the_loss_curve_is_that_of_one_process(together: Together, undisturbed: Run) -> None:
    run = together.run("whole")
    assert run.path.name == undisturbed.path.name
    assert_close(run, undisturbed)
    assert run.record["host"]["processes"] == 2
    assert run.record["host"]["parallel"] == together.way
    assert run.record["parameters"] == undisturbed.record["parameters"]
    assert run.record["status"] == "finished"


def test_masked_labels_documents_and_small_parts_of_a_batch(together: Together, tiny: Make, runs: Path) -> None:
    assert_close(together.run("other"), trained(tiny(*OTHER), runs))


def test_added_terms_and_an_odd_number_of_windows(together: Together, tiny: Make, runs: Path) -> None:
    """What is logged of a term is that of both processes, and no window counts twice in validation."""
    run, single = together.run("terms"), trained(tiny(*TERMS), runs)
    assert {"activation_penalty", "z_loss"} <= set(rows(run)[-1])
    assert_close(run, single)


def test_a_run_that_was_begun_on_one_process(together: Together, undisturbed: Run) -> None:
    run = together.run("begun-on-one")
    assert run.record["notes"] == ["resumed from checkpoint-5"]
    assert_close(run, undisturbed)


def test_a_run_that_was_killed_on_two_goes_on_on_one(
    together: Together, undisturbed: Run, tiny: Make, corpus: str, tmp_path: Path
) -> None:
    dead = together.run("killed")
    assert together.how.code != 0
    assert dead.record["status"] == "running"
    (checkpoint,) = list_checkpoints(dead.path / "checkpoints")
    assert checkpoints.problem(checkpoint) is None
    if together.way == "ddp":
        run = trained(tiny(), dead.path.parent, resume=True)
    else:
        with pytest.raises(
            InputError, match=r"was written with parallel='fsdp' .* continue with 'fsdp', on any number"
        ):
            trained(tiny(), dead.path.parent, resume=True)
        task = {"recipe": [f"data.corpus={corpus}"], "out": str(dead.path.parent), "parallel": "fsdp"}
        launched("-m", WAYS["fsdp"], json.dumps(task), logs=tmp_path / "logs", processes=1)
        run = Run(dead.path)
    assert run.record["notes"][-1] == "resumed from checkpoint-5"
    assert_close(run, undisturbed)


def test_the_sink_callback_changes_no_weight(together: Together) -> None:
    seen, unseen = weights(together.run("whole")), weights(together.run("unwatched"))
    assert all(torch.equal(value, unseen[name]) for name, value in seen.items())
    assert "sink/position_0" not in together.run("unwatched").log.columns


def test_one_process_writes_the_files_of_one(together: Together, undisturbed: Run) -> None:
    def files(run: Run) -> set[str]:
        return {path.relative_to(run.path).as_posix() for path in run.path.rglob("*")}

    written = {path.replace("optimizer.bin", "optimizer.pt") for path in files(together.run("whole"))}
    extra = {path for path in written if path.endswith("pytorch_model_fsdp.bin")}  # accelerate writes weights again
    assert written - extra == files(undisturbed)
    assert len(extra) == (2 if together.way == "fsdp" else 0)
    stored = (together.run("whole").path / "model" / "config.json").read_text()
    assert stored == (undisturbed.path / "model" / "config.json").read_text()
    assert json.loads(stored)["architectures"] == ["LabForCausalLM"]


def test_nothing_is_said_twice(together: Together) -> None:
    assert "Traceback" not in "".join(together.how.err)
    assert together.how.out[1] == ""
    announced = [error.count("resumed from checkpoint-5") for error in together.how.err]
    assert announced == [1, 0]


@pytest.fixture
def recipe_file(corpus: str, tiny: Make, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(tiny().model_dump(mode="json")))
    return path


REFUSED = {
    "a batch that does not divide": (
        ["--set", "batch_size=3"],
        "batch_size = 3 does not divide over 2 processes: start 1, or set batch_size=4",
        None,
    ),
    "weights that become NaN": (
        ["--set", "optimizer.lr=1e30", "--set", "optimizer.clip=null", "--set", "schedule.warmup=0"],
        "training diverged: the ",
        "diverged",
    ),
    "an unknown field": (["--set", "stepps=3"], "steps", None),
    "sharding on CPUs": (["--parallel", "fsdp"], "weights are sharded over GPUs only", None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_one_line_once_and_ends_all(case: str, recipe_file: Path, tmp_path: Path) -> None:
    options, said, status = REFUSED[case]
    out = tmp_path / "runs"
    how = launched("-m", "sinkscope", "train", recipe_file, "--out", out, *options, logs=tmp_path / "logs")
    main, other = how.err
    lines = [line for line in main.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, main + other
    assert said in lines[0]
    assert other == ""
    assert "Traceback" not in main
    assert how.code == 1
    assert "exitcode  : 2" in how.report
    if status is None:
        assert not list(out.rglob("record.json"))
    else:
        (record,) = out.rglob("record.json")
        assert json.loads(record.read_text())["status"] == status


def test_a_full_disk_in_one_process_ends_both(recipe_file: Path, tmp_path: Path) -> None:
    """The main process alone fails, in the middle of training; the other must not wait for it."""
    blocked = tmp_path / "block.py"
    blocked.write_text(
        "import sys\n"
        "from sinkscope.errors import InputError\n"
        "from sinkscope.training.run import log\n"
        "def full(path, row):\n"
        "    if row['step'] == 6: raise InputError(f'cannot write {path}: No space left on device')\n"
        "log.append_row = full\n"
        "from sinkscope.cli import main\n"
        f"sys.exit(main(['train', {str(recipe_file)!r}, '--out', {str(tmp_path / 'runs')!r}]))\n"
    )
    how = launched(blocked, logs=tmp_path / "logs")
    main, other = how.err
    assert main.count("error: cannot write") == 1
    assert "Traceback" not in main + other, main + other
    assert how.code == 1


def test_a_finished_run_is_returned_by_both(together: Together, corpus: str, tmp_path: Path) -> None:
    whole = together.run("whole").path
    shutil.copytree(whole, tmp_path / "runs" / whole.name)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    task = {"recipe": [f"data.corpus={corpus}"], "out": str(tmp_path / "runs"), "parallel": "ddp"}
    how = launched("-m", WAYS["ddp"], json.dumps(task), logs=tmp_path / "logs")
    assert how.code == 0, how.err
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}


def test_the_callback_in_somebodys_own_trainer(tmp_path: Path) -> None:
    how = launched("-m", "tests.training.distributed.watched_together", tmp_path / "out", logs=tmp_path / "logs")
    assert how.code == 0, how.err[0][-3000:]
    found = json.loads(how.out[0].splitlines()[-1])
    for way, sharded in (("ddp", False), ("fsdp", True)):
        assert found[way] == {"equal": True, "tensors": 21, "sharded": sharded, "logged": [0, 2, 4]}
