"""Comparisons under Triton's interpreter, as a process of its own: which it is, is settled when triton is imported.

Run: TRITON_INTERPRET=1 python -m tests.attention.kernels.worker GROUP, prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.shapes import install

install("sinkscope")

import sinkscope.attention as zoo  # noqa: E402
from sinkscope.attention.kernels import comparison, confirmation, fused, launch  # noqa: E402
from sinkscope.attention.kernels.comparison import (  # noqa: E402
    CAUSAL,
    FAMILY,
    KernelCase,
    Specialization,
    compare,
    compared,
)
from sinkscope.attention.kernels.plan import KernelPlan, plan_of  # noqa: E402
from sinkscope.attention.masks import Full, Window  # noqa: E402
from sinkscope.attention.normalizers import Elu, Normalizer, Relu, Sigmoid, Softpick  # noqa: E402
from sinkscope.attention.oracle.comparing import relative_error  # noqa: E402
from sinkscope.attention.paths import fused as fused_path  # noqa: E402
from sinkscope.errors import InputError  # noqa: E402

assert launch.INTERPRETED, "set TRITON_INTERPRET=1"

Found = dict[str, object]
UNLIKE = (Sigmoid(), Elu(normalized=True), Relu(), Softpick())


def small(normalizer: Normalizer, **changes: object) -> KernelCase:
    """Two query heads on one key head: the interpreter takes a millisecond and more for each tile."""
    return replace(KernelCase(normalizer=normalizer, heads=2, kv_heads=1), **changes)


def judged(cases: Iterator[KernelCase]) -> list[Found]:
    rows = [compare(case, "cpu") for case in cases]
    return [{"case": row.case, "agrees": row.outcome == "agrees", "errors": row.errors} for row in rows]


def lengths() -> list[Found]:
    every = [small(normalizer, queries=tokens) for normalizer in FAMILY for tokens in (1, 2, 7)]
    return judged(iter([*every, *(small(normalizer, queries=33) for normalizer in (Elu(normalized=True), Softpick()))]))


def masks() -> list[Found]:
    """Each mask with weights of one kind, log n and 1 / n depending on it; and several groups in several rows."""
    window = Window(20) & CAUSAL
    cases = [
        small(Softpick(), mask=window),
        small(Sigmoid(minus_log_n=True), queries=40, mask=window),
        small(Relu(normalized=True), queries=40, mask=Full()),
        small(Elu(), queries=7, keys=40, mask=CAUSAL & Window(9)),
        small(Relu(), queries=40, keys=7, mask=Full()),
        KernelCase(normalizer=Softpick(), queries=7, batch=2, heads=4, kv_heads=2),
    ]
    return judged(iter(cases))


def dtypes() -> list[Found]:
    cases = [small(normalizer, queries=17, dtype=torch.bfloat16) for normalizer in UNLIKE]
    return judged(iter([*cases, small(Softpick(), queries=17, dtype=torch.float16)]))


def thorough() -> list[Found]:
    every = [
        small(normalizer, mask=mask, queries=queries, keys=63, batch=2)
        for normalizer in FAMILY
        for mask, queries in ((CAUSAL, 17), (CAUSAL & Window(40), 63), (Full(), 33))
    ]
    every += [small(normalizer, queries=130, mask=CAUSAL & Window(70)) for normalizer in UNLIKE]
    every += [KernelCase(normalizer=normalizer, queries=19, batch=2, heads=6, kv_heads=3) for normalizer in FAMILY]
    every += [small(normalizer, dim=128, value_dim=64, sharpness=3.0) for normalizer in UNLIKE]
    return judged(iter(every))


def planted() -> list[Found]:
    """Plans that are a little off; none may pass for the real one."""
    case = small(Sigmoid(normalized=True), queries=17, mask=CAUSAL & Window(12))
    real = plan_of(case.normalizer, case.mask)
    assert real is not None
    wrong = (
        replace(real, window=11),
        replace(real, window=None),
        replace(real, normalized=False),
        replace(real, activation="elu"),
        replace(real, activation="sigmoid_minus_log_n"),
        replace(real, mask="full", window=None),
    )
    return [{"plan": str(plan), "agrees": _instead(case, plan)} for plan in wrong]


def _instead(case: KernelCase, plan: KernelPlan) -> bool:
    with patch.object(comparison, "plan_of", lambda *_: plan):
        return compare(case, "cpu").outcome == "agrees"


def golden() -> list[Found]:
    """Weights themselves: one channel of queries and keys, values the unit vectors."""
    rows = {"picked": [2.0, 1.0, -1.0], "negative": [-1.0, -2.0, -3.0], "far below": [-1e4, -2e4, -3e4]}
    return [{"row": name, "weights": _weights(scores, "softpick")} for name, scores in rows.items()]


def extreme() -> list[Found]:
    """Scores of ±1e4, in values and gradients."""
    found: list[Found] = []
    for activation in ("sigmoid", "sigmoid_minus_log_n", "elu", "relu", "relu_over_n", "softpick"):
        for normalized in (False, True) if activation != "softpick" else (False,):
            query = torch.tensor([1e4, -1e4, 1.0]).view(1, 1, 3, 1).requires_grad_()
            key = torch.tensor([1.0, -1.0, 1e4]).view(1, 1, 3, 1).requires_grad_()
            output = fused(query, key, torch.ones(1, 1, 3, 2), activation, normalized, scaling=1.0)
            slopes = torch.autograd.grad(output.sum(), (query, key))
            finite = all(bool(tensor.isfinite().all()) for tensor in (output, *slopes))
            found.append({"activation": activation, "normalized": normalized, "finite": finite})
    return found


def refused() -> list[Found]:
    """Messages for what the kernels cannot do."""
    one, wide, three = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 129), torch.ones(1, 3, 3, 4)
    attempts: list[Callable[[], object]] = [
        lambda: fused(one, one, one, "sigmiod"),
        lambda: fused(one, one, one, "softpick", normalized=True),
        lambda: fused(one, one, one, "relu", mask="causl"),
        lambda: fused(one, one, one, "relu", window=0),
        lambda: fused(one, one, one, "relu", mask="full", window=2),
        lambda: fused(one, one, one, "relu", scaling=-1.0),
        lambda: fused(one.double(), one.double(), one.double(), "relu"),
        lambda: fused(wide, wide, wide, "relu"),
        lambda: fused(three, one, one, "relu"),
        lambda: fused(one, one[:, :, :2], one[:, :, :2], "relu"),
    ]
    return [{"message": _message(attempt)} for attempt in attempts]


class OnGpu(torch.Tensor):
    """What passes for a tensor on a GPU, so that a path is chosen as there; the interpreter takes it from anywhere."""

    is_cuda = True


def scaled(place: int, factor: float) -> Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]:
    """One of several tensors, changed."""

    def change(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(factor * tensor if index == place else tensor for index, tensor in enumerate(tensors))

    return change


def one_nan(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    tensors[0][0, 0, 3, 1] = torch.nan
    return tensors


def unwritten(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tensors[0], tensors[1], torch.empty_like(tensors[2])


def broken(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    raise RuntimeError("an illegal\ninstruction")


FAULTS: dict[str, tuple[str, Callable]] = {
    "none": ("forward", tuple),
    "values": ("forward", scaled(0, 1.001)),
    "denominator": (
        "forward",
        scaled(1, 1.001),
    ),  # what the backward pass reads: the sums that a log-sum-exp is elsewhere
    "dq": ("backward", scaled(0, 1.001)),
    "dk": ("backward", scaled(1, 1.001)),
    "dv": ("backward", scaled(2, 0.999)),
    "nan": ("backward", one_nan),
    "unwritten": ("backward", unwritten),
    "raises": ("forward", broken),
}


@contextmanager
def faulty(name: str) -> Iterator[None]:
    """The kernels with a fault, in a process that has met none."""
    which, change = FAULTS[name]
    real = getattr(launch, which)
    with ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory())
        held.enter_context(patch.dict(os.environ, SINKSCOPE_CACHE=folder))
        held.enter_context(patch.object(launch, which, lambda *given: change(real(*given))))
        held.enter_context(patch.object(torch.cuda, "is_current_stream_capturing", lambda: False))
        held.enter_context(patch.object(fused_path, "DEVICES", ("cuda", "cpu")))
        held.enter_context(patch.object(confirmation, "_met", {}))
        held.enter_context(patch.object(confirmation, "_warning", threading.Lock()))
        held.enter_context(patch.object(Specialization, "cases", lambda self: iter([few(self)])))
        yield


def few(what: Specialization) -> KernelCase:
    """One case, small enough for the interpreter."""
    return small(what.normalizer, queries=17, dim=what.dim, value_dim=what.value_dim)


def faults() -> list[Found]:
    """What `attend` and `explain` do with kernels that have each fault, from the first call on."""
    query, key, value = (torch.randn(1, heads, 9, 8) for heads in (2, 1, 1))
    on_gpu, spec = query.as_subclass(OnGpu), zoo.CATALOG["sigmoid_normalized"]
    exact = zoo.attend(query, key, value, spec, path="reference").output
    found: list[Found] = []
    for name in FAULTS:
        with faulty(name), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before = str(zoo.explain(spec, on_gpu))
            with patch.object(fused_path, "attention", wraps=fused_path.attention) as taken:
                outputs = [zoo.attend(on_gpu, key, value, spec).output for _ in range(2)]
            off = max((output - exact).abs().max().item() for output in outputs)
            told = [str(warning.message) for warning in caught]
            after, times = str(zoo.explain(spec, on_gpu)), taken.call_count
            found.append({"fault": name, "before": before, "after": after, "taken": times, "off": off, "told": told})
    return found


class Seen(TorchDispatchMode):
    """Counts what is computed in its thread."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def modes() -> list[Found]:
    """A comparison inside each of a caller's modes, which must not matter to it, nor it to them."""
    seen, case = Seen(), small(Softpick(), queries=9)
    wanted = compare(case, "cpu").errors
    entered: dict[str, Callable] = {
        "inference": torch.inference_mode,
        "no_grad": torch.no_grad,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "dispatch": lambda: seen,
        "device": lambda: torch.device("meta"),
    }
    found: list[Found] = []
    torch.use_deterministic_algorithms(True)
    for name, mode in entered.items():
        state, grads = torch.get_rng_state(), torch.is_grad_enabled()
        with mode():
            (row,) = compared([case], "cpu")
        kept = bool((torch.get_rng_state() == state).all()) and torch.is_grad_enabled() == grads
        kept = kept and torch.are_deterministic_algorithms_enabled() and seen.count == 0
        found.append({"mode": name, "same": row.errors == wanted, "kept": kept, "outcome": row.outcome})
    return found


