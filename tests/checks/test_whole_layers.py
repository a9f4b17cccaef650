"""Which layers vLLM is told to leave whole: those that a planted model needs, found on texts that are not scored."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from sinkscope.checks import check
from sinkscope.checks.engines import lines
from sinkscope.checks.whole_layers import VllmCache, vllm_caches
from sinkscope.errors import InputError
from sinkscope.grids import Grid
from sinkscope.quantization import QuantizeCache, quantized_cache
from sinkscope.trials import ThroughCache, run

LAYERS, DEAR = 6, 3


def saturating(layer: int | None = DEAR) -> LlamaForCausalLM:
    """A model with keys and values in one layer that E4M3 cannot hold; queries and outputs make up for their size."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=97, num_hidden_layers=LAYERS, initializer_range=0.15, **sizes)
    model = LlamaForCausalLM(config).eval()
    if layer is not None:
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
    model, texts = saturating(None).double(), ids()  # in which no number is rounded the other way by chance
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
    card = check(saturating(), count=6, tokens=64, only=["cache", "engines"])
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
    card = check(saturating(None), count=6, tokens=24, only=["engines"])
    assert not [row.key for row in card.part("engines").rows if row.key == "vllm-fp8-skip"]
    assert not [line for line in card.lines_for if "fp8 --kv-cache-dtype-skip" in line["line"]]


def test_turboquants_own_layers_are_part_of_the_union_and_of_the_bytes() -> None:
    model = saturating(None)
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
