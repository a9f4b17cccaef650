"""What a Bigram-Backcopy model does: losses against the law, and where its heads look (Guo et al. 2024a)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from sinkscope.hooks import device_of, evaluating
from sinkscope.measurement import HeadOutputs, HiddenNorms, QueryKeyValueNorms, observe
from sinkscope_replication.tasks.backcopy_law import Law

SMALLEST = 1e-30  # weights below it are taken for it where a logarithm is asked for

TITLES = {
    "excess_triggers": "loss above the least, at triggers (nats)",
    "excess_others": "loss above the least, elsewhere (nats)",
    "bos_attention": "attention on the BOS, elsewhere (0 to 1)",
    "bos_attention/triggers": "attention on the BOS, at triggers (0 to 1)",
    "value_ratio": "value-norm ratio of the BOS",
    "copy_attention": "attention on the token before, at triggers (0 to 1)",
    "logit_gap": "logit of the BOS above the others' mean, elsewhere",
}


@dataclass(frozen=True, eq=False)
class Reading:
    """Fixed sequences (sample, position) of a law, on which models are read.

    Queries are of two kinds: `at_triggers`, and `elsewhere`: on tokens that are neither a trigger nor the BOS.
    """

    law: Law
    ids: Int[Tensor, "sample position"]

    @cached_property
    def at_triggers(self) -> Bool[Tensor, "sample position"]:
        return self.law.is_trigger(self.ids)

    @cached_property
    def elsewhere(self) -> Bool[Tensor, "sample position"]:
        others = ~self.at_triggers
        others[:, 0] = False
        return others

    @torch.no_grad()
    def losses(self, model: PreTrainedModel) -> dict[str, float]:
        """`excess_triggers`, `excess_others`: cross-entropy in nats above the law's own, on the same tokens.

        On average 0 is the least; by chance, on so many tokens, it may be a little lower.
        """
        ids = self.ids.to(device_of(model))
        with evaluating(model):
            logits = model(ids, use_cache=False).logits[:, :-1].float()
        nats = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        excess = (nats - self.law.surprise(ids)).cpu()
        kinds = {"triggers": self.at_triggers, "others": self.elsewhere}
        return {f"excess_{name}": float(excess[chosen[:, :-1]].mean()) for name, chosen in kinds.items()}

    @torch.no_grad()
    def heads(self, model: PreTrainedModel) -> dict[str, float]:
        """What heads attend to and what they write. For the head that gives the BOS the most attention elsewhere:

        `bos_attention`, `bos_attention/triggers`: mean share of the BOS in the attention of queries elsewhere, at
        triggers (a row without any weight gives it none); `copy_attention`: of the token before, at triggers;
        `output_ratio`: mean ‖Σ_j A_tj v_j‖ elsewhere over that at triggers; `logit_gap` (softmax alone): mean over
        queries elsewhere of log A_t0 − mean_{0<j≤t} log A_tj. For all layers: `bos_attention/layer=0` …; `value_ratio`,
        ‖v_BOS‖ over the other tokens', smallest over heads; `norm_ratio`, ‖h_BOS‖ over the others', largest over
        depth, and `norm_ratio/depth=0` …
        """
        ids = self.ids.to(device_of(model))
        with evaluating(model), observe(model, HiddenNorms(), QueryKeyValueNorms(), HeadOutputs()) as observed:
            maps = torch.stack(model(ids, output_attentions=True, use_cache=False).attentions).float().cpu()
        measured = observed.measurement()
        share = maps / maps.sum(-1, keepdim=True).clamp(min=SMALLEST)  # (layer, sample, head, query, key)
        bos = self._mean(share[..., 0], self.elsewhere)
        layer, head = divmod(int(bos.argmax()), bos.shape[1])
        shares, weights = share[layer, :, head], maps[layer, :, head]
        before = F.pad(shares.diagonal(-1, -2, -1), (1, 0))
        output = torch.from_numpy(measured.data["output_norm"].values[:, layer, head])
        values = {
            "bos_attention": float(bos.max()),
            "bos_attention/triggers": float(shares[..., 0][self.at_triggers].mean()),
            "copy_attention": float(before[self.at_triggers].mean()),
            "output_ratio": float(output[self.elsewhere].mean() / output[self.at_triggers].mean()),
            "value_ratio": float(measured.value_norm_ratio().min()),
            "norm_ratio": float(measured.hidden_norm_ratio().max()),
        }
        if model.config.spec.is_plain_softmax:
            values["logit_gap"] = float(self._logit_gap(weights))
        values |= {f"bos_attention/layer={index}": float(heads.max()) for index, heads in enumerate(bos)}
        depths = measured.hidden_norm_ratio().values
        return values | {f"norm_ratio/depth={depth}": float(ratio) for depth, ratio in enumerate(depths)}

    def all(self, model: PreTrainedModel) -> dict[str, float]:
        """`losses` and `heads`."""
        return self.losses(model) | self.heads(model)

    def logged(self, model: PreTrainedModel) -> Mapping[str, float]:
        """The same as a training's log names them."""
        return {f"task/{name}": value for name, value in self.all(model).items()}

    def _mean(
        self, values: Float[Tensor, "layer sample head query"], chosen: Bool[Tensor, "sample query"]
    ) -> Float[Tensor, "layer head"]:
        """Mean over the chosen queries."""
        return (values * chosen[:, None]).sum((1, 3)) / chosen.sum()

    def _logit_gap(self, maps: Float[Tensor, "sample query key"]) -> Tensor:
        logs = maps.clamp(min=SMALLEST).log()
        visible = torch.ones_like(logs[0]).tril()
        visible[:, 0] = 0
        others = (logs * visible).sum(-1) / visible.sum(-1).clamp(min=1)
        return (logs[..., 0] - others)[self.elsewhere].mean()
