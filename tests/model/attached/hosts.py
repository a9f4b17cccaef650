"""Tiny random hosts with attention far from uniform, and inputs for them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.families.registry import FAMILIES

HOSTS = {
    **{name: name for name in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2")},
    **{name: name for name in ("mixtral", "qwen3_moe", "gpt_oss", "olmo2", "phi3", "stablelm")},
    **{name: name for name in ("gpt2", "gpt_neox", "opt", "bert", "vit")},
    "gemma3_text": "gemma3",
}
DECODERS = [name for name in HOSTS if name not in ("bert", "vit")]
TOLERANCE = 2e-6


def host(name: str, implementation: str | None = None) -> PreTrainedModel:
    """A tiny model of a family, by default with the first attention implementation that it has."""
    family = FAMILIES[HOSTS[name]]
    model = family.build(implementation or family.hosts[-1])
    if model.can_generate():
        model.generation_config.eos_token_id = None
    return model.eval()


def inputs(name: str) -> dict[str, Tensor]:
    """Two samples for a family."""
    return FAMILIES[HOSTS[name]].inputs()


def output(model: PreTrainedModel, given: Mapping[str, Tensor]) -> Tensor:
    """Logits, or the last hidden state where there are none."""
    with torch.no_grad():
        return model(**given)[0]


def stir(model: PreTrainedModel, seed: int = 1) -> None:
    """Take all that attached operations learn far from where it starts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".operation." in name:
                parameter.normal_(generator=generator)
