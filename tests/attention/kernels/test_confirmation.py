"""Kernels are compared once for a machine, and what was found is kept: no GPU is needed to try that."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from benchmarks import cuda_kernels
from sinkscope.attention.kernels import Machine, Outcome, Specialization, confirm, confirmation, known
from sinkscope.attention.kernels.comparison import LIMITS, KernelCase, plain
from sinkscope.attention.normalizers import Elu, Sigmoid
from sinkscope.attention.oracle import ParityRow

CPU = torch.device("cpu")
HERE = Machine("some GPU", "9.0", "2.13.0", "3.7.1", "abc")
SIGMOID = Specialization(Sigmoid(), False, torch.float32, 8, 8)
ELU = replace(SIGMOID, normalizer=Elu())
FINE = {"output": 1e-7, "dquery": 2e-7, "dkey": 3e-7, "dvalue": 0.0}


def row(case: KernelCase, errors: dict[str, float]) -> ParityRow:
    return ParityRow.judged(str(case), plain(case.dtype), errors, LIMITS[case.dtype])


class Lab:
    """A machine whose comparisons are made up: what they find, and how often they were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self.folder = monkeypatch, folder
        self.made = 0
        self.errors: dict[str, float] = FINE
        self.raised: Exception | None = None
        self.takes = 0.0
        monkeypatch.setattr(confirmation, "compared", self.compared)
        self.cache(folder)
        self.machine(HERE)
        self.new_process()

    def compared(self, cases: Iterable[KernelCase], device: object) -> list[ParityRow]:
        self.made += 1
        time.sleep(self.takes)
        rows = [row(case, self.errors if number == 1 else FINE) for number, case in enumerate(cases)]
        if self.raised:
            rows[1] = ParityRow.of_error(rows[1].case, rows[1].dtype, self.raised, rows[1].limit)
        return rows

    def cache(self, folder: Path) -> None:
        self._monkeypatch.setenv("SINKSCOPE_CACHE", str(folder))

    def machine(self, machine: Machine) -> None:
        self._monkeypatch.setattr(confirmation, "machine", lambda _: machine)

    def new_process(self) -> None:
        self._monkeypatch.setattr(confirmation, "_met", {})
        self._monkeypatch.setattr(confirmation, "_warning", threading.Lock())

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "kernels").glob("*.json"))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    return Lab(monkeypatch, tmp_path / "cache")


def test_agreement_is_found_out_once_and_known_to_later_processes(lab: Lab) -> None:
    assert known(SIGMOID, CPU) is None
    outcome = confirm(SIGMOID, CPU)
    assert (outcome.problem, outcome.limit) == (None, 1e-5)
    assert outcome.largest == pytest.approx(3e-7)
    assert confirm(SIGMOID, CPU) == known(SIGMOID, CPU) == outcome
    lab.new_process()
    assert known(SIGMOID, CPU) == confirm(SIGMOID, CPU) == outcome
    assert lab.made == 1
    confirm(ELU, CPU)
    assert lab.made == 2, "other code is compared by itself"


@pytest.mark.parametrize("field", ["gpu", "capability", "torch", "triton", "kernels"])
def test_another_machine_or_another_source_is_compared_anew(lab: Lab, field: str) -> None:
    confirm(SIGMOID, CPU)
    lab.machine(replace(HERE, **{field: "another"}))
    assert known(SIGMOID, CPU) is None
    confirm(SIGMOID, CPU)
    lab.machine(HERE)
    confirm(SIGMOID, CPU)
    assert lab.made == len(lab.files) == 2


def test_the_machine_is_this_torch_this_triton_and_these_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    triton = pytest.importorskip("triton", reason="triton is not installed (it is for Linux only)")
    here = confirmation.machine(CPU)
    assert (here.torch, here.triton) == (torch.__version__, triton.__version__)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    asked = torch.device("cuda", 1)
    confirmation.machine.cache_clear()
    assert (confirmation.machine(asked).gpu, confirmation.machine(asked).capability) == ("GPU 1", "9.0")
    confirmation.machine.cache_clear()
    assert {path.name for path in confirmation.SOURCES} >= {"passes.py", "comparison.py", "comparing.py"}
    copies = [shutil.copy(path, tmp_path / f"{number}.py") for number, path in enumerate(confirmation.SOURCES)]
    monkeypatch.setattr(confirmation, "SOURCES", copies)
    found = {confirmation.fingerprint.__wrapped__()}
    assert found == {here.kernels}
    for path in copies:
        path.write_text(path.read_text() + "#")
        found.add(confirmation.fingerprint.__wrapped__())
    assert len(found) == 1 + len(copies)


def other(kept: bytes) -> bytes:
    return json.dumps(json.loads(kept) | {"specialization": "of another"}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: b"",
        lambda kept: kept[:-20],
        lambda kept: b"\xff" + kept,
        lambda kept: b"[]",
        lambda kept: b'{"problem": null}',
        lambda kept: kept.replace(b'"problem": null', b'"problem": 3'),
        lambda kept: kept.replace(b'"limit"', b'"limits"'),
        other,
    ],
)
def test_a_damaged_file_means_comparing_anew_and_is_replaced(lab: Lab, damage: Callable[[bytes], bytes]) -> None:
    outcome = confirm(SIGMOID, CPU)
    (path,) = lab.files
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    lab.new_process()
    assert known(SIGMOID, CPU) is None
    assert confirm(SIGMOID, CPU) == outcome
    assert lab.made == 2
    assert path.read_bytes() == whole


