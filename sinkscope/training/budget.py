"""What a training would take: bytes and arithmetic, as formulas. Estimates all; nothing here is measured."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training.distributed.batches import split_batch
from sinkscope.training.recipe import Recipe

TERA = 10**12


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU by its data sheet: memory in bytes, dense peaks in FLOP/s (half the sparse ones), source.

    `tf32` is not what an fp32 recipe uses: sinkscope leaves TF32 off, so that fp32 means fp32 everywhere.
    """

    name: str
    memory: int
    bf16: float
    tf32: float
    fp32: float
    source: str

    def peak(self, recipe: Recipe) -> float:
        """FLOP/s of matrix products at the recipe's precision."""
        return self.bf16 if recipe.precision == "bf16" else self.fp32


def _gpu(name: str, gigabytes: int, bf16: float, tf32: float, fp32: float, source: str) -> Gpu:
    return Gpu(name, gigabytes * 10**9, bf16 * TERA, tf32 * TERA, fp32 * TERA, source)


GPUS = (
    _gpu("A100 40GB", 40, 312.0, 156.0, 19.5, "NVIDIA A100 Tensor Core GPU data sheet"),
    _gpu("A100 80GB", 80, 312.0, 156.0, 19.5, "NVIDIA A100 Tensor Core GPU data sheet"),
    _gpu("H100 80GB", 80, 989.5, 494.5, 67.0, "NVIDIA H100 Tensor Core GPU data sheet, SXM, dense"),
    _gpu("H200 141GB", 141, 989.5, 494.5, 67.0, "NVIDIA H200 Tensor Core GPU data sheet, SXM, dense"),
    _gpu("L4 24GB", 24, 121.0, 60.0, 30.3, "NVIDIA L4 Tensor Core GPU data sheet, dense"),
    _gpu("RTX 4090 24GB", 24, 165.2, 82.6, 82.6, "NVIDIA Ada GPU Architecture whitepaper, fp32 accumulation"),
)


UTILIZATION = (0.2, 0.45)
"""The share of the peak that is assumed to be reached: from a straightforward run of a model of this size to a tuned
one on fast interconnect (PaLM reports 46 %, Chowdhery et al. 2022, table 3). Models as narrow as `nano` stay far below.
"""
LAUNCHING = (0.01, 0.03)
"""Seconds, assumed, below which no forward and backward pass falls, however small: launching kernels takes as long."""
USABLE = 0.9  # of a GPU's memory: the rest goes to the CUDA context, workspaces and fragmentation
COUNTS = ((1, "ddp"), (8, "ddp"), (8, "fsdp"))
FP32 = 4


