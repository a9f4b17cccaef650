"""The test problems for attention functions: small, each with certain features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

FEATURES = {
    "sink": "a learned logit per head in the denominator",
    "window": "a query sees keys closer than the window",
    "softcap": "scores are c · tanh(s / c)",
    "grouped": "fewer key-value heads than query heads",
    "bidirectional": "queries see what comes after them",
    "cached": "fewer queries than keys: the queries are the last",
    "empty": "queries that see no key: their output is zero, and so are their gradients",
    "packed": "several texts one after another in a row, which do not see each other",
    "values": "values of another width than keys",
    "gradients": "a backward pass",
    "lse": "a log-sum-exp beside the output",
    "lse_gradient": "a backward pass through the log-sum-exp",
}
Level = Literal["beside", "closed", "far"]


@dataclass(frozen=True)
class Case:
    """A problem. `sink`: "beside", logits near the log-sum-exp of the tokens, so that the sink takes a fifth to four
    fifths of the mass; "closed", far below it; "far", near it with all logits too large for exp in fp32. `sink_dtype`:
    None for that of the queries. `texts`: lengths of packed texts, () for one.
    """

    name: str
    queries: int = 37
    keys: int = 37
    heads: int = 4
    kv_heads: int = 4
    width: int = 32
    value_width: int = 32
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    sink: Level | None = None
    sink_dtype: Literal["bfloat16"] | None = None
    offset: float = 0.0
    scaling: float | None = None
    texts: tuple[int, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names in `FEATURES` of what it needs."""
        needed = {
            "sink": self.sink is not None,
            "window": self.window is not None,
            "softcap": self.softcap is not None,
            "grouped": self.kv_heads != self.heads,
            "bidirectional": not self.causal,
            "cached": self.queries != self.keys,
            "empty": self.causal and self.queries > self.keys,
            "packed": bool(self.texts),
            "values": self.value_width != self.width,
        }
        return tuple(name for name, is_needed in needed.items() if is_needed)


@dataclass(frozen=True, eq=False)
class Problem:
    """The tensors of a case, as the function receives them. `offset` is part of every token's score."""

    case: Case
    query: Float[Tensor, "batch heads query width"]
    key: Float[Tensor, "batch kv_heads key width"]
    value: Float[Tensor, "batch kv_heads key value_width"]
    sink: Float[Tensor, "heads"] | None
    scaling: float

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Everything that has a gradient, by name."""
        named = {"query": self.query, "key": self.key, "value": self.value, "sink": self.sink}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def on(self, inputs: dict[str, Tensor]) -> Problem:
        """The same problem on other tensors."""
        tensors: dict[str, Any] = dict(inputs)
        return replace(self, **tensors)

    @property
    def ends(self) -> Int[Tensor, "texts_and_one"]:
        """Where packed texts begin and the last one ends, as kernels of variable length take it (`cu_seqlens`)."""
        ends = torch.tensor([0, *accumulate(self.case.texts)], dtype=torch.int32)
        return ends.to(self.query.device)

    def allowed(
        self, *, wider: int = 0, top_left: bool = False, sees_all: bool = False, one_text: bool = False
    ) -> Tensor:
        """Which keys a query sees, (query, key); the options introduce deliberate mistakes."""
        case = self.case
        shift = 0 if top_left else case.keys - case.queries
        distance = torch.arange(case.queries)[:, None] + shift - torch.arange(case.keys)
        seen = torch.ones_like(distance, dtype=torch.bool)
        if case.causal and not sees_all:
            seen &= distance >= 0
        if case.window is not None:
            seen &= distance.abs() < case.window + wider
        if case.texts and not one_text:
            text = torch.repeat_interleave(torch.arange(len(case.texts)), torch.tensor(case.texts))
            seen &= text[:, None] == text
        return seen.to(self.query.device)


CASES = (
    Case("plain"),
    Case("odd length", queries=65, keys=65),
    Case("one token", queries=1, keys=1),
    Case("own scaling", scaling=0.31),
    Case("grouped heads", kv_heads=2),
    Case("one key-value head", kv_heads=1),
    Case("bidirectional", causal=False),
    Case("decoding", queries=1),
    Case("chunk of a prefill", queries=11),
    Case("more queries than keys", queries=11, keys=5),
    Case("packed texts", texts=(5, 19, 1, 12)),
    Case("wide values", value_width=64),
    Case("keys of 192, values of 128", queries=11, keys=11, width=192, value_width=128),
    Case("window", window=8),
    Case("window of one", window=1),
    Case("window, decoding", window=8, queries=1),
    Case("window, bidirectional", window=8, causal=False),
    Case("softcap", softcap=1.5),
    Case("large logits", offset=200.0),
    Case("sink", sink="beside"),
    Case("sink, closed", sink="closed"),
    Case("sink in bfloat16", sink="beside", sink_dtype="bfloat16"),
    Case("sink, large logits", sink="far", offset=200.0),
    Case("sink, grouped heads", sink="beside", kv_heads=2),
    Case("sink, decoding", sink="beside", queries=1),
    Case("sink, more queries than keys", sink="beside", queries=11, keys=5),
    Case("sink, packed texts", sink="beside", kv_heads=2, texts=(5, 19, 1, 12)),
    Case("sink, bidirectional", sink="beside", causal=False),
    Case("sink, window", sink="beside", window=8),
    Case("sink, window, bidirectional", sink="beside", window=8, causal=False),
    Case("sink, softcap", sink="beside", softcap=1.5),
    Case("sink, window, softcap, grouped, prefill", sink="beside", window=8, softcap=1.5, kv_heads=2, queries=11),
)
