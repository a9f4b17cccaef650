"""Fused kernels are taken where they may be, and nowhere else. What they compute: tests/attention/kernels."""

from __future__ import annotations

import threading

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention import CATALOG, AttentionSpec, Causal, Visibility, VisiblePrefix
from sinkscope.attention.kernels import Machine, Outcome, Specialization, confirmation
from sinkscope.attention.normalizers import Sigmoid
from sinkscope.attention.paths import fused
from sinkscope.errors import InputError


def draw() -> list[torch.Tensor]:
    return [torch.randn(1, 2, 9, 8) for _ in range(3)]


def test_asking_for_them_where_they_do_not_run_is_an_error():
    with pytest.raises(InputError, match="no fused path: fused kernels run on CUDA, not on cpu"):
        zoo.attend(*draw(), "sigmoid", path="fused")
    with pytest.raises(InputError, match="no fused kernel for 'softmax' weights"):
        zoo.attend(*draw(), "softmax", path="fused")


@pytest.mark.parametrize(("path", "taken"), [("auto", 1), ("fast", 1), ("fused", 1), ("reference", 0), ("streamed", 0)])
def test_they_are_taken_where_nothing_stands_against_it(monkeypatch, path, taken):
    seen = []

    def computed(query, key, value, normalizer, visibility, scaling):
        seen.append((normalizer, visibility.mask, scaling))
        return torch.zeros_like(query)

    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    monkeypatch.setattr(fused, "obstacle", lambda *_, **__: None)
    monkeypatch.setattr(fused, "attention", computed)
    output = zoo.attend(*draw(), "sigmoid_bias", path=path, scaling=0.5).output
    assert seen == [(zoo.Sigmoid(minus_log_n=True), zoo.Causal(), 0.5)] * taken
    assert bool((output == 0).all()) == bool(taken)


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
    return fused.obstacle(**usual | changes)


def test_the_obstacle_names_what_is_in_the_way() -> None:
    padded = Visibility.of(Causal(), 5, 5, attention_mask=torch.tensor([[0, 1, 1, 1, 1]]))
    assert "not on cpu" in (calls() or "")
    assert "'softmax'" in (calls(spec=CATALOG["softmax"]) or "")
    assert "this mask" in (calls(visibility=Visibility.of(Causal() | VisiblePrefix(2), 5, 5)) or "")
    assert "this mask" in (calls(spec=CATALOG["kernel_identity"]) or "")
    assert "neither slots" in (calls(biased=True) or "")
    with_slot = AttentionSpec(normalizer=Sigmoid(normalized=True), slots=CATALOG["kv_bias"].slots)
    assert "neither slots" in (calls(spec=with_slot) or "")
    assert "without padding" in (calls(visibility=padded) or "")


def test_a_spec_with_outputs_may_take_the_kernels() -> None:
    gated = AttentionSpec(normalizer=Sigmoid(), output=CATALOG["gated_head"].output)
    assert "not on cpu" in (calls(spec=gated) or "")


class OnGpu(torch.Tensor):
    is_cuda = True


HERE = Machine("some GPU", "9.0", "2.13.0", "3.7.1", "abc")
EXACT = Outcome(HERE, "sigmoid", None, 2e-7, 1e-5)
OFF = Outcome(HERE, "sigmoid", "output is off by 3.0e-01, at most 1.0e-05 (a case)", 0.3, 1e-5)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome | None]:
    """What is `known`, and what a comparison would `find`, on something that passes for a GPU."""
    stands: dict[str, Outcome | None] = {"known": None, "find": EXACT}
    monkeypatch.setattr(fused, "unavailable", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(fused, "known", lambda *_: stands["known"])
    monkeypatch.setattr("sinkscope.attention.functional.known", lambda *_: stands["known"])
    monkeypatch.setattr(fused, "confirm", lambda *_: stands["known"] or stands["find"])
    return stands


def on_gpu() -> str | None:
    q = torch.zeros(1, 2, 5, 4).as_subclass(OnGpu)
    return calls(query=q, key=q, value=q)


def test_on_a_gpu_what_the_comparison_finds_decides(found) -> None:
    assert on_gpu() is None
    found["find"] = OFF
    assert on_gpu() == "fused kernels: refused on some GPU: output is off by 3.0e-01, at most 1.0e-05 (a case)"


def test_what_an_earlier_process_refused_is_refused_with_a_warning(monkeypatch) -> None:
    monkeypatch.setattr(fused, "unavailable", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(confirmation, "machine", lambda _: HERE)
    monkeypatch.setattr(confirmation, "_warning", threading.Lock())
    what = Specialization(Sigmoid(), False, torch.float32, 4, 4)
    monkeypatch.setattr(confirmation, "_met", {(HERE, what): OFF})
    with pytest.warns(UserWarning, match="the fused kernels are refused on some GPU: output is off") as told:
        reasons = [on_gpu(), on_gpu()]
    assert all("refused on some GPU" in (reason or "") for reason in reasons)
    assert len(told) == 1


def test_nothing_is_compared_while_a_graph_is_captured_or_traced(found, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert "while a CUDA graph is captured" in (on_gpu() or "")
    found["known"] = EXACT
    assert on_gpu() is None, "captured once it is known to be exact"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert "not traced by torch.compile" in (on_gpu() or "")


def test_explain_says_what_is_known_of_the_kernels(found) -> None:
    def told() -> zoo.Explanation:
        return zoo.explain("sigmoid", torch.zeros(1, 2, 5, 4).as_subclass(OnGpu))

    assert told().kernel == "streamed"
    assert "not yet compared with the reference on this GPU" in str(told())
    found["known"] = OFF
    assert told().kernel == "streamed"
    assert str(told()).endswith(
        "the fused kernel is refused on some GPU: output is off by 3.0e-01, at most 1.0e-05 (a case)"
    )
    found["known"] = EXACT
    assert (told().path, told().kernel) == ("fast", "fused")
    assert "compared with the reference on some GPU: off by 2e-07, at most 1e-05" in str(told())
    assert zoo.explain("sigmoid", torch.zeros(1, 2, 5, 4).as_subclass(OnGpu), keys=9).kernel == "streamed"
    assert "kernel" not in str(zoo.explain("softmax", torch.zeros(1, 2, 5, 4).as_subclass(OnGpu)))


def test_different_code_is_compared_by_itself() -> None:
    def kernel(mask=None, spec="sigmoid", dim=4, dtype=torch.float32):
        q = torch.zeros(1, 2, 5, dim, dtype=dtype)
        return fused.specialization(CATALOG[spec], Visibility.of(mask or Causal(), 5, 5), q, q)

    usual = kernel()
    assert kernel(mask=Causal() & zoo.Window(3)) == usual
    others = [kernel(mask=zoo.Full()), kernel(spec="sigmoid_bias"), kernel(dim=8), kernel(dtype=torch.bfloat16)]
    assert len({usual, *others}) == 5
    assert len({str(each) for each in (usual, *others)}) == 5