@dataclass(frozen=True)
class Memory:
    """Bytes in one process. `casts`: the bf16 copies of matrices that autocast keeps for the backward pass.

    `exchange`: DDP's gradient buckets, or the blocks that FSDP has gathered at once.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    casts: int
    exchange: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.casts + self.exchange


@dataclass(frozen=True)
class Estimate:
    """A training on `count` GPUs of one kind: bytes on each, whether they fit, seconds at the assumed utilizations.

    `micro_batch`: the most sequences at once that fit (which decides no number), where the recipe's own do not.
    """

    gpu: str
    count: int
    parallel: str
    memory_bytes: int
    fits: bool
    micro_batch: int | None
    seconds: tuple[float, float]


def memory(recipe: Recipe, model: LabForCausalLM, processes: int = 1, parallel: str = "ddp") -> Memory:
    """Memory of one of `processes`, with P parameters in fp32 (also under "bf16", which is autocast):

        4 P weights + 4 P gradients + 4 S optimizer state (S: `OptimizerPart.numbers`; AdamW 2 P) + activations
        + 2 bytes for each number in a matrix that is multiplied with, under "bf16"

    "ddp" adds 4 P of buckets on several processes; "fsdp" divides the first three by their number and adds two blocks
    and the output layer, gathered. Raises `InputError` where the batch does not divide.
    """
    weights = FP32 * sum(parameter.numel() for parameter in model.parameters())
    optimizer = FP32 * recipe.optimizer.numbers(model)
    sequences = split_batch(recipe, processes, recipe.validation_windows).train
    activations = activation_bytes(model.config, sequences * recipe.context, recipe.precision)
    multiplied = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    casts = 2 * multiplied if recipe.precision == "bf16" else 0
    if processes == 1:
        return Memory(weights, weights, optimizer, activations, casts, 0)
    if parallel == "ddp":
        return Memory(weights, weights, optimizer, activations, casts, weights)
    block = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    gathered = FP32 * (2 * block + model.get_output_embeddings().weight.numel())
    part = -(-weights // processes)
    return Memory(part, part, -(-optimizer // processes), activations, casts, gathered)


def activation_bytes(config: LabConfig, tokens: int, precision: str) -> int:
    """The most that a step holds beside weights, gradients and state: what is saved, and the loss's own backward.

    The latter is the gradient of the logits and one copy, in fp32: 8 · vocabulary a token.
    """
    return saved_bytes(config, tokens, precision) + 8 * config.vocab_size * tokens


def saved_bytes(config: LabConfig, tokens: int, precision: str) -> int:
    """What the forward saves for the backward pass, for L blocks of width d and feed-forward width f:

        tokens · (L · (a d + 4 w f) + 12 d + 4 V),   a, w = 44, 4 bytes in fp32; 37, 2 in bf16 under autocast

    Per block: the residual stream and both norms in fp32, q, k, v, the attention's output and log-sum-exp, four vectors
    of the feed-forward; then the final norm and the fp32 logits. The factors were fitted to what softmax and
    off-by-one models saved on a CPU (within 5 %); operations with gates or feature maps save up to a third more. No
    operation saves a query × key matrix.
    """
    stream, width = (37, 2) if precision == "bf16" else (44, 4)
    block = stream * config.hidden_size + 4 * width * config.intermediate_size
    return tokens * (config.num_hidden_layers * block + 12 * config.hidden_size + FP32 * config.vocab_size)


def flops_per_token(model: nn.Module, config: LabConfig, context: int) -> int:
    """6 N + 12 L · d · T: forward and backward, N the parameters but the input embedding, which is looked up.

    Source: Kaplan et al. 2020 (2001.08361), section 2.1; the attention term as in Chowdhery et al. 2022 (2204.02311),
    appendix B: all T keys count, although a causal query sees half of them. A tied output layer counts.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    width = config.num_attention_heads * config.head_dim
    return 6 * (parameters - looked_up) + 12 * config.num_hidden_layers * width * context


def total_flops(recipe: Recipe, model: LabForCausalLM) -> int:
    """Of a whole training; validation is left out."""
    tokens = recipe.steps * recipe.batch_size * recipe.context
    return tokens * flops_per_token(model, model.config, recipe.context)


def estimates(recipe: Recipe, model: LabForCausalLM) -> list[Estimate]:
    """One for every kind of GPU alone, and for eight of them with whole and with sharded weights, where that works.

    seconds = max(flops / (count · peak · utilization), passes · launching), at both ends of `UTILIZATION` and
    `LAUNCHING`, longest last; passes are the forward and backward ones of a process.
    """
    found = []
    for count, parallel in COUNTS:
        if parallel == "fsdp" and not recipe.optimizer.elementwise:
            continue
        try:
            needed = _by_micro_batch(recipe, model, count, parallel)
        except InputError:  # a batch that does not divide over so many
            continue
        found += [_estimate(recipe, model, gpu, count, parallel, needed) for gpu in GPUS]
    return found


def _by_micro_batch(recipe: Recipe, model: LabForCausalLM, count: int, parallel: str) -> dict[int, int]:
    """Bytes with the recipe's own number of sequences at once, and with the smaller ones that divide it."""
    own = split_batch(recipe, count, recipe.validation_windows).train
    smaller = [number for number in range(own, 0, -1) if own % number == 0]
    with_each = {number: recipe.model_copy(update={"micro_batch": number}) for number in smaller}
    return {number: memory(changed, model, count, parallel).total for number, changed in with_each.items()}


def _estimate(
    recipe: Recipe, model: LabForCausalLM, gpu: Gpu, count: int, parallel: str, needed: dict[int, int]
) -> Estimate:
    own, *_ = needed
    fitting = next((number for number, amount in needed.items() if amount <= USABLE * gpu.memory), None)
    ideal = total_flops(recipe, model) / (count * gpu.peak(recipe))
    passes = recipe.steps * recipe.batch_size / count / (fitting or own)
    low, high = (max(ideal / share, passes * least) for share, least in zip(UTILIZATION[::-1], LAUNCHING, strict=True))
    return Estimate(
        gpu=gpu.name,
        count=count,
        parallel=parallel,
        memory_bytes=needed[own],
        fits=fitting == own,
        micro_batch=None if fitting == own else fitting,
        seconds=(low, high),
    )