def test_without_a_cache_to_write_what_was_found_is_for_this_process(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lab.cache(tmp_path / "file" / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = confirm(SIGMOID, CPU)
        assert confirm(SIGMOID, CPU) == first
    assert lab.made == 1
    lab.new_process()
    confirm(SIGMOID, CPU)
    assert lab.made == 2


def test_a_cache_that_may_only_be_read_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    confirm(SIGMOID, CPU)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(lab.folder))

    monkeypatch.setattr(os, "open", refused)  # also where tests are run by root, who may write anywhere
    monkeypatch.setattr("tempfile.mkdtemp", refused)
    lab.new_process()
    confirm(SIGMOID, CPU)
    assert lab.made == 1
    confirm(ELU, CPU)
    confirm(ELU, CPU)
    assert lab.made == 2
    assert len(lab.files) == 1


def test_a_user_without_a_home_has_no_cache(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SINKSCOPE_CACHE")
    monkeypatch.setattr(Path, "home", homeless)
    assert confirm(SIGMOID, CPU) == confirm(SIGMOID, CPU)
    assert lab.made == 1


@pytest.mark.parametrize("name", FINE)
@pytest.mark.parametrize("amount", [2e-5, float("nan")])
def test_one_difference_refuses_and_is_kept(lab: Lab, name: str, amount: float) -> None:
    lab.errors = FINE | {name: amount}
    with pytest.warns(UserWarning, match="the fused kernels are refused on some GPU"):
        outcome = confirm(SIGMOID, CPU)
    words = f"{name} is off by {amount:.1e}, at most 1.0e-05 (sigmoid; causal; B=2 T=63/63"
    assert (outcome.problem or "").startswith(words)
    assert (outcome.largest is None) == (amount != amount)
    lab.new_process()
    assert known(SIGMOID, CPU) == outcome
    assert lab.made == 1


def test_a_process_warns_once_of_all_that_is_refused(lab: Lab) -> None:
    lab.errors = FINE | {"dkey": 1.0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for what in (SIGMOID, SIGMOID, ELU):
            confirm(what, CPU)
        assert len(caught) == 1
        assert "the slower exact path runs instead (`make kernels`" in str(caught[0].message)
        lab.new_process()
        confirm(SIGMOID, CPU)
        assert len(caught) == 2, "what an earlier process refused is said again"
    assert lab.made == 2


def test_what_was_raised_refuses_for_this_process_alone(lab: Lab) -> None:
    lab.raised = RuntimeError("no compiler")
    with pytest.warns(UserWarning, match="RuntimeError: no compiler"):
        assert (confirm(SIGMOID, CPU).problem or "").startswith("RuntimeError: no compiler (sigmoid;")
    assert confirm(SIGMOID, CPU).problem is not None
    assert (lab.made, lab.files) == (1, [])
    lab.new_process()
    lab.raised = None
    assert confirm(SIGMOID, CPU).problem is None
    assert lab.made == 2


def test_a_warning_that_is_an_error_leaves_the_outcome_known(lab: Lab) -> None:
    lab.errors = FINE | {"dkey": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="refused"):
            confirm(SIGMOID, CPU)
        assert confirm(SIGMOID, CPU).problem is not None
    assert lab.made == 1


@pytest.mark.parametrize("cache", ["cache", "file/cache"])  # where files cannot be locked, threads still wait
def test_threads_wait_for_the_one_that_compares(lab: Lab, tmp_path: Path, cache: str) -> None:
    (tmp_path / "file").write_text("")
    lab.cache(tmp_path / cache)
    lab.takes = 0.2
    found: list[Outcome] = []
    threads = [threading.Thread(target=lambda: found.append(confirm(SIGMOID, CPU))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lab.made == 1
    assert found == [found[0]] * 4


def test_a_process_waits_for_another_that_compares_and_takes_its_word(lab: Lab) -> None:
    confirm(SIGMOID, CPU)
    (path,) = lab.files
    whole = path.read_bytes()
    path.unlink()
    lab.new_process()
    waiting = threading.Thread(target=confirm, args=(SIGMOID, CPU))
    with FileLock(path.with_suffix(".lock")):
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
        path.write_bytes(whole)
    waiting.join()
    assert lab.made == 1


def test_a_process_that_never_finishes_is_waited_for_in_vain_only_so_long(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirm(SIGMOID, CPU)
    (path,) = lab.files
    path.unlink()
    lab.new_process()
    monkeypatch.setattr(confirmation, "PATIENCE", 0.1)
    with FileLock(path.with_suffix(".lock"), thread_local=False):
        confirm(SIGMOID, CPU)
    assert lab.made == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: the benchmark would run")
def test_without_cuda_the_benchmark_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    cuda_kernels.main()
    assert capsys.readouterr().out.splitlines() == ["no GPU here: nothing was measured"]
