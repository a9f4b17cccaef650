"""Attention in plain float64 arithmetic, which shares no code with the operations; and ways to get it wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.oracle.cases import Problem

DEFECTS: dict[str, tuple[str, ...]] = {
    "drops the sink": ("sink",),
    "adds the sink to the first key's score": ("sink",),
    "scales the sink as if it were a product": ("sink",),
    "gives the sink a zero logit": ("sink",),
    "ignores the window": ("window",),
    "has a window one wider": ("window",),
    "has a window one narrower": ("window",),
    "ignores the softcap": ("softcap",),
    "caps after the mask, so that hidden keys are seen": ("softcap",),
    "gives query heads the key heads in turn (h mod n) instead of in groups": ("grouped",),
    "aligns the triangle at the top left": ("cached",),
    "sees other packed texts": ("packed",),
    "sees later tokens": (),
    "hides later tokens": ("bidirectional",),
    "scales by width^-1/2 whatever it is told": (),
}
"""What is computed wrongly, and the features of the cases in which that shows."""


@dataclass(frozen=True, eq=False)
class Exact:
    """Outputs, and log-sum-exps over tokens alone and over tokens and sink, nats; all float64."""

    output: Float[Tensor, "batch heads query value_width"]
    tokens: Float[Tensor, "batch heads query"]
    total: Float[Tensor, "batch heads query"]


def exact(problem: Problem, defect: str | None = None) -> Exact:
    """softmax([mask(c · tanh(scaling · q·k / c)); b]) [V; 0], the sink b neither scaled, capped nor masked.

    A query that sees no key has output 0, and log-sum-exps −∞ over tokens and b over all.

    `defect`: one of `DEFECTS`, to compute that instead.
    """
    query, key, value = (tensor.double() for tensor in (problem.query, problem.key, problem.value))
    case, heads, kv_heads = problem.case, query.shape[1], key.shape[1]
    kv_head = torch.arange(heads, device=query.device)
    kv_head = kv_head % kv_heads if defect is not None and "in turn" in defect else kv_head // (heads // kv_heads)
    key, value = key[:, kv_head], value[:, kv_head]
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if defect and "whatever" in defect else problem.scaling)
    seen = _seen(problem, defect)
    empty = ~seen.any(-1, keepdim=True)
    late = defect is not None and defect.startswith("caps after")
    if case.softcap is not None and defect != "ignores the softcap":
        scores = case.softcap * torch.tanh(scores / case.softcap)
    scores = scores.masked_fill(~seen, -case.softcap if late and case.softcap is not None else -torch.inf)
    scores = scores.masked_fill(empty, 0.0)  # any finite number: what comes of it is left out below
    sink = None if problem.sink is None or defect == "drops the sink" else problem.sink.double()[:, None, None]
    if sink is not None and defect == "adds the sink to the first key's score":
        first = torch.zeros_like(scores[..., :1, :])
        first[..., 0] = 1
        scores, sink = scores + sink * first, None
    if sink is not None and defect == "scales the sink as if it were a product":
        sink = sink * problem.scaling
    if sink is not None and defect == "gives the sink a zero logit":
        sink = torch.zeros_like(sink)
    tokens = torch.logsumexp(scores, -1)
    total = tokens if sink is None else torch.logaddexp(tokens, sink[..., 0].expand_as(tokens))
    output = ((scores - total[..., None]).exp() @ value).masked_fill(empty, 0.0)
    nothing = torch.full_like(tokens, -torch.inf) if sink is None else sink[..., 0].expand_as(tokens)
    return Exact(output, tokens.masked_fill(empty[..., 0], -torch.inf), total.where(~empty[..., 0], nothing))


def _seen(problem: Problem, defect: str | None) -> Tensor:
    if defect == "ignores the window":
        return problem.allowed(wider=problem.case.keys)
    if defect == "hides later tokens":
        return problem.allowed().tril(problem.case.keys - problem.case.queries)
    return problem.allowed(
        wider={"has a window one wider": 1, "has a window one narrower": -1}.get(defect or "", 0),
        top_left=defect == "aligns the triangle at the top left",
        sees_all=defect == "sees later tokens",
        one_text=defect == "sees other packed texts",
    )
