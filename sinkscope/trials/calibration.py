"""What a calibration is worth on texts that had no part in choosing it: the arms of such a trial."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from sinkscope.errors import InputError
from sinkscope.hooks import unwrapped
from sinkscope.interventions import HeadChange, InRows, Intervention
from sinkscope.interventions.head_controls import every_head
from sinkscope.interventions.intervention import draw as drawn
from sinkscope.interventions.reweigh import from_json
from sinkscope.trials.arm import Arm, OnePass, Texts
from sinkscope.trials.choosing import Chosen, Option, choose_heads
from sinkscope.trials.predictions import shared_tokens
from sinkscope.trials.run import Progress, run
from sinkscope.trials.texts import split
from sinkscope.trials.trial import SENTENCES, Trial
from sinkscope.trials.words import TOLERANCE, nats

KIND = "calibration"
CHOSEN, HEADS, ALL = "chosen", "chosen heads", "all heads"
"""Arms: the choice, with the same change of other tokens as its control; the same, with other heads; all heads."""

Head = tuple[int, int]


def calibration_trial(
    model: nn.Module,
    inputs: Any,
    options: Sequence[Option],
    *,
    choose_on: int | None = None,
    objective: str = "loss",
    heads: Sequence[Head] | None = None,
    exhaustive: bool = False,
    controls: int = 3,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    batch_size: int = 8,
    out: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Trial:
    """A setting and heads chosen on some texts (`choose_heads`), compared with controls on the others.

    Arms: `chosen`, whose controls make the same change elsewhere in the same heads (other tokens; what the calibration
    takes for its control); `chosen heads`, the same calibration, whose controls are as many heads that were not chosen,
    drawn anew for each text; `all heads`. Where controls of the calibration are other heads (temperatures), there is
    `chosen heads` alone. Predictions of tokens that all texts begin with (a chat template) are not counted: any choice
    could gain them, for nothing. The loss leads: a calibration is meant to predict better, not to change nothing.

    `data` also has `estimated` and `gain` (option, layer, head): by how much each head alone lowers the objective on
    the texts to choose on, by derivatives and by passes of their own, NaN where there were none.

    Args:
        model: Any causal model whose attention can be changed.
        inputs: All texts, as `measure` takes them.
        options: The settings to choose from.
        choose_on: How many texts, the first ones, are chosen on; the others are scored. Default: half of them, since
            as many numbers are chosen from as there are settings and heads.
        objective: "loss", "entropy" or "error", as of `choose_heads`.
        heads: Only these are tried.
        exhaustive: A pass for each option and head in place of derivatives.
        controls: Draws of each control.
        progress: Called as passes end, first of the search, then of the trial.
        tolerance, seed, batch_size, out, about: As in `run`.

    Raises `InputError` where a part would have fewer than 2 texts, and as `choose_heads` and `measure` do.
    """
    model = unwrapped(model)
    texts = Texts.of(model, inputs)
    count = texts.count // 2 if choose_on is None else choose_on
    if not 2 <= count <= texts.count - 2:
        raise InputError(
            f"choose_on = {count} of {texts.count} texts: at least 2 to choose on, and 2 that are held out"
        )
    shared = shared_tokens(texts.inputs)
    from_token = max(0, shared - 1)  # whose prediction is of the first token that texts do not share
    first, rest = texts.part(slice(0, count)), texts.part(slice(count, texts.count))
    parts = split(model, rest.inputs, "chooses", calibrate_on=first.inputs, source=f"the first {count} texts")
    chosen = choose_heads(
        model,
        first.inputs,
        options,
        objective=objective,
        heads=heads,
        exhaustive=exhaustive,
        from_token=from_token,
        batch_size=batch_size,
        out=out,
        progress=progress,
    )
    option = next(option for option in options if option.name == chosen.option)
    arms, notes = _arms(model, option, chosen, parts.scored)
    if shared > 1:
        notes.append(f"The first {shared} tokens are the same in all texts, and predictions of them are not counted.")
    record = {"kind": KIND, "leads": "nats", "notes": notes, "calibration": _described(chosen, len(every_head(model)))}
    trial = run(
        model,
        parts.scored,
        arms,
        reading=OnePass(from_token),
        controls=controls,
        calibrated_on=parts.record,
        tolerance=tolerance,
        seed=seed,
        batch_size=batch_size,
        out=out,
        about={**record, **dict(about or {})},
        progress=progress,
    )
    return Trial(trial.data.assign(_of_heads(chosen)).assign_attrs(trial.data.attrs))


def calibration_of(trial: Trial) -> Intervention | None:
    """The calibration that was chosen in a trial; None where nothing was."""
    described = trial.record.get("calibration", {}).get("intervention")
    return None if described is None else from_json(described)


def _arms(model: nn.Module, option: Option, chosen: Chosen, texts: Texts) -> tuple[list[Arm], list[str]]:
    everywhere = option.of_heads(None)
    arms: list[Arm] = []
    notes: list[str] = []
    if chosen.intervention is not None:
        same = ("chosen", json.dumps(chosen.intervention.describe()))
        by_heads = isinstance(chosen.intervention, HeadChange) and chosen.intervention.controlled_by_heads
        if not (chosen.heads and by_heads):
            arms.append(_arm(CHOSEN, chosen.intervention, _elsewhere(model, chosen.intervention, texts, notes), same))
        others = _other_heads(model, option, chosen.heads, notes) if chosen.heads else None
        if others is not None or (chosen.heads and by_heads):
            arms.append(_arm(HEADS, chosen.intervention, others, same))
    if chosen.intervention is None or not option.whole:
        arms.append(_arm(ALL, everywhere, _elsewhere(model, everywhere, texts, notes), None))
    return arms, notes


Control = Callable[[int, Texts], Arm | None] | None


def _arm(name: str, calibration: Intervention, control: Control, same: tuple[str, str] | None) -> Arm:
    return Arm(
        name,
        lambda model, texts: calibration.applied(model),
        control=control,
        same=same,
        facts={"does": calibration.describe()},
    )


def _elsewhere(model: nn.Module, calibration: Intervention, texts: Texts, notes: list[str]) -> Control:
    """The calibration's own control: the same change of something random."""
    try:
        # Tried once before anything runs: a missing control becomes a note, not an error halfway.
        calibration.control(torch.Generator().manual_seed(0), model, texts.inputs)
    except InputError as error:
        notes.append(f"{str(error).removesuffix('.')}.")
        return None

    def control(number: int, texts: Texts) -> Arm:
        changed = calibration.control(torch.Generator().manual_seed(number), model, texts.inputs)
        return _arm("", changed, None, None)

    return control


