"""What quantized linear maps cost nano, and what sparing its sink, smoothing and rotating buy: 96 texts of 128 tokens.

Every arm is the rise of the loss (nats) over full precision on the same texts, position 0 left out, which some arms
spare; ± is the standard error over texts, and what is recovered is 1 − cost / cost of nothing spared. Weights have 8
symmetric bits, a range for each output. Scales, smoothing, rotations and rounding are calibrated on 64 other texts.

Run: python -m benchmarks.quantized_linear [--save]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

import sinkscope as ss
from benchmarks.sides import Figure, at_least, at_most, beside, report
from sinkscope.data import build_inputs
from sinkscope.interventions import Intervention
from sinkscope.model import load_tokenizer
from sinkscope.quantization import (
    GPTQ,
    DuQuant,
    Grid,
    OutlyingColumns,
    QuantizeLinear,
    RotateInputs,
    RotateResidual,
    SliM,
    SmoothQuant,
    calibrated,
    random_tokens,
    resolved,
)
from sinkscope.sinks import Choice, First, Measured, Positions, Tokens

TEXTS, TOKENS, CALIBRATION, BATCH = 96, 128, 64, 8
SECOND = 64  # place of the second BOS
WEIGHTS = Grid(8, symmetric=True)
FIRST = First(1)
Details = dict[str, dict[str, float]]


def tensor(bits: int) -> Grid:
    return Grid(bits, "tensor", symmetric=True)


def text(samples: int, seed: int) -> Tensor:
    options = {"vocab_size": 2048, "tokens": TOKENS, "samples": samples, "seed": seed, "bos": "add"}
    return build_inputs("natural", tokenizer=load_tokenizer("nano"), **options).input_ids


class Costs:
    """Arms on the same texts, each against full precision."""

    def __init__(self, model: nn.Module, ids: Tensor, scored: Tensor, where: str, details: Details) -> None:
        self.model, self.ids, self.scored, self.where, self.details = model, ids, scored, where, details
        self.plain = self.losses(None)

    @torch.no_grad()
    def losses(self, arm: Intervention | None) -> Tensor:
        """Mean −log p of the scored tokens of each text."""

        def run() -> Tensor:
            rows = []
            for batch in self.ids.split(BATCH):
                log_p = self.model(batch).logits[:, :-1].double().log_softmax(-1)
                rows.append(-log_p.gather(2, batch[:, 1:, None])[..., 0])
            return torch.cat(rows)[:, self.scored[1:] & self.scored[:-1]].mean(1)

        if arm is None:
            return run()
        with arm.applied(self.model):
            return run()

    def __call__(self, name: str, arm: Intervention) -> float:
        rise = self.losses(arm) - self.plain
        error = float(rise.std() / len(rise) ** 0.5)
        self.details[f"{self.where}: {name}"] = {"nats": float(rise.mean()), "standard error": error}
        print(f"{self.where}: {name}: {float(rise.mean()):+.4f} ± {error:.4f}", flush=True)
        return float(rise.mean())


def one_sink(model: nn.Module, details: Details) -> list[Figure]:
    ids, other = text(TEXTS, 0), text(CALIBRATION, 1)
    scored = torch.arange(TOKENS) > 0
    cost = Costs(model, ids, scored, "one BOS", details)
    given = {"input_ids": ids}
    sink = resolved(Measured(by="row"), model, given)
    details["one BOS: measured sinks"] = {"share of rows": float(sink.any_head()[:, 0].mean())}
    figures = []
    smooth = {alpha: SmoothQuant.of(model, other, alpha) for alpha in (0.5, 0.8)}
    elsewhere = SmoothQuant.of(model, other, protect=FIRST)
    turned = {
        "random rotation of every input": RotateInputs(kind="orthogonal"),
        "Hadamard rotation of every input": RotateInputs(),
        "random rotation of down_proj's input": RotateInputs(["down"], kind="orthogonal"),
        "rotation of the residual stream": RotateResidual.of(model, other),
        "DuQuant": DuQuant.of(model, other[:16], steps=64),
    }
    for bits in (8, 6):
        grid = tensor(bits)
        plain = QuantizeLinear(WEIGHTS, grid)
        name = f"W8A{bits} per tensor"
        nothing = cost(name, plain)
        spared = cost(f"{name}, sink spared", replace(plain, protect=sink))
        random = [
            cost(
                f"{name}, a random token spared ({seed})",
                replace(plain, protect=random_tokens(sink, torch.Generator().manual_seed(seed), model, given)),
            )
            for seed in range(3)
        ]
        control = sum(random) / len(random)
        if bits == 8:
            figures.append(
                at_most(f"{name}: cost with the measured sink spared / nothing spared", spared, nothing, 0.25, "nats")
            )
            figures.append(
                at_least(f"{name}: cost with a random token spared / nothing spared", control, nothing, 0.95, "nats")
            )
        else:
            figures.append(
                beside(f"{name}: cost with the measured sink spared / nothing spared", spared, nothing, "nats")
            )
        for label, transform in [
            ("SmoothQuant .5", smooth[0.5]),
            ("SmoothQuant .5 calibrated without the sink", elsewhere),
            ("SmoothQuant .8", smooth[0.8]),
            *turned.items(),
        ]:
            found = cost(f"{name}, {label}", replace(plain, transform=transform))
            both = cost(f"{name}, {label}, sink spared", replace(plain, transform=transform, protect=sink))
            if bits == 8 and label == "SmoothQuant .5":
                figures.append(at_most(f"{name}: {label} / nothing", found, nothing, 0.5, "nats"))
            if bits == 8 and transform is elsewhere:
                figures.append(at_least(f"{name}: {label} / nothing", found, nothing, 1.0, "nats"))
                figures.append(beside(f"{name}: {label}, sink spared / nothing", both, nothing, "nats"))
            if bits == 8 and label == "random rotation of every input":
                figures.append(at_most(f"{name}: {label} / nothing", found, nothing, 0.25, "nats"))
    frozen = QuantizeLinear(WEIGHTS, tensor(8), static=calibrated(model, other, tensor(8)))
    without = calibrated(model, other, tensor(8), protect=FIRST)
    nothing = cost("W8A8 static", frozen)
    apart = cost("W8A8 static, sink spared in calibration and use", replace(frozen, static=without, protect=sink))
    cost("W8A8 static, sink spared in calibration alone", replace(frozen, static=without))
    figures.append(at_most("W8A8 static: cost with the sink spared / nothing spared", apart, nothing, 0.5, "nats"))
    by_token = cost("W8A8 per token", QuantizeLinear(WEIGHTS, Grid(8, symmetric=True)))
    figures.append(
        beside("W8A8: cost per token / per tensor", by_token, details["one BOS: W8A8 per tensor"]["nats"], "nats")
    )
    columns = OutlyingColumns()
    cost("LLM.int8, threshold 6", columns)
    shares = columns.kept(model, ids)
    details["LLM.int8, threshold 6: share of columns kept"] = shares
    rounding(cost, model, other, figures)
    return figures


def rounding(cost: Costs, model: nn.Module, other: Tensor, figures: list[Figure]) -> None:
    """Weights alone: to the nearest value, by GPTQ, and with mixed bits."""
    gptq, slim = GPTQ.of(model, other), SliM.of(model, other)
    for bits, group in ((4, None), (3, None), (3, 16), (2, 16)):
        grid = Grid(bits, group=group)
        name = f"W{bits}" + ("" if group is None else f" in groups of {group}")
        nearest = cost(f"{name}, nearest", QuantizeLinear(grid))
        better = cost(f"{name}, GPTQ", QuantizeLinear(grid, rounding=gptq))
        figures.append(beside(f"{name}: GPTQ / nearest", better, nearest, "nats"))
        if group is not None:
            mixed = cost(f"{name}, SliM-LLM", QuantizeLinear(grid, rounding=slim))
            figures.append(beside(f"{name}: SliM-LLM / GPTQ", mixed, better, "nats"))


def two_sinks(model: nn.Module, details: Details) -> list[Figure]:
    """A second BOS in the middle of the context, which the first tokens do not contain."""
    ids = torch.cat([text(TEXTS, 0)[:, :SECOND], text(TEXTS, 2)[:, :SECOND]], 1)
    scored = torch.ones(TOKENS, dtype=torch.bool)
    scored[[0, 1, 2, 3, SECOND]] = False
    cost, given = Costs(model, ids, scored, "second BOS at 64", details), {"input_ids": ids}
    plain = QuantizeLinear(WEIGHTS, tensor(8))
    nothing = cost("W8A8 per tensor", plain)
    arms: Mapping[str, Choice | Tokens] = {
        "first 1": First(1),
        "first 2": First(2),
        "first 4": First(4),
        "measured": resolved(Measured(by="row"), model, given),
        "positions 0 and 64": Positions(0, SECOND),
        "two random tokens": random_tokens(Positions(0, SECOND), torch.Generator(), model, given),
    }
    costs = {name: cost(f"W8A8 per tensor, {name} spared", replace(plain, protect=one)) for name, one in arms.items()}
    mask = resolved(arms["measured"], model, given).any_head()
    details["second BOS at 64: measured sinks"] = {
        f"position {at}": float(share) for at, share in enumerate(mask.mean(0).tolist()) if share
    }
    what = "second BOS at 64, W8A8 per tensor: cost with"
    return [
        at_most(f"{what} the measured sinks spared / nothing spared", costs["measured"], nothing, 0.3, "nats"),
        at_least(f"{what} the first 4 spared / nothing spared", costs["first 4"], nothing, 0.9, "nats"),
        at_least(f"{what} two random tokens spared / nothing spared", costs["two random tokens"], nothing, 0.9, "nats"),
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    details: Details = {}
    nano = ss.load("nano").eval()
    figures = [*one_sink(nano, details), *two_sinks(nano, details)]
    report("quantized_linear", figures, details)
