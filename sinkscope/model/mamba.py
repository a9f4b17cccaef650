"""A Mamba layer in place of attention, for hybrids (Lieber et al. 2024)."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Cache, JambaConfig
from transformers import initialization as init
from transformers.models.jamba.modeling_jamba import JambaMambaMixer, JambaRMSNorm

from sinkscope.attention import Visibility
from sinkscope.errors import InputError
from sinkscope.model.config import LabConfig

SLOWEST, FASTEST = 1e-3, 1e-1  # the step Δ of a channel starts log-uniformly between them (Gu & Dao 2023, §3.6)


class LabMamba(nn.Module):
    """transformers' Mamba layer as Jamba has it, with norms on Δ, B and C (Lieber et al. 2024).

    Padding does not change the state: it enters as zeros, moved in front of a row. Without GPU kernels the scan
    is a loop over tokens. transformers' layer would begin a scan over several tokens from an empty state even where a
    cache holds one; such tokens go one by one here, so that chunked prefill equals the full pass.
    """

    def __init__(self, config: LabConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.mixer = JambaMambaMixer(_as_jamba(config), layer_idx)

    def forward(
        self,
        hidden_states: Float[Tensor, "batch position width"],
        visibility: Visibility,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Float[Tensor, "batch position width"]:
        """Raises `InputError` for a cache that cannot hold this layer's state, and for padding after a state."""
        if past_key_values is not None and not _has_place(past_key_values, self.layer_idx):
            raise InputError(
                f"the cache has no state for layer {self.layer_idx}, a Mamba layer: pass "
                "DynamicCache(config=model.config)"
            )
        real = visibility.query.valid
        if past_key_values is None or not past_key_values.has_previous_state(self.layer_idx):
            return self._begun(hidden_states, real, past_key_values)
        _check_no_padding(visibility)
        outputs = [
            self.mixer(token, past_key_values, None if real is None else real[:, [index]])
            for index, token in enumerate(hidden_states.split(1, 1))
        ]
        return torch.cat(outputs, 1)

    def _begun(self, hidden_states: Tensor, real: Tensor | None, cache: Cache | None) -> Tensor:
        """From an empty state, with padding in front wherever it stood."""
        if real is None:
            return self.mixer(hidden_states, cache)
        # Stable, padding first: zeros leave an empty state empty, while padding between tokens would let it decay.
        order = real.long().argsort(dim=-1, stable=True).expand(len(hidden_states), -1)
        real = real.expand_as(order).gather(1, order)
        moved = hidden_states.gather(1, order[..., None].expand_as(hidden_states))
        outputs = self.mixer(moved, cache, real)
        # argsort of a permutation is its inverse.
        return outputs.gather(1, order.argsort(-1)[..., None].expand_as(outputs))


@torch.no_grad()
def start(mixer: JambaMambaMixer) -> None:
    """A = −(1 … d_state) in every channel, D = 1, and Δ's bias such that softplus(bias) is log-uniform (Gu & Dao 2023).

    transformers starts Jamba's Δ bias at zero, where a state forgets within a few tokens.
    """
    rows = torch.arange(1, mixer.ssm_state_size + 1, dtype=torch.float32, device=mixer.A_log.device)
    init.copy_(mixer.A_log, rows.log().expand_as(mixer.A_log))
    init.ones_(mixer.D)
    steps = torch.empty_like(mixer.dt_proj.bias, dtype=torch.float32)
    steps = steps.uniform_(math.log(SLOWEST), math.log(FASTEST)).exp()
    # The inverse of softplus, log(e^x − 1), written so that small steps keep their digits.
    init.copy_(mixer.dt_proj.bias, steps + torch.log(-torch.expm1(-steps)))


def _check_no_padding(visibility: Visibility) -> None:
    """A state does not skip padding; where there is none yet it is zero and stays so."""
    real, new = visibility.key.valid, visibility.query.count
    if real is not None and bool((real[:, :-new].any(-1) & ~real[:, -new:].all(-1)).any()):
        raise InputError(
            "attention_mask: padding follows tokens whose state is in the cache, and a Mamba layer cannot skip it: pad "
            "on the left, or in the first pass"
        )


def _has_place(cache: Cache, layer: int) -> bool:
    return layer < len(cache.layers) and cache.is_linear[layer]


def _as_jamba(config: LabConfig) -> JambaConfig:
    """What the layer reads of a Jamba's configuration; its rank of Δ is width / 16, rounded up."""
    return JambaConfig(
        hidden_size=config.hidden_size,
        mamba_d_state=config.mamba_d_state,
        mamba_d_conv=config.mamba_d_conv,
        mamba_expand=config.mamba_expand,
        mamba_dt_rank=math.ceil(config.hidden_size / 16),
        rms_norm_eps=config.rms_norm_eps,
    )


__all__ = ["JambaMambaMixer", "JambaRMSNorm", "LabMamba", "start"]
