"""Small lab models under every position scheme, with attention far from uniform."""

from __future__ import annotations

from typing import Any

import torch

from sinkscope.model import LabConfig, LabForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,  # no power of two, for ALiBi
    "num_key_value_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
SCHEMES: dict[str, dict[str, Any]] = {
    "none": {"position": "none"},
    "learned": {"position": "learned"},
    "sinusoidal": {"position": "sinusoidal"},
    "relative_t5": {"position": "relative_t5"},
    "relative_paper": {"position": "relative_paper"},
    "rotary": {"position": "rotary"},
    "rotary, half": {"position": "rotary", "rope_fraction": 0.5},
    "rotary, yarn": {"position": "rotary", "rope_scale": YARN},
    "alibi": {"position": "alibi"},
}


def build(**options: Any) -> LabForCausalLM:
    """A model in eval mode; what its position scheme learns is as large as the rest."""
    torch.manual_seed(0)
    model = LabForCausalLM(LabConfig(**SIZES | options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter *= 3
            if "position" in name or "sink_tokens" in name or "operation" in name:
                parameter.normal_()
    return model


def in_chunks(model: LabForCausalLM, ids: torch.Tensor, cuts: list[int], **options: Any) -> torch.Tensor:
    """Logits of a prefill in pieces over one cache; `document_ids` in the options are cut to what has come so far."""
    cache, logits, start = None, [], 0
    documents = options.pop("document_ids", None)
    for size in cuts:
        stop = start + size
        given = options if documents is None else options | {"document_ids": documents[:, :stop]}
        step = model(ids[:, start:stop], past_key_values=cache, use_cache=True, **given)
        cache, start = step.past_key_values, stop
        logits.append(step.logits)
    return torch.cat(logits, 1)