def _other_heads(model: nn.Module, option: Option, heads: Sequence[Head], notes: list[str]) -> Control:
    """The option in as many heads that were not chosen, others for each text and draw."""
    free = [head for head in every_head(model) if head not in heads]
    everywhere = option.of_heads(None)
    if len(free) < len(heads):
        notes.append(
            f"{len(heads)} of {len(heads) + len(free)} heads were chosen, so as many others cannot be drawn, and there "
            "is no control by heads."
        )
        return None
    if not isinstance(everywhere, HeadChange):
        notes.append(f"{option.name} cannot differ between texts, so there is no control by heads.")
        return None

    def control(number: int, texts: Texts) -> Arm:
        def opened(model: nn.Module, batch: Texts) -> AbstractContextManager[None]:
            rows = range(batch.rows.start, batch.rows.stop)
            return InRows(everywhere, [other_heads(free, len(heads), number, row) for row in rows]).applied(model)

        facts = {"does": everywhere.describe(), "heads": f"{len(heads)} that were not chosen, others for each text"}
        return Arm("", opened, facts=facts)

    return control


def other_heads(free: Sequence[Head], count: int, number: int, row: int) -> tuple[Head, ...]:
    """The heads of one text in one draw: `count` different ones, whatever batch the text is in."""
    return drawn(torch.Generator().manual_seed(1_000_003 * number + row), free, count, "heads")


