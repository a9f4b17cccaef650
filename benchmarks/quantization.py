"""Which tokens must be protected: the tables of `docs/which_tokens_to_spare.md`, on the shipped nano.

96 windows of 128 tokens of the python corpus' validation text; simulated quantization, symmetric weights with a range
for each output. Every choice of tokens is compared with the first tokens and random ones of its budget; 95 % intervals,
Student's t over windows.

- `w8a8`: W8A8 with one range for all tokens of a text; protected is the measured sink.
- `second`: the same with a second BOS at position 64. The two share the attention, so that by ε = 0.3 few texts have
  both among the measured sinks; both are outliers of the activations.
- `more`: `second` on 768 windows, a random choice each, which narrows its intervals; kept by itself.
- `schemes`: what each scheme costs, and what the measured sink gives back, on 48 windows; caches on 16.

Run: python -m benchmarks.quantization [more] [--save]
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import sinkscope as ss
from benchmarks.sides import Figure, at_least, at_most, report
from sinkscope.data import build_inputs
from sinkscope.model import load_tokenizer
from sinkscope.sinks import First, Measured, Outliers
from sinkscope.trials import Trial, scheme_trial

WINDOWS, TOKENS, SECOND = 96, 128, 64
MORE = 768
FEWER, CACHED = 48, 16  # windows for the table of schemes
LINEAR = ("w8a8-tensor", "w8a8-static", "w8a8-token", "w6a6-tensor", "w8a8-tensor-smooth", "w8a8-tensor-rotated")
CACHES = ("kv2-token", "kv2-kivi", "kv2-head")


def windows(count: int = WINDOWS) -> Tensor:
    return build_inputs(
        "natural", tokenizer=load_tokenizer("nano"), vocab_size=2048, tokens=TOKENS, samples=count, seed=0
    ).input_ids


def with_second(ids: Tensor) -> Tensor:
    """A BOS at 64 as well, in place of what stood at the end."""
    return torch.cat([ids[:, :SECOND], ids[:, :1], ids[:, SECOND:-1]], 1)


def rows_of(found: Trial) -> dict[str, Any]:
    """A trial as its table, JSON-able."""
    data = found.to_json()
    keep = ("arms", "verdict", "scheme", "scheme_says", "texts", "tokens", "texts_sha256", "reading", "calibrated_on")
    return {name: data[name] for name in keep}


def share(found: Trial, arm: str) -> float:
    return found.recovered(arm).value


def figures(w8a8: Trial, second: Trial) -> list[Figure]:
    worst = max(share(w8a8, name) for name in w8a8.controls("measured"))
    return [
        at_least("W8A8 per tensor: share given back by the measured sink", share(w8a8, "measured"), 1, 0.75, "of it"),
        at_most("the same by the best of five random tokens", worst, 1, 0.05, "of it"),
        *of_second(second),
    ]


def of_second(second: Trial) -> list[Figure]:
    return [
        at_least("second BOS: share given back by sinks and outliers", share(second, "both"), 1, 0.7, "of it"),
        *(
            at_most(f"second BOS: share given back by the {name}", share(second, name), 1, 0.4, "of it")
            for name in ("first 1", "first 4")
        ),
    ]


def with_two(model: nn.Module, ids: Tensor, controls: int) -> Trial:
    sinks = Measured(by="row")
    choices = {"measured": sinks, "both": sinks + Outliers(), "first 1": First(1), "first 4": First(4)}
    return scheme_trial(model, with_second(ids), "w8a8-tensor", choices, controls)


def more() -> None:
    """The second BOS on more windows."""
    torch.set_num_threads(1)
    second = with_two(ss.load("nano"), windows(MORE), 1)
    print(second.verdict)
    report("quantization_second", of_second(second), {"second": rows_of(second)})


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="under 'kv")  # rows that close no group
    model, ids = ss.load("nano"), windows()
    w8a8 = scheme_trial(model, ids, "w8a8-tensor", {"measured": Measured(by="row")})
    second = with_two(model, ids, 5)
    schemes = []
    for name in (*LINEAR, *CACHES):
        rows = ids[: CACHED if name in CACHES else FEWER]
        found = scheme_trial(model, rows, name, {"measured": Measured(by="row")}, 3)
        schemes.append(rows_of(found))
        print(f"{name}: {found.verdict}", flush=True)
    details = {"w8a8": rows_of(w8a8), "second": rows_of(second), "schemes": schemes}
    print(w8a8.verdict, second.verdict, sep="\n")
    report("quantization", figures(w8a8, second), details)


if __name__ == "__main__":
    more() if "more" in sys.argv else main()
