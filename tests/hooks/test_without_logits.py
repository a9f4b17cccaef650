"""What only reads inside a model asks for the last logits alone: the unembedding is a fifth of such a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from sinkscope.interventions import SetActivations, perturbation_spread
from sinkscope.interventions.finding import largest_activations
from sinkscope.interventions.folding import constants
from sinkscope.interventions.head_controls import head_norms
from sinkscope.quantization.kv.states import read_states
from sinkscope.quantization.linear.maps import HEAD, linear_maps
from sinkscope.quantization.linear.tokens import read_inputs

Reading = Callable[[Any, Tensor], Any]
IDS = torch.randint(31, (3, 7), generator=torch.Generator().manual_seed(1))
READINGS: dict[str, Reading] = {
    "attention received": lambda model, rows: ss.measure(model, rows),
    "outliers": lambda model, rows: ss.find_tokens(model, rows, ss.sinks.Outliers(ratio=1.01)),
    "spikes": lambda model, rows: ss.find_tokens(model, rows, "spikes:1,3"),
    "largest activations": largest_activations,
    "constants": lambda model, rows: constants(model, rows),
    "norms of heads": head_norms,
    "means": lambda model, rows: SetActivations.at_mean(model, rows, [(1, 0, 3)]),
    "spread": lambda model, rows: perturbation_spread(model, rows, 0),
    "states": lambda model, rows: read_states(model, rows, lambda *_: None),
    "inputs of maps": lambda model, rows: read_inputs(
        model, rows, linear_maps(model, (HEAD,)).values(), lambda *_: None
    ),
}


@pytest.fixture
def model() -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=31, **sizes)).eval()


def read_by_the_head(model: LlamaForCausalLM, reading: Reading) -> set[int]:
    """How many tokens of a row the unembedding was given."""
    seen: set[int] = set()
    handle = model.lm_head.register_forward_pre_hook(lambda module, args: seen.add(args[0].shape[1]))
    reading(model, IDS)
    handle.remove()
    return seen


@pytest.mark.parametrize("name", READINGS)
def test_one_token_is_enough(model: LlamaForCausalLM, name: str) -> None:
    assert read_by_the_head(model, READINGS[name]) == {1}


def test_a_head_that_is_read_itself_gets_every_token(model: LlamaForCausalLM) -> None:
    rows: list[int] = []
    maps = {path: one for path, one in linear_maps(model, ()).items() if path == HEAD}

    def reading(model: LlamaForCausalLM, texts: Tensor) -> None:
        read_inputs(model, texts, maps.values(), lambda path, x, _: rows.append(len(x)))

    assert read_by_the_head(model, reading) == {7}
    assert sum(rows) == 21


def test_a_loss_gets_every_token(model: LlamaForCausalLM) -> None:
    assert read_by_the_head(model, lambda model, rows: ss.measure(model, {"input_ids": rows, "labels": rows})) == {7}
