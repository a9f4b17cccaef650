"""Norms, and where in a block they stand (Gu et al. 2025, section 7; He et al. 2024; Guo et al. 2024a)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sinkscope.model.config import LabConfig

NORMS: dict[str, type[nn.RMSNorm] | type[nn.LayerNorm]] = {"rmsnorm": nn.RMSNorm, "layernorm": nn.LayerNorm}


@dataclass(frozen=True)
class Placement:
    """Which of the norms N of a residual branch f there are: x ← N_sum(x + β · N_out(f(N_in(x)))).

    `enters`: N_in; `leaves`: N_out; `sums`: N_sum; a norm that is not there is the identity. `first`: a norm of the
    embeddings, before the first block; `last`: one behind the last block, before the head.
    """

    enters: bool = False
    leaves: bool = False
    sums: bool = False
    first: bool = False
    last: bool = False

    def opens(self, layer: int) -> bool:
        """Whether a block starts with a norm of the stream.

        The N_sum behind a block's feed-forward stands at the start of the next block, and the last one where other
        models have their final norm. So what blocks pass on is always the stream before a norm, where massive
        activations are to be seen (Gu et al. 2025, section 7).
        """
        return self.first if layer == 0 else self.sums

    @property
    def closes(self) -> bool:
        """Whether a norm of the stream stands behind the last block."""
        return self.last or self.sums


PLACEMENTS = {
    # x + f(N(x)), as in Llama.
    "pre": Placement(enters=True, last=True),
    # N(x + f(x)) and no other (Gu et al. 2025, section 7; sail-sg/Attention-Sink, lit_gpt/model_postln.py).
    "post": Placement(sums=True),
    # x + N(f(N(x))): Ding et al. 2021 (CogView); Gemma Team 2024.
    "sandwich": Placement(enters=True, leaves=True, last=True),
    # x + β f(x) (He et al. 2024). Ours norms the embeddings, stream and all; the released code norms only what
    # enters the first attention and keeps GPT-2's last norm. The paper's block also has `attention="qk_norm"` and
    # `ffn="relu"`, which stay choices of their own here.
    "outlier_protected": Placement(first=True),
}


def norm(config: LabConfig, wanted: bool = True) -> nn.Module:
    """The model's kind of norm over the width (`config.norm`, eps `config.rms_norm_eps`); the identity for the kind
    `none` and if not `wanted`.

    RMSNorm: x / sqrt(mean(x²) + eps) · g. LayerNorm: (x − mean(x)) / sqrt(var(x) + eps) · g + b. g starts at 1, b at 0.
    """
    if not wanted or config.norm == "none":
        return nn.Identity()
    return NORMS[config.norm](config.hidden_size, eps=config.rms_norm_eps)
