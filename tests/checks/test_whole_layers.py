"""Which layers vLLM is told to leave whole: those that a planted model needs, found on texts that are not scored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from sinkscope.checks import check, whole_layers
from sinkscope.checks.engines import lines
from sinkscope.checks.subject import checked_model
from sinkscope.checks.whole_layers import VllmCache, calibrated_fp8, skip_row, vllm_caches
from sinkscope.errors import InputError
from sinkscope.grids import Grid
from sinkscope.quantization import QuantizeCache, quantized_cache
from sinkscope.statistics import Interval
from sinkscope.trials import OnePass, ThroughCache, Trial, run

LAYERS, DEAR = 6, 3


def saturating(*layers: int) -> LlamaForCausalLM:
    """A model with keys and values in some layers that E4M3 cannot hold; queries and outputs make up for their size."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=97, num_hidden_layers=LAYERS, initializer_range=0.15, **sizes)
    model = LlamaForCausalLM(config).eval()
    for layer in layers:
        attention = model.model.layers[layer].self_attn
        with torch.no_grad():
            for large, small in ((attention.k_proj, attention.q_proj), (attention.v_proj, attention.o_proj)):
                large.weight *= 4e3
                small.weight /= 4e3
    return model


def ids(rows: int = 6, length: int = 23) -> torch.Tensor:
    return torch.randint(5, 97, (rows, length), generator=torch.Generator().manual_seed(0))


def test_skipped_layers_are_those_of_a_plain_cache() -> None:
    """A rounded cache whose every other layer is skipped costs what that layer alone costs, in both doors."""
    model, texts = saturating().double(), ids()  # in which no number is rounded the other way by chance
    with torch.no_grad():
        full = model(texts).logits
        grids = Grid(2), Grid(2)
        every = tuple(range(LAYERS))
        alone = every[:2] + every[3:]
        simulated = {}
        for skip in ((), alone, every[:5]):
            with QuantizeCache(*grids, skip=skip).applied(model):
                simulated[skip] = model(texts).logits
            cache, steps = quantized_cache(model, *grids, skip=skip), []
            for token in texts.split(1, 1):
                steps.append(model(token, past_key_values=cache).logits)
            assert torch.allclose(torch.cat(steps, 1), simulated[skip], atol=1e-5)
            assert cache.left_alone == list(skip)
    lost = [float((logits - full).abs().mean()) for logits in simulated.values()]
    assert lost[0] > max(lost[1:]) > min(lost[1:]) > 0
    for skip, said in ((every, "no layer is left"), ((LAYERS,), "there is no layer 6"), ((-1,), "numbers of layers")):
        with pytest.raises(InputError, match=said):
            quantized_cache(model, *grids, skip=skip)


def test_a_planted_layer_is_found_and_its_line_printed() -> None:
    card = check(saturating(DEAR), count=6, tokens=64, only=["cache", "engines"])
    rows = {row.key: row for part in card.parts for row in part.rows}
    plain, row = rows["vllm-fp8"], rows["vllm-fp8-skip"]
    assert plain.word in ("costs", "breaks")
    assert row.word in ("free", "small")
    assert row.advice
    assert card.part("engines").first.facts["skip_layers"]["vllm-fp8-skip"]["layers"] == [DEAR]
    assert row.of_16 == pytest.approx(((LAYERS - 1) * plain.of_16 + 1) / LAYERS)
    said = [line["line"] for line in lines(card.parts, gguf=False)]
    assert f"--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers {DEAR}" in said
    assert "--kv-cache-dtype fp8" not in said
    assert rows["vllm-fp8-calibrated"].word in ("free", "small")
    assert any("k_scale and v_scale" in line for line in said)


def test_no_layers_are_named_where_the_cache_is_free() -> None:
    card = check(saturating(), count=6, tokens=24, only=["engines"])
    assert not [row.key for row in card.part("engines").rows if row.key == "vllm-fp8-skip"]
    assert not [line for line in card.lines_for if "fp8 --kv-cache-dtype-skip" in line["line"]]


