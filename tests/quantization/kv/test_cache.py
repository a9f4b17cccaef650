"""A quantized cache in unmodified passes and in `generate()`: what equals what, and what is refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

import sinkscope as ss
from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.measurement.evidence import find_tokens
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.quantization import Grid, SinkQuantizedCache, effective_bits, quantized_cache, resolved
from sinkscope.sinks import Choice, First, Measured, Positions, TokenIds
from sinkscope.trials import cached, unchanged
from sinkscope.trials.harness import summed
from tests.caches.families import slow_but
from tests.families.registry import COLLECTED, FAMILIES
from tests.quantization.kv.naive import NaiveLayer, Side, naive_cache
from tests.quantization.test_protected import mask as columns_of_choice

IDS = torch.randint(3, 90, (2, 19), generator=torch.Generator().manual_seed(3))
KEYS, VALUES = Grid(2, "channel", group=4), Grid(3, "token")
SIDES = Side(2, "channel", 4), Side(3, "token")
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": 0, "do_sample": False}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("sdpa")


def generated(model: Any, cache: DynamicCache, ids: Tensor = IDS, **more: Any) -> Tensor:
    return model.generate(ids, past_key_values=cache, **{**OPTIONS, **more})


@torch.no_grad()
def read(model: Any, cache: DynamicCache, ids: Tensor, mask: Tensor | None = None, prompt: int = 7) -> Tensor:
    """Logits of the prompt in one pass and then of a token at a time."""
    found = []
    for start, stop in [(0, prompt), *((t, t + 1) for t in range(prompt, ids.shape[1]))]:
        places = torch.arange(start, stop)[None].expand(len(ids), -1)
        given = {} if mask is None else {"attention_mask": mask[:, :stop]}
        places = places if mask is None else (mask.cumsum(-1)[:, start:stop] - 1).clamp(min=0)
        found.append(model(ids[:, start:stop], past_key_values=cache, position_ids=places, **given).logits)
    return torch.cat(found, 1)


def naive(model: Any, ids: Tensor, protect: Tensor | None = None, pads: list[int] | None = None) -> DynamicCache:
    protect = torch.zeros_like(ids, dtype=torch.bool) if protect is None else protect
    which = quantized_cache(model, KEYS, VALUES)
    indices = [index for index in range(len(which.layers)) if index not in which.left_alone]
    return naive_cache(model.config, lambda: NaiveLayer(*SIDES, 0, pads or [0] * len(ids), protect), indices)


@pytest.mark.parametrize("name", slow_but(("llama", "gpt_oss"), ("llama", "gpt_oss", "gemma2", "qwen3_moe", "olmo2")))
def test_logits_are_those_over_naive_layers(name: str) -> None:
    """GPT-OSS: learned sinks in the softmax, and windows in every other layer, which stay as they are."""
    model = FAMILIES[name].build(FAMILIES[name].hosts[0])
    wanted = read(model, naive(model, IDS), IDS)
    full = read(model, DynamicCache(config=model.config), IDS)
    found = read(model, quantized_cache(model, KEYS, VALUES), IDS)
    error, effect = (found - wanted).abs(), (found - full).abs()
    assert error.flatten().quantile(0.9) < 2e-5  # where a number lies between two codes, float64 may choose the other
    assert effect.max() > 20 * error.max()
    assert torch.equal(found[:, :7], full[:, :7])


@pytest.mark.parametrize("protect", [First(2), Positions(0, 5), TokenIds(7)])
def test_what_is_protected_with_padding_is_protected_row_by_row(model: PreTrainedModel, protect: Choice) -> None:
    ids, mask = IDS.clone(), torch.ones_like(IDS)
    ids[0, 11] = ids[1, 9] = 7
    mask[1, :3] = 0
    chosen = columns_of_choice(protect, model, {"input_ids": ids, "attention_mask": mask})
    assert chosen.any(1).all()
    found = read(model, quantized_cache(model, KEYS, VALUES, protect), ids, mask)
    wanted = read(model, naive(model, ids, chosen, [0, 3]), ids, mask)
    torch.testing.assert_close(found[mask.bool()], wanted[mask.bool()], atol=2e-5, rtol=1e-4)
    other = read(model, quantized_cache(model, KEYS, VALUES), ids, mask)
    assert (found - other)[mask.bool()].abs().max() > 1e-3


def test_with_room_for_all_generate_writes_what_it_would(model: PreTrainedModel) -> None:
    for options in ({}, {"num_beams": 3}, {"num_return_sequences": 2, "num_beams": 2}, {"do_sample": True}):
        torch.manual_seed(0)
        wanted = generated(model, DynamicCache(config=model.config), **options)
        torch.manual_seed(0)
        cache = quantized_cache(model, KEYS, VALUES, First(1), window=60)
        assert torch.equal(generated(model, cache, **options), wanted)


@pytest.mark.parametrize("beams", [1, 3])
def test_generate_writes_what_it_writes_over_naive_layers(model: PreTrainedModel, beams: int) -> None:
    """Blocks close while beams are permuted: a naive layer rounds whatever rows it has."""
    protect = torch.zeros(2 * beams, 40, dtype=torch.bool)
    cache = naive_cache(
        model.config,
        lambda: NaiveLayer(*SIDES, 0, [0] * 2 * beams, protect),
        list(range(model.config.num_hidden_layers)),
    )
    options = {"num_beams": beams, "output_scores": True, "return_dict_in_generate": True}
    wanted, found = (generated(model, each, **options) for each in (cache, quantized_cache(model, KEYS, VALUES)))  # type: ignore[arg-type]
    assert torch.equal(found.sequences, wanted.sequences)  # type: ignore[attr-defined]
    if beams == 1:
        torch.testing.assert_close(torch.stack(found.scores), torch.stack(wanted.scores), atol=2e-5, rtol=1e-4)  # type: ignore[attr-defined]


def test_padded_rows_are_written_as_they_would_be_alone(model: PreTrainedModel) -> None:
    mask = torch.ones_like(IDS)
    mask[1, :5] = 0
    together = generated(model, quantized_cache(model, KEYS, VALUES, First(1)), attention_mask=mask)
    alone = generated(model, quantized_cache(model, KEYS, VALUES, First(1)), IDS[1:, 5:])
    assert torch.equal(together[1, 5:], alone[0])


def test_copies_and_reset(model: PreTrainedModel) -> None:
    cache = quantized_cache(model, KEYS, VALUES, First(1))
    first = read(model, cache, IDS)
    twin = deepcopy(cache)
    with torch.no_grad():
        after = [model(IDS[:, :1], past_key_values=one).logits for one in (cache, twin)]
    assert torch.equal(*after)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(read(model, cache, IDS), first)


def test_inference_mode_can_be_left(model: PreTrainedModel) -> None:
    wanted = read(model, quantized_cache(model, KEYS, VALUES), IDS)
    cache, found = quantized_cache(model, KEYS, VALUES), []
    for start, stop in [(0, 7), *((t, t + 1) for t in range(7, 19))]:
        with torch.inference_mode() if start % 2 else torch.no_grad():
            found.append(model(IDS[:, start:stop], past_key_values=cache).logits.clone())
    torch.testing.assert_close(torch.cat(found, 1), wanted)


@torch.no_grad()
def test_it_holds_what_the_formula_says() -> None:
    nano = ss.load("nano")
    for bits, group in ((2, 32), (4, 16)):
        cache = quantized_cache(nano, Grid(bits, "channel", group=group), Grid(bits, "token"), First(1))
        nano(torch.randint(3, 2000, (4, 120)), past_key_values=cache)
        closed = 120 // group * group
        per_token = len(cache.layers) * 4 * nano.config.kv_heads * 32
        bits_stored = effective_bits(Grid(bits, "channel", group=group), (group, 32)) + effective_bits(
            Grid(bits), (1, 32)
        )
        formula = per_token * (closed * bits_stored / 8 + (120 - closed + 1) * 2 * 4)
        assert formula <= held_bytes(cache) <= 1.1 * formula


@torch.no_grad()
def test_measured_sinks_are_found_in_the_first_pass_wherever_they_stand() -> None:
    nano = ss.load("nano")
    ids = torch.randint(3, 2000, (2, 64), generator=torch.Generator().manual_seed(0))
    bos = nano.config.bos_token_id
    ids[:, 0] = bos
    ids[1, 30] = bos
    cache = quantized_cache(nano, KEYS, VALUES, Measured(0.3))
    with ss.observe(nano) as seen:
        nano(ids, past_key_values=cache)
        nano(ids[:, 5:6], past_key_values=cache)
    assert seen.measurement().data.sizes["sample"] == 2  # the pass that looks for sinks is nobody else's
    wanted = columns_of_choice(find_tokens(nano, ids, Measured(0.3, by="row")), nano, {"input_ids": ids})
    assert wanted[1].nonzero().flatten().tolist() == [0, 30]
    for layer in cache.quantized:
        rows, columns = layer._protected_at  # type: ignore[misc]
        assert torch.equal(torch.stack([rows, columns], 1), wanted.nonzero())


@torch.no_grad()
def test_a_choice_in_known_texts_holds_for_them_and_for_nothing_behind(model: PreTrainedModel) -> None:
    known = resolved(Positions(1, 11), model, {"input_ids": IDS[:, :12]})
    wanted = torch.zeros_like(IDS, dtype=torch.bool)
    wanted[:, [1, 11]] = True
    found = read(model, quantized_cache(model, KEYS, VALUES, known), IDS)
    torch.testing.assert_close(found, read(model, naive(model, IDS, wanted), IDS), atol=2e-5, rtol=1e-4)
    generated(model, quantized_cache(model, KEYS, VALUES, known), IDS[:, :12])
    with pytest.raises(InputError, match="not one of the 2"):
        read(model, quantized_cache(model, KEYS, VALUES, known), IDS + 1)


def test_what_is_observed_through_it_is_what_ran(model: PreTrainedModel) -> None:
    """Through the cache token by token, what an observer sees is what it sees of the simulation in one pass."""
    from sinkscope.quantization import QuantizeCache

    grids = Grid(2, "token"), Grid(2, "token")
    with torch.no_grad():
        with ss.observe(model) as seen:
            read(model, quantized_cache(model, *grids), IDS, prompt=1)
        with QuantizeCache(*grids).applied(model):
            whole = ss.measure(model, {"input_ids": IDS})
    found = seen.measurement().data["attention_received"].values
    assert abs(found - whole.data["attention_received"].values).max() < 1e-5
    plain = ss.measure(model, {"input_ids": IDS}).data["attention_received"].values
    assert abs(found - plain).max() > 1e-3


@pytest.mark.parametrize("name", slow_but(("falcon_h1",), ("falcon_h1", "zamba2", "jamba", "qwen3_next")))
def test_layers_beside_recurrent_states_are_rounded_and_states_are_not(name: str) -> None:
    model = (FAMILIES | COLLECTED)[name].build("sdpa")
    wanted = read(model, DynamicCache(config=model.config), IDS, prompt=18)
    cache = quantized_cache(model, KEYS, VALUES, window=60)
    torch.testing.assert_close(read(model, cache, IDS, prompt=18), wanted)
    found = read(model, quantized_cache(model, KEYS, VALUES), IDS, prompt=18)
    assert torch.equal(found[:, :18], wanted[:, :18])
    assert (found - wanted).abs().max() > 1e-6
    cache.reorder_cache(torch.tensor([1, 1]))
    cache.reset()
    assert cache.get_seq_length() == 0


@pytest.mark.parametrize("name", ["deepseek_v3"])
def test_a_latent_is_rounded_where_it_is_cached(name: str) -> None:
    model = FAMILIES[name].build("eager")
    side = Side(2, "channel", 4), Side(3, "token")
    zeros = torch.zeros_like(IDS, dtype=torch.bool)
    layers = list(range(model.config.num_hidden_layers))
    cache = naive_cache(model.config, lambda: NaiveLayer(*side, 0, [0, 0], zeros), layers)
    found = read(model, quantized_cache(model, KEYS, VALUES), IDS)
    torch.testing.assert_close(found, read(model, cache, IDS), atol=2e-5, rtol=1e-4)


def test_what_it_would_get_wrong_is_refused(model: PreTrainedModel) -> None:
    cache = quantized_cache(model, KEYS, VALUES)
    with pytest.raises(InputError, match="no_grad"):
        model(IDS, past_key_values=cache)
    with pytest.raises(InputError, match="use_cache"):
        model(IDS, past_key_values=quantized_cache(model, KEYS, VALUES), use_cache=False)
    with pytest.raises(InputError, match="needs the model"):
        quantized_cache(model.config, KEYS, VALUES)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole 'head'"):
        quantized_cache(model, Grid(2, "head"), VALUES)
    with pytest.raises(ValueError, match="cropped"):  # transformers itself asks from 5.24 on
        generated(model, quantized_cache(model, KEYS, VALUES), IDS[:1].repeat(1, 2), prompt_lookup_num_tokens=2)
    cache = quantized_cache(model, KEYS, VALUES)
    generated(model, cache)
    with pytest.raises(InputError, match="rows continue at"):
        generated(model, cache)
    with pytest.raises(InputError, match="cannot be saved"):
        cache.save("nowhere.safetensors")


@pytest.mark.parametrize(
    ("name", "says"),
    [("mistral", "no layer of plain full attention"), ("bert", "is an encoder|no cache"), ("t5", "encoder-decoder")],
)
def test_models_without_such_a_cache_are_refused_by_name(name: str, says: str) -> None:
    family = (FAMILIES | COLLECTED)[name]
    with pytest.raises(UnsupportedModelError, match=says):
        quantized_cache(family.build(family.hosts[0]), KEYS, VALUES)


def lab(attention: str) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return LabForCausalLM(LabConfig(vocab_size=90, attention=attention, **sizes)).eval()


def test_numbers_that_travel_with_keys_are_not_rounded() -> None:
    softmax = lab("softmax")
    found = read(softmax, quantized_cache(softmax, KEYS, VALUES), IDS)
    torch.testing.assert_close(found, read(softmax, naive(softmax, IDS), IDS), atol=2e-5, rtol=1e-4)
    forgetting = lab("forgetting_gate")
    with pytest.raises(InputError, match="to its keys"):
        read(forgetting, quantized_cache(forgetting, KEYS, VALUES), IDS)


def test_tasks_are_scored_through_it(model: PreTrainedModel) -> None:
    """What lm-eval's adapter asks: log p of a continuation, read token by token behind the context."""
    context, continuation = IDS[0, :12].tolist(), IDS[0, 12:].tolist()
    total, _ = summed(model, cached("ours", lambda model: quantized_cache(model, KEYS, VALUES)), context, continuation)
    logs = read(model, quantized_cache(model, KEYS, VALUES), IDS[:1], prompt=12).double().log_softmax(-1)[0]
    assert total == pytest.approx(float(sum(logs[11 + n, token] for n, token in enumerate(continuation))), abs=1e-4)
    plain, _ = summed(model, unchanged(), context, continuation)
    assert abs(total - plain) > 1e-3


def test_it_is_a_cache_of_its_model_alone(model: PreTrainedModel) -> None:
    cache = quantized_cache(model, KEYS, VALUES)
    assert isinstance(cache, SinkQuantizedCache)
    assert cache.left_alone == []
    with pytest.raises(InputError, match="follows the model"), torch.no_grad():
        deepcopy(model)(IDS, past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize(("tokens", "pads", "coming"), [(5, 0, 2), (7, 0, 1), (8, 0, 3), (5, 2, 1), (6, 3, 1)])
def test_so_many_tokens_may_come_together_before_some_row_completes_a_block(
    model: PreTrainedModel, tokens: int, pads: int, coming: int
) -> None:
    """Blocks of 4: of 5 tokens, the next block is complete at 8, and of two rows with 2 pads in one, at 6 and 8."""
    cache = quantized_cache(model, KEYS, VALUES)
    mask = torch.ones(2, tokens, dtype=torch.long)
    mask[1, :pads] = 0
    model(IDS[:, :tokens], past_key_values=cache, attention_mask=mask)
    assert cache.until_rounding == coming
