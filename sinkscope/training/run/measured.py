"""How fast this machine trains a model of a recipe, from a step that is taken."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass

import torch

from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training.budget import flops_per_token
from sinkscope.training.machine import preserved_rng

ENOUGH = 2 * 10**10  # FLOP of the step that is timed, about: a second at most
LARGE = 2**27  # bytes of weights, above which the step is one of a model with fewer layers and tokens
WORDS = 2048  # its vocabulary
STEPS = 3  # of which the fastest two say between what a step lies


@dataclass(frozen=True)
class MeasuredStep:
    """A forward and backward pass of `tokens` tokens through `layers` layers, fewer than a large model has, took this
    machine's processors `seconds`; so `total` is what the whole training takes, shortest and longest.

    Validation and saving are left out.
    """

    tokens: int
    layers: int
    threads: int
    seconds: tuple[float, float]
    total: tuple[float, float]


def measured_step(config: LabConfig, context: int, tokens: int) -> MeasuredStep:
    """Time a step in fp32 on the CPU and scale it to a training of `tokens` tokens by the arithmetic of both.

    Small steps use a machine worse than large ones, so this overestimates by some.
    """
    layers = config.num_hidden_layers
    with torch.device("meta"):
        whole = LabForCausalLM(config)
    wanted = flops_per_token(whole, config, context)
    if 4 * sum(parameter.numel() for parameter in whole.parameters()) > LARGE:
        layers = min(layers, 2)
    small = _with_layers(config, layers)
    words = small.vocab_size
    with preserved_rng(), torch.random.fork_rng():
        model = LabForCausalLM(small).train()
        length = min(context, 128)
        each = flops_per_token(model, small, length)
        rows = max(1, min(8, int(ENOUGH // (each * length))))
        ids = torch.randint(0, words, (rows, length))
        taken = sorted(_step(model, ids) for _ in range(STEPS))
    seconds = (taken[0], taken[1])
    done = rows * length
    factor = tokens * wanted / (done * each)
    return MeasuredStep(done, layers, torch.get_num_threads(), seconds, (factor * taken[0], factor * taken[1]))


def _with_layers(config: LabConfig, layers: int) -> LabConfig:
    if layers == config.num_hidden_layers:
        return config
    small = deepcopy(config)
    small.num_hidden_layers, small.vocab_size = layers, min(config.vocab_size, WORDS)
    if isinstance(small.attention, list):
        small.attention = small.attention[:layers]
    return small


def _step(model: LabForCausalLM, ids: torch.Tensor) -> float:
    model.zero_grad()
    start = time.perf_counter()
    logits = model(ids).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    return time.perf_counter() - start
