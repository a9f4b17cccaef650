"""The Bigram-Backcopy task in a model of four kinds of numbers, small enough to see what feeds what.

Source: Guo et al. 2024a.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.data import seeded
from sinkscope_replication.tasks.backcopy_law import BOS, BigramTask, Law, Sequences
from sinkscope_replication.tasks.backcopy_reading import TITLES
from sinkscope_replication.tasks.short import Fit, ShortTask

TASK = "bigram_backcopy_minimal"
VALIDATION = 256  # sequences
FLOOR = 1e-6  # probabilities below it are taken for it in logarithms


class Minimal(BigramTask, ShortTask):
    """`MinimalModel` trained on sequences of a law (`law_of`), none of which is met twice.

    AdamW with a constant rate `lr`, decay 1e-4 and betas (0.9, 0.99). `frozen`: what stays as it started, the logits
    toward the BOS (`bos_logits`, 0) or its value (`bos_value`, standard normal numbers times `value_start`). Wrong
    values raise `InputError`.
    """

    kind: ClassVar[str] = TASK
    titles: ClassVar[Mapping[str, str]] = TITLES
    layout: ClassVar[int] = 1
    # The rate, 512 sequences of 257 tokens, and 5,000 steps are those of the source's script.
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "nano": {},
        "mini": {"context": 128, "batch_size": 256, "steps": 2000},
        "paper": {"context": 257, "batch_size": 512, "steps": 5000},
    }

    task: Literal["bigram_backcopy_minimal"] = "bigram_backcopy_minimal"
    frozen: Literal["nothing", "bos_logits", "bos_value"] = "nothing"
    value_start: float = Field(default=1.0, ge=0)
    context: int = Field(default=32, ge=4)
    steps: PositiveInt = 600
    batch_size: PositiveInt = 64
    lr: float = Field(default=0.03, gt=0)
    eval_every: PositiveInt = 25

    @property
    def hash(self) -> str:
        return self._hash(self.fingerprint())

    def fingerprint(self) -> dict[str, Any]:
        """What of the law decides a run's numbers."""
        return {"task": TASK, "law_sha256": self.law.sha256()}

    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        """The name of the run's folder: task, what is frozen, hash."""
        return f"backcopy-minimal-{self.frozen}-{self._hash(fingerprint)}"

    def fit(self) -> Fit:
        law = self.law
        start = torch.randn(law.tokens, generator=seeded(TASK, self.seed))
        model = MinimalModel(law, self.value_start * start)
        if self.frozen != "nothing":
            model.get_parameter(self.frozen).requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        reading = Reading(law, Sequences(law, VALIDATION, self.context, "validation", 0).batch(range(VALIDATION)))
        drawn = Sequences(law, self.steps * self.batch_size, self.context, "training", self.seed)

        def loss(step: int) -> Tensor:
            ids = drawn.batch(range(step * self.batch_size, (step + 1) * self.batch_size))
            return F.cross_entropy(model(ids)[0].transpose(1, 2), ids[:, 2:])

        optimizer = torch.optim.AdamW(trained, lr=self.lr, weight_decay=1e-4, betas=(0.9, 0.99))
        return Fit(optimizer, loss, lambda: reading.read(model))

    def _hash(self, fingerprint: Mapping[str, Any]) -> str:
        decisive = {"job": self.model_dump(mode="json", exclude={"eval_every"}), "data": dict(fingerprint)}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


