"""The trigger-conditional task: the mean of the earlier tokens at a trigger, else nothing.

Where the rows of attention sum to one, a query that shall give nothing must look somewhere that holds nothing: at a
sink. Attention without normalization may look nowhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, PositiveInt
from torch import Tensor, nn

from sinkscope.attention import AttentionSpec, Causal, Strict, named, resolve
from sinkscope.data import seeded
from sinkscope_replication.tasks.short import Fit, ShortTask

TASK = "trigger_conditional"
FIRST, OTHER, TRIGGER = range(3)  # kinds of tokens
VALIDATION = 1024  # sequences
SMALLEST = 1e-6  # a row of less weight looks nowhere


class TriggerConditional(ShortTask):
    """One attention layer with one head, trained by AdamW on sequences none of which is met twice.

    `attention` is any operation; its mask is k < q, so that a query sees the tokens before it alone. `content`: width c
    of a token's vector; `head_dim`: of queries, keys and values; `tokens`: length of a sequence; `trigger_rate`: share
    of triggers among the tokens. Without `empty_first` the first token has a vector like all others, so that there is
    none that holds nothing. The rate `lr` falls linearly to 0. Wrong values raise `InputError`.
    """

    kind: ClassVar[str] = TASK
    titles: ClassVar[Mapping[str, str]] = {
        "loss": "error (giving nothing: 1)",
        "validation_loss": "error (giving nothing: 1)",
        "unexplained": "error at triggers (giving nothing: 1)",
        "output": "output elsewhere (targets at triggers: 1)",
        "first": "mean weight on the first token, elsewhere",
        "first_share": "first token's share of all weight (0 to 1), elsewhere",
        "slot": "mean weight on slots, elsewhere",
        "total": "mean weight on all tokens, elsewhere",
        "total/triggers": "mean weight on all tokens, at triggers",
    }
    layout: ClassVar[int] = 2
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nano": {}}
    model_config = ConfigDict(arbitrary_types_allowed=True)

    task: Literal["trigger_conditional"] = "trigger_conditional"
    attention: Annotated[AttentionSpec, BeforeValidator(resolve), PlainSerializer(AttentionSpec.to_dict)] = (
        AttentionSpec()
    )
    content: PositiveInt = 8
    head_dim: PositiveInt = 16
    tokens: int = Field(default=16, ge=4)
    trigger_rate: float = Field(default=0.25, gt=0, lt=1)
    empty_first: bool = True
    steps: PositiveInt = 400
    batch_size: PositiveInt = 128
    lr: float = Field(default=1e-2, gt=0)
    eval_every: PositiveInt = 100

    @property
    def hash(self) -> str:
        text = json.dumps(self.model_dump(mode="json", exclude={"eval_every"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def fingerprint(self) -> dict[str, Any]:
        """Nothing but the configuration is read."""
        return {"task": TASK}

    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        """The name of the run's folder: task, operation, hash."""
        name = (named(self.attention) or {"name": "custom"})["name"]
        return f"conditional-{name}-{self.hash}"

    def fit(self) -> Fit:
        torch.manual_seed(self.seed)
        model = OneLayer(self)
        validation = Examples(self, VALIDATION, "validation")

        def loss(step: int) -> Tensor:
            examples = Examples(self, self.batch_size, "training", self.seed, step)
            return torch.stack(examples.errors(model(examples.inputs)[0])).sum()

        return Fit(
            torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=0.0),
            loss,
            lambda: model_metrics(model, validation),
            lambda step: 1 - step / self.steps,
        )


