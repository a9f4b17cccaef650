"""The residual stream read the plainest way, row by row, and a model whose stream has something to find."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import nn
from transformers import PreTrainedModel

from sinkscope.measurement import Observer, measure, observe
from tests.measurement.conftest import build
from tests.measurement.test_batches import padded

LENGTHS = [24, 19, 13]


@dataclass(frozen=True)
class Taken:
    """Hooks that keep what they are shown of one row."""

    states: list[np.ndarray]

    def input(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.states.append((args[0] if args else kwargs["hidden_states"])[0].detach().double().numpy())

    def output(self, module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        self.states.append((output if torch.is_tensor(output) else output[0])[0].detach().double().numpy())


@dataclass(frozen=True)
class Rows:
    """`states[sample][depth]`: the real tokens' states (tokens, width) in float64; `entering[sample][layer]`: what the
    attention layers were given."""

    states: list[list[np.ndarray]]
    entering: list[list[np.ndarray]]

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(sample, depth) for sample, row in enumerate(self.states) for depth in range(len(row))]


def outlying(family: str = "llama") -> PreTrainedModel:
    """A model with states of size one, and a dimension, and some tokens, that stand out."""
    model = build(family)
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table *= 50
        table[:, 7] *= 12
        table[30:40] *= 20
    return model


def blocks(model: PreTrainedModel) -> list[nn.Module]:
    return list(model.transformer.h if model.config.model_type == "gpt2" else model.model.layers)


def read_rows(model: PreTrainedModel, ids: torch.Tensor, lengths: list[int]) -> Rows:
    """Each left-padded row alone, without its padding."""
    states, entering = [], []
    for row, length in zip(ids, lengths, strict=True):
        seen, given = Taken([]), Taken([])
        hooks = [blocks(model)[0].register_forward_pre_hook(seen.input, with_kwargs=True)]
        for block in blocks(model):
            attention = block.attn if model.config.model_type == "gpt2" else block.self_attn
            hooks.append(block.register_forward_hook(seen.output))
            hooks.append(attention.register_forward_pre_hook(given.input, with_kwargs=True))
        with torch.no_grad():
            model(row[None, -length:])
        for hook in hooks:
            hook.remove()
        states.append(seen.states)
        entering.append(given.states)
    return Rows(states, entering)


def measured(model: PreTrainedModel, ids: torch.Tensor, lengths: list[int], *observers: Observer) -> xr.Dataset:
    """The padded rows in two batches."""
    return measure(model, padded(ids, lengths, "left"), observers, batch_size=2).data


def close(found: xr.DataArray | np.ndarray, wanted: object, tolerance: float = 2e-4) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=tolerance, atol=tolerance)


def decoded(model: PreTrainedModel, ids: torch.Tensor, *observers: Observer) -> xr.Dataset:
    """Left-padded rows of 6 and 4 tokens, continued by single tokens over a cache."""
    with observe(model, *observers) as seen:
        model.generate(
            **padded(ids[:2, :6], [6, 4], "left"), max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0
        )
    return seen.measurement().data
