"""The trial of rotated caches: equal bytes, arms that differ, its answers, and the traps that it names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.quantization import fake_quantize, quantized_cache, scheme_named
from sinkscope.sinks import First, Measured
from sinkscope.statistics import Interval
from sinkscope.trials import (
    ThroughCache,
    Trial,
    cached,
    key_shapes,
    load,
    reconstruction_errors,
    redundancy,
    rotation_trial,
    run,
)
from sinkscope.trials.rotating import protected_arm
from sinkscope.trials.words import redundant
from tests.quantization.kv.test_rotated import Biased, llama

IDS = torch.randint(3, 90, (6, 40), generator=torch.Generator().manual_seed(5))
NAMES = ["kv3-token", "kv2-token"]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return llama(2, 32)


@pytest.fixture(scope="module")
def trial(model: LlamaForCausalLM) -> Trial:
    return rotation_trial(model, IDS, NAMES, First(2), 2)


def test_rotation_costs_no_bytes_and_controls_hold_what_their_arms_hold(trial: Trial) -> None:
    held = {arm: float(trial.data["bytes"].sel(arm=arm)) for arm in trial.arms}
    for plain, rotated in trial.record["pairs"].items():
        kept = [protected_arm(rotated), f"{rotated}, first kept", f"{rotated}, last kept"]
        kept += [protected_arm(plain), *trial.controls(protected_arm(rotated)), *trial.controls(protected_arm(plain))]
        assert held[plain] == held[rotated]
        assert len({held[name] for name in kept}) == 1
        assert held[kept[0]] > held[rotated]


def test_arms_of_two_schemes_are_two_arms_and_the_first_are_the_first(trial: Trial) -> None:
    names = [protected_arm(name) for pair in trial.record["pairs"].items() for name in pair]
    means = [trial.mean(name).value for name in names]
    assert len(set(means)) == len(names)
    for rotated in trial.record["pairs"].values():
        np.testing.assert_allclose(trial.values(f"{rotated}, first kept"), trial.values(protected_arm(rotated)))
        assert trial.mean(f"{rotated}, last kept").value != trial.mean(protected_arm(rotated)).value


def test_the_table_and_the_sentences_are_the_trials_numbers(trial: Trial, tmp_path: Path) -> None:
    table = redundancy(trial).set_index("scheme")
    assert list(table.index) == NAMES
    for name in NAMES:
        rotated, row = trial.record["pairs"][name], table.loc[name]
        assert row.plain == trial.mean(name).value
        assert row.rotated == trial.mean(rotated).value
        assert row.gain == pytest.approx(row.rotated_random - row.rotated_protected)
        assert row.gain_low < row.gain < row.gain_high
        assert row.redundant == redundant(Interval(row.gain, row.gain_low, row.gain_high), row.rotated)
    assert all(f"'{name}'" in trial.verdict for name in NAMES)
    trial.save(tmp_path / "trial.nc")
    again = load(tmp_path / "trial.nc")
    assert redundancy(again).equals(redundancy(trial))
    assert json.loads(json.dumps(again.to_json()))["verdict"] == trial.verdict


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [(-1, 0.05, "yes"), (0.01, 0.09, "yes"), (0.01, 0.2, "no"), (0.3, 0.5, "no"), (-0.1, 0.5, "cannot tell")],
)
def test_an_answer_is_no_more_than_its_interval(low: float, high: float, answer: str) -> None:
    assert redundant(Interval((low + high) / 2, low, high), 1.0) == answer


def test_positions_in_a_sum_are_measured_in_texts_that_are_not_scored(model: LlamaForCausalLM) -> None:
    trial = rotation_trial(model, IDS.repeat(2, 1), NAMES[:1], Measured(0.01) + First(1), 0)
    assert trial.record["calibrated_on"]["texts"] == 8
    assert trial.texts == 4


def test_errors_are_those_of_the_cached_numbers() -> None:
    model = llama(2, 32)
    kept = DynamicCache(config=model.config)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.k_proj.weight[::32] *= 8  # long channels, without which a rotation costs what none does
        model(IDS, past_key_values=kept)
    scheme = scheme_named("kv4-token").make(model, {}, None)
    found = reconstruction_errors(model, {"input_ids": IDS}, ["kv4-token", "kv4-token-rotated"])
    signs = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(32)] for i in range(32)]) / 32**0.5
    lost = turned = total = 0.0
    for layer in kept.layers:
        keys: Tensor = layer.keys  # type: ignore[assignment]
        lost += float((fake_quantize(keys, scheme.keys) - keys).square().sum())  # type: ignore[attr-defined]
        rotated = fake_quantize(keys @ signs, scheme.keys) @ signs  # type: ignore[attr-defined]
        turned += float((rotated - keys).square().sum())
        total += float(keys.square().sum())
    assert found["kv4-token"]["keys"] == pytest.approx(lost / total, rel=0.02)  # stored steps have 16 bits
    assert found["kv4-token-rotated"]["keys"] == pytest.approx(turned / total, rel=0.02)
    assert abs(turned / lost - 1) > 0.05  # the two are told apart


def test_a_planted_key_bias_and_long_keys_are_named() -> None:
    model, dim = llama(2, 32, rope_parameters={"rope_type": "default", "rope_theta": 1e9}), 32
    assert "share a constant" not in rotation_trial(model, IDS, ["kv4-token"], First(1)).verdict
    bias = torch.zeros(2, dim)
    bias[:, [dim // 2 - 1, dim - 1]] = 600 / 2**0.5
    attention = model.model.layers[0].self_attn
    attention.k_proj = Biased(attention.k_proj, bias.flatten())  # type: ignore[assignment]
    shapes = key_shapes(model, {"input_ids": IDS})
    assert shapes[0]["key_norm"] == pytest.approx(600, rel=0.05)
    assert shapes[0]["ratio"] > 50 > shapes[1]["ratio"]
    assert shapes[0]["key_mean_over_spread"] > 10 > shapes[1]["key_mean_over_spread"]
    verdict = rotation_trial(model, IDS, ["kv4-token"], First(1)).verdict
    assert "times as long as values (layer 0)" in verdict
    assert "Keys of layer 0 share a constant" in verdict


def test_a_prompt_that_is_read_once_is_the_prompt_that_each_arm_reads(model: LlamaForCausalLM) -> None:
    grids = scheme_named("kv3-kivi-rotated").make(model, {}, None)

    def make(model: LlamaForCausalLM) -> DynamicCache:
        return quantized_cache(model, grids.keys, grids.values, First(1))  # type: ignore[attr-defined]

    arms = [cached(value, make, first_pass=value) for value in ("states", "own")]
    for context, chunk in ((35, None), (33, 1)):
        found = run(model, IDS, arms, reading=ThroughCache(context, chunk), batch_size=4)
        one, two = (found.values(arm.name) for arm in arms)
        assert one.mean() > 1e-5
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-7)
        assert float(np.ptp(found.data["bytes"].values[1:])) == 0


def test_schemes_that_cannot_be_rotated_are_refused(model: LlamaForCausalLM) -> None:
    for name, said in (("w4", "rounds no cache|unknown scheme"), ("turboquant_k8v4", "unknown scheme")):
        with pytest.raises(InputError, match=said):
            rotation_trial(model, IDS, [name], First(1))
    with pytest.raises(InputError, match="such as measured or first:4"):
        rotation_trial(model, IDS, NAMES, "none")
