"""Which linear maps pay for activations in 8 bits: ranked by one backward pass, the first of them verified."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.checks.row import Row
from sinkscope.checks.section import Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.data import fed, seeded
from sinkscope.grids import EXACT, Grid, fake_quantize
from sinkscope.hooks import device_of, evaluating
from sinkscope.quantization import QuantizeLinear, linear_maps
from sinkscope.trials import OnePass, intervention_arm, run

GRID = Grid(8, "tensor", symmetric=True)  # as in the scheme a8-tensor
VERIFIED = 3  # maps that are rounded alone on the scored texts
LISTED = 20


def module_costs(
    model: PreTrainedModel, ids: Int[Tensor, "text token"], batch_size: int = 8, seed: int = 0
) -> dict[str, float]:
    """Estimates by path of the KL in nats per token that rounding a map's inputs to 8 bits costs; most expensive first.

    ½ Σ_t (g_t · δ_t)² / T: δ_t is the error of token t's input, one range for a text; g_t the gradient of −Σ log p(y)
    with respect to it, for y drawn from the model itself: the diagonal over tokens of the Fisher information, of which
    the KL is half, to second order. One pass forward and one back for each batch. Maps of one module with others, such
    as stacked experts, are left out.
    """
    maps = {path: one.module for path, one in linear_maps(model).items() if isinstance(one.module, nn.Linear)}
    costs = dict.fromkeys(maps, 0.0)
    generator = seeded("modules", seed)

    def read(path: str, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # A copy, whose gradient is that of this map alone: queries, keys and values read the same tensor.
        x = args[0].clone()
        rows = x.detach().reshape(-1, *x.shape[-2:])
        errors = torch.stack([fake_quantize(row, GRID) for row in rows]).sub_(rows).reshape(x.shape)

        def add(gradient: Tensor) -> None:
            costs[path] += float((gradient * errors).sum(-1).double().square().sum())

        if x.requires_grad:
            x.register_hook(add)
        return (x, *args[1:])

    frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with ExitStack() as stack, evaluating(model), torch.enable_grad():
        for parameter in frozen:  # their gradients would take the memory of the weights, and they are not read
            stack.callback(parameter.requires_grad_, True)
            parameter.requires_grad_(False)
        embedded = model.get_input_embeddings()
        stack.callback(embedded.register_forward_hook(_with_gradient).remove)
        for path, module in maps.items():
            stack.callback(module.register_forward_pre_hook(partial(read, path)).remove)
        for part in ids.to(device_of(model)).split(batch_size):
            logs = model(**fed(model, part)).logits.float().log_softmax(-1)
            drawn = torch.multinomial(logs.detach().exp().flatten(0, 1).cpu(), 1, generator=generator)
            (-logs.flatten(0, 1).gather(1, drawn.to(logs.device)).sum()).backward()
    scaled = {path: cost / (2 * ids.numel()) for path, cost in costs.items()}
    return dict(sorted(scaled.items(), key=lambda item: -item[1]))


def _with_gradient(module: nn.Module, args: Any, embedded: Tensor) -> Tensor:
    """The embeddings as a tensor that gradients reach; no leaf, since some families write into it."""
    return embedded.detach().requires_grad_().clone()


def module_rows(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> tuple[list[Row], list[list[Any]]]:
    """Rows of the most expensive maps, rounded alone on the scored texts, and the ranking (path, estimate in nats)."""
    costs = module_costs(subject.model, texts.choosing, subject.batch_size, subject.seed)
    ranking = [[path, float(f"{cost:.3g}")] for path, cost in list(costs.items())[:LISTED]]
    dearest = [path for path, cost in list(costs.items())[:VERIFIED] if cost > 0]
    if not dearest:
        return [], ranking
    arms = []
    for path in dearest:
        others = tuple(name for name in linear_maps(subject.model) if name != path)
        alone = QuantizeLinear(Grid(EXACT), GRID, skip=("lm_head", *others))
        arms.append(intervention_arm(path, alone, subject.model, fed(subject.model, texts.ids)))
    trial = run(
        subject.model,
        texts.ids,
        arms,
        reading=OnePass(),
        controls=0,
        batch_size=subject.batch_size,
        seed=subject.seed,
        about={"kind": "int8-modules"},
        progress=progress,
    )
    rows = [
        Row(
            f"alone:{path}",
            f"a8-tensor, {path} alone",
            trial.cost(path),
            "KL a token",
            trial.texts,
            trial.word(path),
            trial.grade(path).why,
            values=tuple(trial.values(path).tolist()),
        )
        for path in dearest
    ]
    return rows, ranking