class Examples:
    """Sequences of the task: `inputs` (batch, position, c + 3), `targets` (batch, position, c).

    A token is c standard normal numbers x_t and a mark of its kind; an empty first one has x_0 = 0. The target at a
    trigger t is (1/t) Σ_{i<t} x_i, elsewhere 0. Queries count from position 2 on, which are `triggers` or `others`
    (batch, position): the second token sees only the first.
    """

    def __init__(self, job: TriggerConditional, count: int, *drawn_by: object) -> None:
        generator = seeded(TASK, *drawn_by)
        content = torch.randn(count, job.tokens, job.content, generator=generator)
        if job.empty_first:
            content[:, 0] = 0
        kind = torch.where(torch.rand(count, job.tokens, generator=generator) < job.trigger_rate, TRIGGER, OTHER)
        kind[:, 0], kind[:, 1] = FIRST, OTHER
        self.inputs = torch.cat([content, nn.functional.one_hot(kind, 3)], -1)
        means = (content.cumsum(1) - content) / torch.arange(job.tokens).clamp(min=1)[:, None]
        self.triggers, self.others = kind == TRIGGER, kind == OTHER
        self.others[:, 1] = False
        self.targets = means * self.triggers[..., None]
        self.power = self.targets[self.triggers].square().mean()

    def errors(self, outputs: Float[Tensor, "batch position content"]) -> tuple[Tensor, Tensor]:
        """Mean squared errors at triggers and elsewhere, over the mean square of the targets at triggers.

        To give nothing at all costs (1, 0).
        """
        error = (outputs - self.targets).square().mean(-1) / self.power
        return error[self.triggers].mean(), error[self.others].mean()


class OneLayer(nn.Module):
    """y_t = W_O Σ_{k<t} A_tk W_V x_k with one head; no norm, residual stream or feed-forward."""

    def __init__(self, job: TriggerConditional) -> None:
        super().__init__()
        width, dim = job.content + 3, job.head_dim
        self.query, self.key, self.value = (nn.Linear(width, dim, bias=False) for _ in range(3))
        self.read_out = nn.Linear(dim, job.content, bias=False)
        spec = replace(job.attention, mask=Causal() & Strict())
        self.operation = spec.build(heads=1, kv_heads=1, head_dim=dim, hidden_size=width)

    def forward(
        self, inputs: Float[Tensor, "batch position width"], path: str = "auto"
    ) -> tuple[Float[Tensor, "batch position content"], Tensor | None, Tensor | None]:
        """Outputs; on the path `reference` the weights on tokens and on slots as well."""
        query, key, value = (each(inputs)[:, None] for each in (self.query, self.key, self.value))
        query, key = self.operation.before_rotation(query, key)
        value, carried = self.operation.before_cache(value, inputs)
        attended = self.operation(query, key, value, hidden=inputs, path=path, carried=carried)
        return self.read_out(attended.output[:, 0]), attended.weights, attended.slot_weights


def model_metrics(model: OneLayer, examples: Examples) -> dict[str, float]:
    """`loss`: what is trained on, `unexplained` + `output`²; `unexplained`: mean squared error at triggers over the
    targets' mean square; `output`: root mean square of what is given elsewhere, over that of the targets.

    Of queries elsewhere: `first`: mean weight on the first token, as it is; `first_share`: its share of all weight, 0
    in a row that has none; `slot`: weight on slots; `total`: on all tokens, and `total/triggers` that of triggers.
    """
    with torch.no_grad():
        outputs, weights, slots = model(examples.inputs, path="reference")
    assert weights is not None
    assert slots is not None
    at_triggers, elsewhere = examples.errors(outputs)
    tokens, slot, others = weights[:, 0], slots[:, 0].sum(-1), examples.others
    total = tokens.sum(-1)
    everything = total + slot
    share = torch.where(everything > SMALLEST, tokens[..., 0] / everything.clamp(min=SMALLEST), 0.0)
    values = {
        "loss": at_triggers + elsewhere,
        "unexplained": at_triggers,
        "output": elsewhere.sqrt(),
        "first": tokens[..., 0][others].mean(),
        "first_share": share[others].mean(),
        "slot": slot[others].mean(),
        "total": total[others].mean(),
        "total/triggers": total[examples.triggers].mean(),
    }
    return {name: float(value) for name, value in values.items()}
