"""What less weight on the sink, in chosen heads, gains SmolLM2, and what choosing and applying it takes."""

from __future__ import annotations

from statistics import fmean

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.trials import CALIBRATIONS, passes
from tools.pages.stored import arms, ends, one, read

PAGE = "docs/calibration.md"
TEXTS = ("real/trials/calibrate-prose", "real/trials/calibrate-code")
CARD = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_short(), *_texts(), *_in_chat(), *_choosing(), *_speed()]


def _short() -> list[str]:
    chosen, everywhere = ([arms(place)[arm] for place in TEXTS] for arm in ("chosen", "all heads"))
    heads = [read(place)["result"]["calibration"] for place in TEXTS]
    gains = [f"{-row['lost']:.3f}" for row in chosen]
    least, most = zip(*(reversed(ends(row, "lost", 3, -1)) for row in chosen), strict=True)
    return [
        f"half the weight on the sink in {len(heads[0]['heads'])} of {heads[0]['of_heads']} heads, chosen one by one, "
        f"lowers SmolLM2's loss by {gains[0]} nats a token of prose ({least[0]} to {most[0]})**, in "
        f"{len(heads[1]['heads'])} heads by {gains[1]} of code ({least[1]} to {most[1]})",
        f"the same factor costs SmolLM2 {everywhere[0]['lost']:.3f} nats of prose and {everywhere[1]['lost']:.3f} of "
        "code",
    ]


def _texts() -> list[str]:
    nano = read("benchmarks/calibration")["details"]["chosen"]["zero-tuning"]
    smollm2 = read(TEXTS[0])["result"]
    return [
        f"windows of {nano['tokens']} tokens of unseen Python text; heads and settings chosen on "
        f"{nano['calibrated_on']['texts']} texts, reported on {nano['texts']} others",
        f"chosen on half of {smollm2['calibrated_on']['texts'] + smollm2['texts']} texts",
    ]


def _in_chat() -> list[str]:
    chosen, heads = ([arms(place)[arm] for place in TEXTS] for arm in ("chosen", "chosen heads"))
    other_tokens, other_heads = ([_controls(place, arm) for place in TEXTS] for arm in ("chosen", "chosen heads"))
    calibrations = [read(place)["result"]["calibration"] for place in TEXTS]
    prose, code = ({tuple(head) for head in each["heads"]} for each in calibrations)
    gained = [each["before"] - each["after"] for each in calibrations]
    weak, strong = (one(f"{row[name]:.{digits}f}" for row in chosen) for name, digits in (("controls", 4), ("kl", 2)))
    return [
        f"the same factor in as many random heads costs {one(f'{cost:.2f}' for cost in other_heads)} nats on "
        f"both, so that the chosen ones are {heads[0]['beats_by']:.2f} and {heads[1]['beats_by']:.2f} better",
        f"{len(prose & code)} heads were chosen on prose and on code, where "
        f"{len(prose) * len(code) / calibrations[0]['of_heads']:.0f} would be by chance",
        f"on random other tokens costs {min(other_tokens):.4f} to {max(other_tokens):.4f} nats, but they have little "
        f"weight to give away (KL {weak} against {strong})",
        f"on the texts that the heads were chosen on it is {gained[0]:.3f} and {gained[1]:.3f}.",
        f"({100 * chosen[0]['agreement']:.1f} and {100 * chosen[1]['agreement']:.1f} % agree)",
    ]


def _controls(place: str, arm: str) -> float:
    """Nats that the controls of an arm cost, their mean."""
    return fmean(row["lost"] for row in arms(place).values() if row["of"] == arm)


def _choosing() -> list[str]:
    facts = read(CARD)["sections"]["sink"]["on"]["prose in the chat format"]["facts"]
    layers = len(facts["by_layer"])
    heads = facts["heads"] // layers
    zero_tuning, chosen = CALIBRATIONS["zero-tuning"], read(TEXTS[0])["result"]["calibration"]
    values = tuple(float(option.removeprefix("gamma=")) for option in chosen["by_derivatives"])
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": 2 * heads}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=1))
    derived, each = (
        passes(model, zero_tuning.options(values, 0), None, exhaustive=exhaustive) for exhaustive in (False, True)
    )
    return [
        f"On a model of {layers} layers with {heads} heads and four settings, choosing takes the time of {derived} "
        f"passes over the texts to choose on, instead of {each:,}."
    ]


def _speed() -> list[str]:
    found = {figure["what"].split(", ")[0]: figure for figure in read("benchmarks/reweigh")["figures"]}
    factor, maps = (found[f"one call with {what}"] for what in ("a factor on one key", "written-out maps"))
    length = factor["what"].split(", ")[1]
    return [
        f"At {length}, a factor on one key takes {factor['ratio']:.2f} times as long as plain flash attention, "
        f"written-out maps {maps['ratio']:.1f} times"
    ]