def _described(chosen: Chosen, head_count: int) -> dict[str, Any]:
    return {
        "option": chosen.option,
        "heads": [list(head) for head in chosen.heads],
        "of_heads": head_count,
        "objective": chosen.objective,
        "before": chosen.before,
        "after": chosen.after,
        "by_derivatives": sorted(chosen.estimated),
        "intervention": None if chosen.intervention is None else chosen.intervention.describe(),
    }


def _of_heads(chosen: Chosen) -> dict[str, xr.DataArray]:
    """Gains as arrays over (option, layer, head)."""
    names = list(chosen.gains)
    heads = [head for gains in (*chosen.estimated.values(), *chosen.gains.values()) for head in gains]
    if not heads:
        return {}
    shape = (len(names), 1 + max(layer for layer, _ in heads), 1 + max(head for _, head in heads))
    arrays = {}
    for name, gains in (("estimated", chosen.estimated), ("gain", chosen.gains)):
        values = np.full(shape, np.nan)
        for index, option in enumerate(names):
            for (layer, head), gain in gains.get(option, {}).items():
                values[index, layer, head] = gain
        dims = ("option", "layer", "head")
        arrays[name] = xr.DataArray(values, dims=dims, coords={"option": names}, attrs={"units": chosen.objective})
    return arrays


def _sentences(trial: Trial) -> list[str]:
    """The general sentences of each calibration, and what the choice is worth on texts that had no part in it."""
    about = trial.record["calibration"]
    arms = trial.named("arm")
    if about["intervention"] is None:
        what = "No head" if "gain" in trial.data or "estimated" in trial.data else "Nothing"
        return [f"{what} got better by {about['option']}: nothing was chosen.", *(trial.sentence(arm) for arm in arms)]
    chosen = CHOSEN if CHOSEN in arms else HEADS
    count = len(about["heads"])
    where = f"in {count} of {about['of_heads']} heads" if count else "in the heads that it finds"
    cost = trial.cost(chosen, "nats")
    if cost.high < 0:
        effect = f"lowers the loss by {nats(-cost)} nats a token"
    elif cost.low > 0:
        effect = f"raises the loss by {nats(cost)} nats a token"
    else:
        effect = f"changes the loss by nothing that can be told from zero ({nats(cost, signed=True)} nats a token)"
    parts = [f"{about['option']} {where} {effect} on texts that had no part in choosing it"]
    parts += [_against(trial, arm, what) for arm, what in _CONTROLS.items() if arm in arms and trial.controls(arm)]
    gained = about["before"] - about["after"]
    parts.append(f"on those that it was chosen on, it lowers the {about['objective']} by {gained:.4f}")
    others = [arm for arm in arms if arm != chosen and not (arm == HEADS and chosen == CHOSEN)]
    return [f"{'; '.join(parts)}.", f"'{chosen}' {trial.cost_in_words(chosen)}.", *map(trial.sentence, others)]


WEAK = 0.1  # of an arm's KL: a control that moves predictions less than this could have shown little
_CONTROLS = {CHOSEN: "the same change elsewhere in these heads", HEADS: "as many random heads"}


def _against(trial: Trial, arm: str, what: str) -> str:
    moved, by_controls = trial.mean(arm).value, trial.mean(f"controls of {arm}").value
    if by_controls < moved * WEAK:  # other tokens may have next to no weight to give away
        what += f" (which could show little: KL {by_controls:.2g} against {moved:.2g})"
    gain = -trial.difference(arm, score="nats")
    if gain.low > 0:
        return f"{nats(gain)} better than {what}"
    if gain.high < 0:
        return f"{nats(-gain)} worse than {what}"
    return f"it cannot be told from {what} (difference {nats(gain)})"


SENTENCES[KIND] = _sentences
