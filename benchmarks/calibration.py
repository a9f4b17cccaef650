"""Calibrations chosen on one part of texts and reported on another, and how long choosing takes.

`nano`, or another model by name, windows of the python corpus' validation text: numbers are of texts held out, in nats
a token, 95 %, Student's t over texts, with random controls. Choosing by derivatives is compared with a pass for each
head and setting: the choice, and processor seconds of one thread.

Run: python -m benchmarks.calibration [MODEL] [--chosen-on 64 --held-out 128 --tokens 128] [--save]
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.sides import Figure, report
from sinkscope.data import build_inputs
from sinkscope.interventions import ACT, Intervention, Reweigh
from sinkscope.model import load, load_tokenizer
from sinkscope.trials import CALIBRATIONS, Arm, Chosen, OnePass, Trial, calibration_trial, choose_heads, run

FACTORS = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0)
LARGEST_GAIN = 0.01  # nats that none of these gains, which is what the documentation says
FASTER = 3.0  # times, on nano's 16 heads; on 270 heads it is a matter of counting passes


def texts(name: str, samples: int, tokens: int) -> tuple[PreTrainedModel, Tensor]:
    tokenizer, model = load_tokenizer(name), load(name)
    size = model.config.vocab_size
    made = build_inputs("natural", tokenizer=tokenizer, vocab_size=size, tokens=tokens, samples=samples, seed=0)
    return model, made.input_ids


def everywhere(model: PreTrainedModel, held: Tensor) -> Trial:
    """What needs no choice: factors on the first token and on another one, and ACT, in all heads."""
    changes: dict[str, Intervention] = {f"gamma={g:g} at 0": Reweigh(g, (0,)) for g in (0.0, *FACTORS)}
    changes |= {f"gamma={g:g} at 5": Reweigh(g, (5,)) for g in (0.0, *FACTORS)}
    changes |= {"act as published": ACT(), "act guarded": ACT(guarded=True)}

    def arm(name: str, change: Intervention) -> Arm:
        return Arm(name, lambda model, texts: change.applied(model))

    arms = [arm(name, change) for name, change in changes.items()]
    return run(model, held, arms, reading=OnePass(), controls=0, batch_size=16, about={"leads": "nats"})


def chosen(model: PreTrainedModel, ids: Tensor, choose_on: int) -> dict[str, Trial]:
    found = {}
    for name, method in CALIBRATIONS.items():
        if method.of_images is not None:
            continue  # language models read none
        options = method.options(method.defaults, 0)
        found[name] = calibration_trial(model, ids, options, choose_on=choose_on, batch_size=16)
        print(f"{name}: {found[name].verdict}", flush=True)
    return found


def choosing(model: PreTrainedModel, ids: Tensor) -> tuple[dict[str, float], dict[str, Chosen]]:
    """Processor seconds of both ways to choose, and what they chose."""
    options = CALIBRATIONS["zero-tuning"].options(CALIBRATIONS["zero-tuning"].defaults, 0)
    seconds, found = {}, {}
    for name, exhaustive in (("derivatives", False), ("a pass for each", True)):
        start = time.process_time()
        found[name] = choose_heads(model, ids, options, exhaustive=exhaustive, batch_size=16)
        seconds[name] = time.process_time() - start
    return seconds, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="nano")
    for name, count in (("--chosen-on", 64), ("--held-out", 128), ("--tokens", 128)):
        parser.add_argument(name, type=int, default=count)
    given = parser.parse_args([word for word in sys.argv[1:] if word != "--save"])
    torch.set_num_threads(1)
    model, ids = texts(given.model, given.chosen_on + given.held_out, given.tokens)
    whole = everywhere(model, ids[given.chosen_on :])
    print(whole.table()[["arm", "lost", "lost_low", "lost_high"]].to_string(), flush=True)
    details: dict[str, object] = {"model": given.model, "everywhere": whole.to_json()}
    trials = chosen(model, ids, given.chosen_on)
    details["chosen"] = {name: trial.to_json() for name, trial in trials.items()}
    figures: list[Figure] = []
    for name, trial in trials.items():
        arm = next((arm for arm in trial.named("arm") if arm.startswith("chosen")), None)
        low = trial.cost(arm, "nats").low if arm is not None else 0.0
        what = f"{name}, heads chosen on {given.chosen_on} texts: the most that {given.held_out} others may gain"
        figures.append(Figure(what, -low, LARGEST_GAIN, "nats", f"<= {LARGEST_GAIN}", -low <= LARGEST_GAIN))
    if given.model == "nano":
        seconds, choices = choosing(model, ids[: given.chosen_on])
        fast, slow = seconds["derivatives"], seconds["a pass for each"]
        same = (choices["derivatives"].option, choices["derivatives"].heads) == (
            choices["a pass for each"].option,
            choices["a pass for each"].heads,
        )
        details["choosing"] = {"seconds": seconds, "same": same}
        what = "a pass for each head and setting / derivatives, nano, zero-tuning; the same choice"
        figures.append(Figure(what, slow, fast, "s", f">= {FASTER}", same and slow / fast >= FASTER))
    report("calibration", figures, details)


if __name__ == "__main__":
    main()