def test_turboquants_own_layers_are_part_of_the_union_and_of_the_bytes() -> None:
    model = saturating()
    cache = VllmCache.for_model("turboquant_3bit_nc", model)
    assert cache.unrounded == [0, 1, 4, 5]
    assert cache.skipping([3]).unrounded == [0, 1, 3, 4, 5]
    texts = ids(2, 24)
    trial = run(
        model, texts, [cache.arm("plain"), cache.only(2).arm("alone")], reading=ThroughCache(12, None), controls=0
    )
    assert trial.mean("alone").value < trial.mean("plain").value
    caches, reasons = vllm_caches(ss.load("nano"))
    assert list(caches) == ["vllm-fp8"]
    assert "nothing would be rounded" in reasons["vllm-turboquant_3bit_nc"]


def test_as_many_layers_as_are_needed_and_random_ones_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[Trial] = []
    ran = whole_layers._run
    monkeypatch.setattr(whole_layers, "_run", lambda *options: trials.append(ran(*options)) or trials[-1])
    subject = checked_model("planted", saturating(1, DEAR), None, count=6, tokens=32)
    found = skip_row(subject, subject.sets[0], VllmCache.for_model("fp8", subject.model), None)
    assert found is not None
    row, facts = found
    assert facts["vllm-fp8-skip"]["layers"] == [1, DEAR]
    assert row.word in ("free", "small")
    drawn = [set(trials[-1].record["arms"][control]["skip"]) for control in trials[-1].named("control")]
    assert len(drawn) >= 2
    assert all(len(layers) == 2 and not layers & {1, DEAR} for layers in drawn)


def test_layers_are_ranked_and_scales_fitted_on_texts_that_are_not_scored() -> None:
    subject = checked_model("planted", saturating(DEAR), None, count=4, tokens=24)
    texts, cache = subject.sets[0], VllmCache.for_model("fp8", subject.model)
    second = replace(texts, ids=texts.ids.flip(1), calibration=texts.ids)
    # A subject for each, since one remembers its choice.
    found = [skip_row(replace(subject, _made={}), one, cache, None) for one in (texts, second)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0][1] == found[1][1]
    scored_twice = replace(texts, ids=texts.ids.flip(1))
    costs = [
        run(subject.model, texts.ids, [calibrated_fp8(subject, one)], reading=OnePass(), controls=0).values(
            "vllm-fp8-calibrated"
        )
        for one in (texts, scored_twice, second)
    ]
    np.testing.assert_array_equal(costs[0], costs[1])
    assert not np.array_equal(costs[0], costs[2])


def test_layers_are_ranked_once_for_all_sets_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    ran = whole_layers._run
    monkeypatch.setattr(whole_layers, "_run", lambda *options: read.append(len(options[1])) or ran(*options))
    subject = checked_model("planted", saturating(DEAR), None, count=4, tokens=24)
    texts, cache = subject.sets[0], VllmCache.for_model("fp8", subject.model)
    first, second = (skip_row(subject, replace(texts, ids=ids), cache, None) for ids in (texts.ids, texts.ids[:3]))
    calibration = len(texts.calibration)
    assert read == [calibration, calibration, 4, 3], "both choices, then each set once"
    assert first is not None
    assert second is not None
    assert first[1] == second[1]


def test_layers_that_do_no_more_than_random_ones_are_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "difference", lambda self, *names: Interval(0.0, -0.1, 0.1))
    subject = checked_model("planted", saturating(DEAR), None, count=4, tokens=24)
    found = skip_row(subject, subject.sets[0], VllmCache.for_model("fp8", subject.model), None)
    assert found is not None
    assert found[0].word in ("free", "small")
    assert "no more than as many random layers" in found[0].why
    assert found[0].advice == ""
