"""What a training run takes: memory and arithmetic by formula, time from a step that is taken on this machine."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import astuple, dataclass

import torch
from torch import nn

from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training.machine import preserved_rng
from sinkscope.training.recipe import Recipe

FP32 = 4
TIMED_FLOP = 2 * 10**10  # of the step that is timed, about: at most a second
LARGE = 2**27  # bytes of weights; a larger model is timed with fewer layers and a smaller vocabulary
TIMED_LAYERS, TIMED_VOCABULARY = 2, 2048
TIMED_STEPS = 3  # the fastest two are the interval


@dataclass(frozen=True)
class Memory:
    """Bytes that training takes in one process. `casts`: the bf16 copies of matrices that autocast keeps."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    casts: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(astuple(self))


def memory(recipe: Recipe, model: LabForCausalLM) -> Memory:
    """Memory of a training run in one process, for P parameters in fp32 (also under "bf16", which is autocast).

        4 P weights + 4 P gradients + 4 S optimizer state (S: `OptimizerPart.numbers`; AdamW 2 P) + activations
        + 2 bytes for each number in a matrix that is multiplied with, under "bf16"

    All but the activations are exact counts.
    """
    weights = FP32 * sum(parameter.numel() for parameter in model.parameters())
    sequences = min(recipe.micro_batch or recipe.batch_size, recipe.batch_size)
    multiplied = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return Memory(
        weights=weights,
        gradients=weights,
        optimizer=FP32 * recipe.optimizer.numbers(model),
        activations=activation_bytes(model.config, sequences * recipe.context, recipe.precision),
        casts=2 * multiplied if recipe.precision == "bf16" else 0,
    )


def activation_bytes(config: LabConfig, tokens: int, precision: str) -> int:
    """The most that a step holds besides weights, gradients and optimizer state.

    This is what the forward pass saves plus the gradient of the fp32 logits and one copy of it, 8 · vocabulary per
    token.
    """
    return saved_bytes(config, tokens, precision) + 8 * config.vocab_size * tokens


def saved_bytes(config: LabConfig, tokens: int, precision: str) -> int:
    """What the forward pass saves for the backward pass, with L blocks of width d and feed-forward width f.

        tokens · (L · (a d + 4 w f) + 12 d + 4 V),   a, w = 44, 4 bytes in fp32; 37, 2 in bf16 under autocast

    Per block: the residual stream and both norms in fp32; q, k, v, the attention's output and log-sum-exp; four vectors
    of the feed-forward; then the final norm and the fp32 logits. The factors were fitted to what softmax and
    off-by-one models saved on a CPU (within 5 %); operations with gates or feature maps save up to a third more. No
    operation saves a query × key matrix.
    """
    stream, width = (37, 2) if precision == "bf16" else (44, 4)
    block = stream * config.hidden_size + 4 * width * config.intermediate_size
    return tokens * (config.num_hidden_layers * block + 12 * config.hidden_size + FP32 * config.vocab_size)


def flops_per_token(model: nn.Module, config: LabConfig, context: int) -> int:
    """6 N + 12 L · d · T: forward and backward, with N the parameters without the input embedding, a lookup.

    Source: Kaplan et al. 2020 (2001.08361), section 2.1; the attention term as in Chowdhery et al. 2022 (2204.02311),
    appendix B: all T keys count, although a causal query sees half of them. A tied output layer counts.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    width = config.num_attention_heads * config.head_dim
    return 6 * (parameters - looked_up) + 12 * config.num_hidden_layers * width * context


@dataclass(frozen=True)
class MeasuredStep:
    """A timed forward and backward pass, and what it says about a whole training run.

    The pass of `tokens` tokens through `layers` layers, fewer than a large model has, took `seconds` on `threads`
    processor threads; so training takes `total` seconds. Both are (shortest, longest). Validation and saving are left
    out.
    """

    tokens: int
    layers: int
    threads: int
    seconds: tuple[float, float]
    total: tuple[float, float]


def measured_step(config: LabConfig, context: int, tokens: int) -> MeasuredStep:
    """Time a step in fp32 on the CPU and scale it to a run over `tokens` tokens by the arithmetic of both.

    Small steps use a machine worse than large ones, so this overestimates.
    """
    with torch.device("meta"):
        whole = LabForCausalLM(config)
    wanted = tokens * flops_per_token(whole, config, context)
    large = FP32 * sum(parameter.numel() for parameter in whole.parameters()) > LARGE
    timed = _shrunk(config) if large else config
    with preserved_rng(), torch.random.fork_rng():
        model = LabForCausalLM(timed).train()
        length = min(context, 128)
        flops = flops_per_token(model, timed, length)
        rows = max(1, min(8, int(TIMED_FLOP // (flops * length))))
        ids = torch.randint(0, timed.vocab_size, (rows, length))
        fastest, second, *_ = sorted(_step_seconds(model, ids) for _ in range(TIMED_STEPS))
    factor = wanted / (rows * length * flops)
    return MeasuredStep(
        tokens=rows * length,
        layers=timed.num_hidden_layers,
        threads=torch.get_num_threads(),
        seconds=(fastest, second),
        total=(factor * fastest, factor * second),
    )


def _shrunk(config: LabConfig) -> LabConfig:
    """The configuration with the first layers alone and a small vocabulary."""
    small = deepcopy(config)
    small.num_hidden_layers = min(config.num_hidden_layers, TIMED_LAYERS)
    small.vocab_size = min(config.vocab_size, TIMED_VOCABULARY)
    if isinstance(small.attention, list):
        small.attention = small.attention[: small.num_hidden_layers]
    return small


def _step_seconds(model: LabForCausalLM, ids: torch.Tensor) -> float:
    model.zero_grad()
    start = time.perf_counter()
    logits = model(ids).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    return time.perf_counter() - start
