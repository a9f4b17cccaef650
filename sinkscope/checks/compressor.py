"""llm-compressor: the AWQ recipe and the loss mask of a trial in which AWQ was better for leaving tokens out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sinkscope.errors import InputError
from sinkscope.trials import Trial

NAME = "llm-compressor"
FILE = f"{NAME}.py"
TRY = "sinkscope quantize MODEL --scheme w4-awq-g128-asym --protect first:1 --out OUT, then export OUT"

SCRIPT = '''\
# Model: {model}
"""AWQ whose calibration leaves out {tokens}.

Measured with sinkscope's AWQ ({scheme}): KL {without} nats a token with all tokens, {with_} without these, on
{texts} texts that had no part in the calibration; leaving out as many random tokens is worse.
Read in {source}, {date}; not run here. Beware: {beware}; a head of
another name than lm_head has to be named in `ignore`.
"""

from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier

LEFT_OUT = {positions}  # positions in a text, as the tokenizer writes it


def masked(dataset):
    """A tokenized data set with `loss_mask`, 0 at what is left out; rows of which nothing would be left are dropped."""

    def mask(row):
        return {{**row, "loss_mask": [int(place not in LEFT_OUT) for place in range(len(row["input_ids"]))]}}

    return dataset.map(mask).filter(lambda row: any(row["loss_mask"]))


recipe = [
    AWQModifier(duo_scaling=False),
    QuantizationModifier(
        ignore={ignore},
        config_groups={{"group_0": {{"targets": ["Linear"], "weights": {weights}}}}},
    ),
]

# oneshot(model=model, dataset=masked(tokenized), recipe=recipe, use_loss_mask=True, batch_size=1)
'''


def awq_script(result: object, entry: Mapping[str, str]) -> str:
    """The script for a trial of AWQ, with and without tokens in its calibration, that was better without.

    llm-compressor reads `loss_mask` in AWQ alone: GPTQ, SmoothQuant and observers see all tokens. Our AWQ compares the
    outputs of maps, llm-compressor's those of whole modules (`quantization.AWQ`).

    Raises `InputError` for other results, for tokens whose positions differ from text to text, for stacked experts,
    which llm-compressor refuses, and where leaving out is no better than all tokens, or than leaving out random ones.
    """
    if not isinstance(result, Trial) or result.record.get("kind") != "schemes" or result.baseline is None:
        raise InputError(f"{NAME}: needs a trial of AWQ with and without tokens in its calibration: {TRY}")
    quantizer: Mapping[str, Any] = result.record["quantizer"]
    transform = quantizer.get("transform") or {}
    if transform.get("name") != "AWQ" or quantizer.get("activations") is not None:
        scheme = result.record["scheme"]
        raise InputError(f"{NAME}: only AWQ reads a loss_mask, and this is a trial of {scheme}: {TRY}")
    if any("experts" in path for path in transform["ratios"]):
        raise InputError(f"{NAME}: a loss_mask is refused for mixtures of experts")
    if result.record["calibrated_on"]["in_sample"]:
        raise InputError(f"{NAME}: it was scored on the texts that it was calibrated on: leave out --in-sample")
    facts: Mapping[str, Any] = result.record.get("arms", {})
    arms = [arm for arm in result.named("arm") if result.controls(arm) and "prefix" not in facts[arm]]
    if not arms:
        raise InputError(f"{NAME}: needs an arm that leaves tokens out, with random controls: {TRY}")
    arm = min(arms, key=lambda arm: result.cost(arm).value)
    gain, beyond = result.difference(result.baseline, arm), result.difference(arm)
    if not gain.low > 0 or not beyond.high < 0:
        raise InputError(
            f"{NAME}: nothing to write, since leaving out {arm} is no better than "
            f"{'calibrating on all tokens' if not gain.low > 0 else 'leaving out random ones'} (KL "
            f"{result.cost(arm).value:.4f}, {result.cost(result.baseline).value:.4f} on all, "
            f"{result.mean(f'controls of {arm}').value:.4f} without random ones)"
        )
    left_out = facts[arm]["protects"]
    positions = left_out["positions"]
    if "…" in positions:
        raise InputError(f"{NAME}: {arm} leaves out more positions than a trial lists: take fewer")
    if len(positions) != round(left_out["tokens_per_text"], 3):
        raise InputError(f"{NAME}: {arm} are other positions in each text, which a script cannot know: take first:N")
    return SCRIPT.format(
        model=repr(str(result.record["model"])),
        tokens=f"position{'s' if len(positions) > 1 else ''} {', '.join(map(str, positions))}",
        scheme=result.record["scheme"],
        without=f"{result.cost(result.baseline).value:.4f}",
        with_=f"{result.cost(arm).value:.4f}",
        texts=result.texts,
        source=entry["source"],
        date=entry["date"],
        beware=entry["beware"],
        positions=set(positions),
        ignore=[rf"re:(.*\.)?{re.escape(name)}(\..*)?$" for name in quantizer["skip"]],  # parts of a path, anywhere
        weights=_weights(quantizer["weights"]),
    )


def _weights(grid: Mapping[str, Any]) -> dict[str, Any]:
    """The grid of weights in llm-compressor's words."""
    spread = {"strategy": "channel"} if grid["group"] is None else {"strategy": "group", "group_size": grid["group"]}
    return {"num_bits": grid["bits"], "type": "int", "symmetric": grid["symmetric"], **spread}
