"""Whether rotating a cache makes protecting its sinks redundant: the arms of that trial, and its answer by scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import checked_inputs, unwrapped
from sinkscope.quantization import QuantizationScheme, QuantizeCache, read_states, rounded_states, scheme_named
from sinkscope.quantization.protected import Protect
from sinkscope.sinks import Tokens, parse
from sinkscope.trials.arm import Arm, ThroughCache
from sinkscope.trials.run import Progress, run
from sinkscope.trials.schemes import SchemeArms, as_many, looks_for_positions, protected_arm
from sinkscope.trials.texts import Uses, split
from sinkscope.trials.trial import SENTENCES, Trial
from sinkscope.trials.words import TOLERANCE, redundant

KIND = "rotation"
SCHEMES = ("kv4-token", "kv3-token", "kv2-token")
SHOWN = 2  # texts whose keys and values are looked at


def rotation_trial(
    model: nn.Module,
    inputs: Any,
    schemes: Sequence[str] = SCHEMES,
    protect: str | Protect = "measured",
    controls: int = 1,
    *,
    calibrate_on: Any = None,
    context: int | None = None,
    tolerance: float = TOLERANCE,
    batch_size: int = 8,
    seed: int = 0,
    out: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Each scheme of caches plain and rotated, with sinks protected and not, on the same texts.

    For each scheme: plain; plain with `protect`; rotated; rotated with `protect`, with as many first tokens, and with
    as many of the last tokens of the context. Controls of `protect` keep as many random tokens whole, so they hold
    exactly the same bytes; a rotated cache holds what the plain one holds. `redundancy(trial)` is the answer.

    The record also has each scheme's reconstruction error, which need not order schemes as KL does, and the shape of
    the model's keys and values (`key_shapes`).

    Args:
        model: A decoder whose layers keep keys and values of all tokens.
        inputs: Token ids (N, T), without padding: those to score, and those in which positions are chosen.
        schemes: Names of schemes of caches that have a rotated form (`rotated_name`).
        protect: What is protected: a choice or its words.
        controls: Random choices for each protected arm.
        calibrate_on: Texts to choose positions in; all of `inputs` are scored then.
        context: Tokens that a cache is filled with at once; the rest are read at once after it. Default: half of them.
        tolerance, batch_size, seed, out, about, progress: As in `run`.

    Raises `InputError` for schemes without a rotated form, and as `scheme_trial` does.
    """
    model = unwrapped(model)
    choice = parse(protect) if isinstance(protect, str) else protect
    if choice is None:
        raise InputError("protect: a choice of tokens whose protection may be redundant, such as measured or first:4")
    uses: Uses = "chooses" if looks_for_positions(choice) else "nothing"
    parts = split(model, inputs, uses, calibrate_on=calibrate_on)
    scored, calibration = parts.scored, parts.fitted_on
    reading = ThroughCache.of(scored, context, None)
    arms: list[Arm] = []
    pairs: dict[str, str] = {}
    tokens: Tokens | None = None
    for name in schemes:
        pairs[name] = rotated_name(name)
        for scheme, rotated in ((scheme_named(name), False), (scheme_named(pairs[name]), True)):
            built = SchemeArms(model, scheme, scored, calibration, seed, reading.context)
            tokens = built.tokens(choice, scored) if tokens is None else tokens
            arms += _arms(built, scheme, tokens, reading.context, rotated)
    looked = calibration.part(slice(0, min(SHOWN, calibration.count)))
    record: dict[str, Any] = {
        "kind": KIND,
        "pairs": pairs,
        "protects": str(choice),
        "context": reading.context,
        "reconstruction": reconstruction_errors(model, looked.inputs, [*pairs, *pairs.values()]),
        "key_shapes": key_shapes(model, looked.inputs),
    }
    return run(
        model,
        scored,
        arms,
        reading=reading,
        controls=controls,
        calibrated_on=parts.record,
        tolerance=tolerance,
        seed=seed,
        batch_size=batch_size,
        out=out,
        about={**record, **dict(about or {})},
        progress=progress,
    )


def rotated_name(name: str) -> str:
    """The scheme that rotates what `name` stores: kv4-token-rotated, nvfp4-rotated; q4_0 for q4_0-unrotated.

    Raises `InputError` for names that have none.
    """
    rotated = name.removesuffix("-unrotated") if name.endswith("-unrotated") else f"{name}-rotated"
    if not (scheme_named(name).caches and scheme_named(rotated).caches):
        raise InputError(f"{name} rounds no cache, so nothing of it can be rotated")
    return rotated


def _arms(built: SchemeArms, scheme: QuantizationScheme, tokens: Tokens, context: int, rotated: bool) -> list[Arm]:
    arms = [built.arm(scheme.name, None, None), built.arm(protected_arm(scheme.name), tokens, None)]
    if rotated:
        for word, end in (("first", None), ("last", context)):
            chosen = as_many(tokens, end)
            arms.append(replace(built.arm(f"{scheme.name}, {word} kept", chosen, None), control=None))
    return arms