def wired() -> list[Found]:
    """Gradients through autograd, and a second derivative."""
    return [_through_autograd(small(normalizer, queries=17)) for normalizer in UNLIKE]


def _through_autograd(case: KernelCase) -> Found:
    *inputs, upstream = comparison._problem(case, "cpu")
    wanted = comparison._exact(case, *inputs, upstream)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    plan = plan_of(case.normalizer, case.mask)
    assert plan is not None
    output = fused(*leaves, plan.activation, plan.normalized)
    slopes = torch.autograd.grad(output, leaves, upstream, retain_graph=True)
    worst = max(relative_error(*pair, least=1.0) for pair in zip((output.detach(), *slopes), wanted, strict=True))
    twice = _message(lambda: torch.autograd.grad(output, leaves, upstream, create_graph=True))
    return {"case": str(case), "agrees": worst <= 1e-5, "twice": twice}


def _message(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except InputError as error:
        return str(error)
    return "accepted"


def _weights(scores: list[float], activation: str) -> list[float]:
    query, key = torch.ones(1, 1, 1, 1), torch.tensor(scores).view(1, 1, -1, 1)
    value = torch.eye(len(scores))[None, None]
    return fused(query, key, value, activation, mask="full", scaling=1.0).flatten().tolist()


GROUPS = {
    one.__name__: one
    for one in (lengths, masks, dtypes, thorough, planted, golden, extreme, refused, faults, modes, wired)
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: GROUPS[name]() for name in sys.argv[1:]}))