class MinimalModel(nn.Module):
    """One layer with one head, of which only what the task needs is left. A query on token v at position t ≥ 1 scores

        the BOS: α_v;   the token before, where v is a trigger: λ;   all others, itself too: 0

    and predicts, with A the softmax of these scores and e_x the unit vector of token x,

        logits = f_v + A_t0 β + ξ Σ_{0<j≤t} A_tj e_{x_j},   f_v = log P(· | v), and 0 where v is a trigger.

    Trained are `bos_logits` α (tokens,), `bos_value` β (tokens,), `previous_logit` λ and `value` ξ (numbers); α and λ
    start at 0, ξ at 1. Without the head the prediction is perfect off triggers: whatever it writes there does harm.

    After the minimal model of Guo et al. 2024a (2410.13835), whose code trains logits toward the BOS by token, one
    toward the token before, and a value of the BOS, with the bigrams given; rebuilt from that description, so that the
    details (one ξ for all tokens, starts, the BOS's own prediction left out) are ours.
    """

    markov: Tensor
    is_trigger: Tensor

    def __init__(self, law: Law, bos_value: Float[Tensor, " tokens"]) -> None:
        super().__init__()
        markov = torch.from_numpy(law.transition).clamp(min=FLOOR).log().float()
        ids = torch.arange(law.tokens)
        markov[law.is_trigger(ids)] = 0
        self.register_buffer("markov", markov)
        self.register_buffer("is_trigger", law.is_trigger(ids))
        self.bos_logits = nn.Parameter(torch.zeros(law.tokens))
        self.bos_value = nn.Parameter(bos_value.clone())
        self.previous_logit = nn.Parameter(torch.zeros(()))
        self.value = nn.Parameter(torch.ones(()))

    def attention(self, ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch query key"]:
        """Weights of all queries; that of the BOS looks at itself."""
        length = ids.shape[1]
        scores = torch.zeros(*ids.shape, length)
        before = torch.diag_embed(torch.ones(length - 1), offset=-1)
        scores = scores + self.previous_logit * self.is_trigger[ids][..., None] * before
        scores = scores + self.bos_logits[ids][..., None] * F.one_hot(torch.tensor(0), length)
        return scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf")).softmax(-1)

    def forward(
        self, ids: Int[Tensor, "batch position"]
    ) -> tuple[Float[Tensor, "batch next tokens"], Float[Tensor, "batch query key"]]:
        """Logits of the tokens from position 2 on, each from the one before it, and the weights of all queries."""
        weights = self.attention(ids)
        vectors = self.value * F.one_hot(ids, len(self.markov)).float()
        vectors = torch.cat([self.bos_value.expand(len(ids), 1, -1), vectors[:, 1:]], 1)
        return (self.markov[ids] + weights @ vectors)[:, 1:-1], weights

    @property
    @torch.no_grad()
    def value_ratio(self) -> float:
        """‖β‖ over ‖ξ e_x‖, both without their mean over tokens, to which a prediction is blind."""
        unit = F.one_hot(torch.tensor(1), len(self.markov)).float()
        lengths = [(vector - vector.mean()).norm() for vector in (self.bos_value, self.value * unit)]
        return float(lengths[0] / lengths[1])


class Reading:
    """Fixed sequences (sample, position) of a law, on which the model is read; queries from position 1 on count."""

    def __init__(self, law: Law, ids: Int[Tensor, "sample position"]) -> None:
        self.law, self.ids = law, ids

    @cached_property
    def at_triggers(self) -> Bool[Tensor, "sample query"]:
        return self.law.is_trigger(self.ids)[:, 1:]

    @torch.no_grad()
    def read(self, model: MinimalModel) -> dict[str, float]:
        """`loss`: cross-entropy in nats; `excess_triggers`, `excess_others`: above the law's own, at triggers and off.

        `bos_attention`, `bos_attention/triggers`: mean weight on the BOS off triggers and at them; `copy_attention`: on
        the token before, at triggers; `logit_gap`: mean α off triggers (the others' logits are 0); `value_ratio`.
        """
        logits, weights = model(self.ids)
        found = F.cross_entropy(logits.transpose(1, 2), self.ids[:, 2:], reduction="none")
        excess, triggers = found - self.law.surprise(self.ids)[:, 1:], self.at_triggers
        chosen = triggers[:, :-1]
        bos, before = weights[:, 1:, BOS], weights.diagonal(-1, -2, -1)
        means = {
            "loss": found.mean(),
            "excess_triggers": excess[chosen].mean(),
            "excess_others": excess[~chosen].mean(),
            "bos_attention": bos[~triggers].mean(),
            "bos_attention/triggers": bos[triggers].mean(),
            "copy_attention": before[triggers].mean(),
            "logit_gap": model.bos_logits[self.ids[:, 1:]][~triggers].mean(),
        }
        return {name: float(value) for name, value in means.items()} | {"value_ratio": model.value_ratio}