def redundancy(trial: Trial) -> pd.DataFrame:
    """One row for each scheme: what it costs plain and rotated, with and without protected tokens, and the answer.

    Costs are KL a token. `gain`: the KL of as many random tokens minus that of the protected ones, after rotation, a
    paired difference over texts. `redundant` compares that gain with the rotated cache's cost (`words.redundant`); "not
    rotated" for widths that the scheme does not rotate.
    """
    rows = []
    for plain, rotated in trial.record["pairs"].items():
        kept, before = protected_arm(rotated), protected_arm(plain)
        gain, cost = -trial.difference(kept), trial.cost(rotated)
        unchanged = np.array_equal(trial.values(plain), trial.values(rotated))
        full = float(trial.data["bytes"].isel(arm=0))
        rows.append(
            {
                "scheme": plain,
                "bytes_share": float(trial.data["bytes"].sel(arm=plain)) / full,
                "protected_bytes_share": float(trial.data["bytes"].sel(arm=kept)) / full,
                "plain": trial.cost(plain).value,
                "plain_protected": trial.cost(before).value,
                "plain_random": float(trial.values(f"controls of {before}").mean()),
                "rotated": cost.value,
                "rotated_protected": trial.cost(kept).value,
                "rotated_random": float(trial.values(f"controls of {kept}").mean()),
                "rotated_first": trial.cost(f"{rotated}, first kept").value,
                "rotated_last": trial.cost(f"{rotated}, last kept").value,
                "plain_gain": (-trial.difference(before)).value,
                "gain": gain.value,
                "gain_low": gain.low,
                "gain_high": gain.high,
                "redundant": "not rotated" if unchanged else redundant(gain, cost.value),
            }
        )
    return pd.DataFrame(rows)


def reconstruction_errors(model: nn.Module, inputs: Any, schemes: Sequence[str]) -> dict[str, dict[str, float]]:
    """For each scheme of caches, Σ |x − x̂|² / Σ |x|² over the keys, and over the values, of all rounded layers.

    Over whole texts, each token rounded as when it arrives. This is what codes are designed for; what a model loses
    depends on which tokens carry the error.
    """
    return {name: _error(model, inputs, name) for name in schemes}


def _error(model: nn.Module, inputs: Any, name: str) -> dict[str, float]:
    made = scheme_named(name).make(model, inputs, None)
    if not isinstance(made, QuantizeCache) or made.codebooks is not None or made.before_rotation:
        raise InputError(f"{name} rounds keys before they are rotated by position, or no cache: no error to compare")
    errors, sizes = [0.0, 0.0], [0.0, 0.0]

    def read(layer: int, keys: Tensor, values: Tensor, counted: Tensor) -> None:
        scheme = made.scheme.at(layer)
        for side, (x, numbers) in enumerate(((keys, scheme.keys), (values, scheme.values))):
            # Padding is left out of ranges (`~counted`) and of sums (`rows`).
            rows = counted[:, None, :, None].expand(x.shape)
            errors[side] += float((rounded_states(x, numbers, ~counted) - x)[rows].double().square().sum())
            sizes[side] += float(x[rows].double().square().sum())

    read_states(model, inputs, read, scheme=made.scheme)
    return {"keys": errors[0] / max(sizes[0], 1e-30), "values": errors[1] / max(sizes[1], 1e-30)}


def key_shapes(model: nn.Module, inputs: Any) -> list[dict[str, float]]:
    """For each layer of full attention: medians of |k| and |v|, and the norm of the mean key over its spread.

    Keys that are many times longer than values need finer steps than those. A mean that exceeds the spread is a
    constant that softmax does not see, such as a key bias: ranges over a token and rotated levels spend their steps on
    it, ranges over a channel subtract it.
    """
    rows: list[dict[str, float]] = []

    def read(layer: int, keys: Tensor, values: Tensor, counted: Tensor) -> None:
        picked = [x.transpose(1, 2)[counted].float() for x in (keys, values)]  # (token, heads, dim)
        norms = [x.norm(dim=-1).median() for x in picked]
        mean = picked[0].mean(0, keepdim=True)
        # Root mean square distance of a key from the mean key of its head.
        spread = (picked[0] - mean).square().sum(-1).mean().sqrt()
        rows.append(
            {
                "layer": layer,
                "key_norm": float(norms[0]),
                "value_norm": float(norms[1]),
                "ratio": float(norms[0] / norms[1].clamp(min=1e-12)),
                "key_mean_over_spread": float(mean.norm(dim=-1).max() / spread.clamp(min=1e-12)),
            }
        )

    read_states(model, inputs, read, batch_size=checked_inputs(model, inputs)[1])  # medians are over all texts
    return sorted(rows, key=lambda row: row["layer"])


def _sentences(trial: Trial) -> list[str]:
    lines = []
    for row in redundancy(trial).itertuples():
        what = {
            "yes": "protecting is redundant",
            "no": "protecting still helps",
            "cannot tell": "whether protecting still helps cannot be told",
            "not rotated": "(heads of this width are not rotated)",
        }[str(row.redundant)]
        lines.append(
            f"'{row.scheme}': rotated, {what}: {row.gain:.3g} ({row.gain_low:.3g} to {row.gain_high:.3g}) of "
            f"{row.rotated:.3g} nats a token against as many random tokens; plain, {row.plain_gain:.3g} of "
            f"{row.plain:.3g}."
        )
    record = trial.record
    names = [*record["pairs"], *record["pairs"].values()]
    by_error = sorted(names, key=lambda name: sum(record["reconstruction"][name].values()))
    by_kl = sorted(names, key=lambda name: trial.cost(name).value)
    if by_error != by_kl:
        lines.append(f"Reconstruction errors order them otherwise: {' < '.join(by_error)}; KL: {' < '.join(by_kl)}.")
    shapes = record["key_shapes"]
    longest, biased = (max(shapes, key=lambda row: row[name]) for name in ("ratio", "key_mean_over_spread"))
    lines.append(f"Keys are up to {longest['ratio']:.0f} times as long as values (layer {longest['layer']}).")
    if biased["key_mean_over_spread"] > 1:
        lines.append(
            f"Keys of layer {biased['layer']} share a constant of {biased['key_mean_over_spread']:.1f} times their "
            "spread, which rotation does not remove: ranges over a channel (kivi) subtract it."
        )
    return lines


SENTENCES[KIND] = _sentences
