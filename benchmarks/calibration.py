"""Calibrations chosen on one part of texts and reported on another: what they are worth to a model on its own texts.

`nano`, windows of 128 tokens of the python corpus' validation text: heads are chosen on 64, numbers are of 128 others,
in nats a token with 95 % bootstrap intervals over texts, beside random controls.

Run: python -m benchmarks.calibration [--save]
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.sides import Figure, report
from sinkscope.calibration import ACT, METHODS, Choice, Reweigh, choose, scores
from sinkscope.data import build_inputs
from sinkscope.interventions import Intervention
from sinkscope.metrics import bootstrap
from sinkscope.model import load, load_tokenizer

CHOSEN_ON, HELD_OUT, TOKENS = 64, 128, 128
FACTORS = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0)
LARGEST_GAIN = 0.01  # nats that none of these gains, which is what the documentation says


def texts() -> tuple[PreTrainedModel, Tensor]:
    tokenizer, model = load_tokenizer("nano"), load("nano")
    samples = CHOSEN_ON + HELD_OUT
    made = build_inputs("natural", tokenizer=tokenizer, vocab_size=2048, tokens=TOKENS, samples=samples, seed=0)
    return model, made.input_ids


def everywhere(model: PreTrainedModel, held: Tensor) -> dict[str, list[float]]:
    """Differences held out of what needs no choice: factors on the first token and on another one, and ACT."""
    arms: dict[str, Intervention] = {f"gamma={g:g} at 0": Reweigh(g, (0,)) for g in (0.0, *FACTORS)}
    arms |= {f"gamma={g:g} at 5": Reweigh(g, (5,)) for g in (0.0, *FACTORS)}
    arms |= {"act as published": ACT(), "act guarded": ACT(guarded=True)}
    none = scores(model, held, batch_size=32).loss
    found = {}
    for name, arm in arms.items():
        apart = scores(model, held, arm, batch_size=32).loss - none
        low, high = bootstrap(apart)
        found[name] = [float(apart.mean()), float(low), float(high)]
        print(f"{name}: {found[name][0]:+.4f} nats ({float(low):+.4f} to {float(high):+.4f})", flush=True)
    return found


def chosen(model: PreTrainedModel, ids: Tensor) -> dict[str, Choice]:
    found = {}
    for name, method in METHODS.items():
        if method.of_images is not None:
            continue  # nano reads none
        options = method.options(method.defaults, 0)
        found[name] = choose(model, ids, options, choose_on=CHOSEN_ON, batch_size=32)
        print(f"{name}: {found[name].verdict}", flush=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    model, ids = texts()
    details: dict[str, object] = {"everywhere": everywhere(model, ids[CHOSEN_ON:])}
    choices = chosen(model, ids)
    details["chosen"] = {name: choice.to_json() for name, choice in choices.items()}
    figures: list[Figure] = []
    for name, choice in choices.items():
        low = choice.difference("chosen").low if choice.heads else 0.0
        what = f"{name}, heads chosen on {CHOSEN_ON} texts: the most that {HELD_OUT} others may gain"
        figures.append(Figure(what, -low, LARGEST_GAIN, "nats", f"<= {LARGEST_GAIN}", -low <= LARGEST_GAIN))
    report("calibration", figures, details)


if __name__ == "__main__":
    main()
