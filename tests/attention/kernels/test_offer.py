"""Who may take the fused kernels: the record of confirmed devices, and what the kernels can compute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sinkscope.attention import CATALOG, AttentionSpec, Causal, Document, Full, Prefix, Visibility, Window
from sinkscope.attention.kernels import Confirmation, Plan, confirmed, fused, obstacle, offer, plan_of, record
from sinkscope.attention.kernels.comparison import FAMILY, every_case
from sinkscope.attention.normalizers import Sigmoid, Softmax, Softpick
from sinkscope.errors import InputError

ROOT = Path(__file__).parents[3]


def entry(**changes: object) -> Confirmation:
    known: dict = {
        "capability": (9, 0),
        "device": "some device",
        "date": "2026-01-01T00:00:00+00:00",
        "kernels": record.fingerprint(),
        "versions": {"torch": "2.13.0", "triton": "3.7.1"},
        "cases": 3,
        "residuals": {"float32": 1e-6},
    }
    return Confirmation(**known | changes)


def test_the_shipped_record_is_readable_and_only_names_these_kernels_devices() -> None:
    for known in record.confirmations():
        assert confirmed(known.capability) == (known.kernels == record.fingerprint())
    assert not confirmed((0, 0))


def test_a_confirmation_counts_for_its_capability_and_its_kernels_alone(tmp_path: Path) -> None:
    path = tmp_path / "confirmed.json"
    path.write_text("[]\n")
    record.write((9, 0), entry(), path)
    record.write((8, 0), entry(capability=(8, 0), kernels="older"), path)
    assert confirmed((9, 0), path)
    assert not confirmed((8, 0), path), "the kernels changed since"
    assert not confirmed((8, 9), path)
    assert [known.capability for known in record.confirmations(path)] == [(8, 0), (9, 0)]
    record.write((9, 0), None, path)
    assert not confirmed((9, 0), path)
    assert [known.capability for known in record.confirmations(path)] == [(8, 0)]


def test_the_fingerprint_covers_every_file_that_holds_a_kernel() -> None:
    folder = record.FOLDER
    with_kernels = {path.name for path in folder.glob("*.py") if "import triton" in path.read_text()}
    assert with_kernels == set(record.SOURCES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: the comparison would run")
@pytest.mark.parametrize(
    ("module", "code", "words"),
    [("sinkscope.attention.kernels.confirm", 2, "no CUDA device"), ("benchmarks.cuda_kernels", 0, "no GPU here")],
)
def test_without_cuda_one_line(module: str, code: int, words: str) -> None:
    run = subprocess.run([sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == code
    (line,) = (run.stdout + run.stderr).splitlines()
    assert words in line


def test_the_family_and_nothing_else_has_a_plan() -> None:
    family = {"sigmoid", "sigmoid_normalized", "sigmoid_bias", "elu", "elu_normalized", "relu", "softpick"}
    planned = {name for name, spec in CATALOG.items() if plan_of(spec.normalizer, spec.mask)}
    assert planned == family
    assert len({plan_of(normalizer, Causal()) for normalizer in FAMILY}) == len(FAMILY) == 11
    assert plan_of(Sigmoid(bias=1.0), Causal()) is None
    assert plan_of(Softpick(epsilon=1e-6), Causal()) is None
    assert plan_of(Softmax(), Causal()) is None


def test_masks_have_a_plan_where_they_are_causal_windowed_or_full() -> None:
    assert plan_of(Sigmoid(), Window(7) & Causal()) == plan_of(Sigmoid(), Causal() & Window(7))
    assert plan_of(Sigmoid(), Causal() & Window(7)) == Plan("sigmoid", window=7)
    assert plan_of(Sigmoid(normalized=True), Full()) == Plan("sigmoid", True, "full")
    for mask in (Window(7), Causal() | Prefix(3), Causal() & Document(), Causal() & Window(7) & Window(3)):
        assert plan_of(Sigmoid(), mask) is None


def test_every_case_of_the_comparison_has_a_plan() -> None:
    cases = list(every_case())
    assert all(plan_of(case.normalizer, case.mask) for case in cases)
    assert len({str(case) for case in cases}) == len(cases)
    assert {case.normalizer for case in cases} == set(FAMILY)


def calls(**changes: object) -> str | None:
    """The obstacle for an ordinary call, changed."""
    q = torch.zeros(1, 2, 5, 4)
    usual: dict = {
        "spec": CATALOG["sigmoid"],
        "visibility": Visibility.of(Causal(), 5, 5),
        "query": q,
        "key": q,
        "value": q,
    }
    return obstacle(**usual | changes)


def test_the_obstacle_names_what_is_in_the_way() -> None:
    padded = Visibility.of(Causal(), 5, 5, attention_mask=torch.tensor([[0, 1, 1, 1, 1]]))
    assert "not on cpu" in (calls() or "")
    assert "'softmax'" in (calls(spec=CATALOG["softmax"]) or "")
    assert "this mask" in (calls(visibility=Visibility.of(Causal() | Prefix(2), 5, 5)) or "")
    assert "this mask" in (calls(spec=CATALOG["kernel_identity"]) or "")
    assert "neither slots" in (calls(biased=True) or "")
    with_slot = AttentionSpec(normalizer=Sigmoid(normalized=True), slots=CATALOG["kv_bias"].slots)
    assert "neither slots" in (calls(spec=with_slot) or "")
    assert "without padding" in (calls(visibility=padded) or "")


def test_a_gpu_without_confirmation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(torch.Tensor):
        is_cuda = True

    q = torch.zeros(1, 2, 5, 4).as_subclass(OnGpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(offer, "unavailable", lambda: None)
    monkeypatch.setattr(offer, "confirmed", lambda _: False)
    assert "not confirmed on compute capability 9.0" in (calls(query=q, key=q, value=q) or "")
    monkeypatch.setattr(offer, "confirmed", lambda _: True)
    assert calls(query=q, key=q, value=q) is None


def test_on_a_cpu_without_interpreter_fused_refuses() -> None:
    q = torch.zeros(1, 2, 5, 4)
    with pytest.raises(InputError, match=r"triton is not installed|TRITON_INTERPRET"):
        fused(q, q, q, "sigmoid")


def test_a_spec_with_outputs_may_take_the_kernels() -> None:
    gated = AttentionSpec(normalizer=Sigmoid(), output=CATALOG["gated_head"].output)
    assert "not on cpu" in (calls(spec=gated) or "")
