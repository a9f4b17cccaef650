"""The sweep over T against shorter texts, and kept keys against those of the calls."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, measure, observe, received
from sinkscope.measurement.observers.kept import KeyVectors
from sinkscope.measurement.observers.lengths import ReceivedByLength
from tests.measurement.conftest import build
from tests.measurement.observers.naive import ALL, HUB, close, look
from tests.measurement.test_batches import padded

LENGTHS = (4, 7, 16, 24, 25)
CAUSAL = [name for name in ALL if name not in ("bert", "t5")]
NAME = "attention_received_by_length"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "position"), list(product(CAUSAL, (0, 5))))
def test_each_length_is_a_text_of_that_length(name: str, position: int, ids: torch.Tensor) -> None:
    model = build(name)
    data = measure(model, ids, [ReceivedByLength(LENGTHS, position)]).data
    found = data[NAME]
    assert found.dims == ("sample", "layer", "head", "length")
    assert found["length"].values.tolist() == list(LENGTHS)
    for length in LENGTHS[:-1]:
        here = found.sel(length=length)
        if length <= position:
            assert bool(here.isnull().all())
            continue
        alone = measure(model, ids[:, :length], [AttentionReceived([position])]).data
        close(here, alone["attention_received"][..., 0], 2e-5)
        share = data["visible_share_by_length"].sel(length=length)
        ratio = received(alone, denominator="paper")[..., 0] / received(alone)[..., 0]
        close(np.broadcast_to(share.values[..., None], ratio.shape), ratio, 2e-5)
    assert bool(found.sel(length=25).isnull().all()), "no text is that long"


@pytest.mark.filterwarnings("ignore:sink rates say little")
def test_a_sweep_counts_queries_as_rates_do(ids: torch.Tensor) -> None:
    """A window of 8 hides the first token from most queries: the paper counts these."""
    model = build("mistral")
    found = measure(model, ids, [ReceivedByLength((16, 24)), AttentionReceived([0])])
    for denominator in ("visible", "paper"):
        sweep = found.sweep((0.1, 0.2), denominator=denominator).sel(length=24)
        assert sweep.values.tolist() == [found.sink_rate(epsilon, 0, denominator=denominator) for epsilon in (0.1, 0.2)]
    assert bool((found.sweep((0.1,), denominator="paper") < found.sweep((0.1,))).any())
    with pytest.raises(InputError, match="denominator"):
        found.sweep(denominator="papr")


@pytest.mark.parametrize("name", ["llama", "lab:sigmoid"])
def test_lengths_count_real_tokens(name: str, ids: torch.Tensor) -> None:
    model, lengths = build(name), [24, 19, 13]
    together = measure(model, padded(ids, lengths, "left"), [ReceivedByLength(LENGTHS)]).data[NAME]
    for row, length in enumerate(lengths):
        alone = measure(model, ids[row : row + 1, -length:], [ReceivedByLength(LENGTHS)]).data[NAME]
        close(together[row : row + 1], alone, 2e-5)
        assert bool(together[row].notnull().all(("layer", "head")).values.tolist()[LENGTHS.index(4)])
        assert bool(together[row, ..., -1].isnull().all())


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "lab:sigmoid"])
def test_cached_passes_go_on_counting(name: str, ids: torch.Tensor) -> None:
    model, observer = build(name), ReceivedByLength(LENGTHS)
    cache = DynamicCache(config=model.config)
    with observe(model, observer) as seen, torch.no_grad():
        for start, stop in ((0, 9), (9, 10), (10, 24)):
            model(ids[:, start:stop], past_key_values=cache, use_cache=True)
    close(seen.measurement().data[NAME], measure(model, ids, [observer]).data[NAME], 2e-5)


def test_what_looks_ahead_has_no_shorter_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NAME not in look("bert", monkeypatch, ReceivedByLength(), AttentionReceived())[0]
    data, _ = look("t5", monkeypatch, ReceivedByLength((16,)))
    known = data[NAME].notnull().all(("sample", "head", "length")).values
    assert data["stack"].values[known].tolist() == ["decoder", "decoder"]
    assert bool(data[NAME][:, ~known].isnull().all())


@pytest.mark.parametrize("wrong", [(), (0,), (-3, 4)])
def test_lengths_that_are_none_are_refused(wrong: tuple) -> None:
    with pytest.raises(InputError, match="expected numbers of tokens"):
        ReceivedByLength(wrong)


def test_a_position_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="position = -1"):
        ReceivedByLength(position=-1)


@pytest.mark.parametrize("name", HUB)
def test_keys_are_those_of_the_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, KeyVectors(2, (0, 3, 18, 40)))
    vectors = data["key_vectors"]
    assert vectors.dims == ("kept", "layer", "head", "kept_position", "key_dim")
    assert vectors.sizes["kept"] == 2
    for index, layer in enumerate(layers):
        keys = layer.call.key.repeat_interleave(layer.call.group, 1)[:2, :, [0, 3, 18]]
        close(vectors[:, index, :, :3, : keys.shape[-1]], keys, 1e-6)
    assert bool(vectors.sel(kept_position=40).isnull().all())


def test_keys_of_padded_and_cached_rows_are_those_of_the_row_alone(ids: torch.Tensor) -> None:
    model, observer, lengths = build("llama"), KeyVectors(3, (0, 2, 8, 16)), [12, 9, 7]
    inputs = padded(ids[:, :12], lengths, "left")
    mask = torch.cat([inputs["attention_mask"], torch.ones(3, 12, dtype=torch.long)], 1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    with observe(model, observer) as seen, torch.no_grad():
        cache = model(**inputs, position_ids=places[:, :12], use_cache=True).past_key_values
        model(ids[:, 12:], attention_mask=mask, past_key_values=cache, position_ids=places[:, 12:])
    together = seen.measurement().data["key_vectors"]
    for row, length in enumerate(lengths):
        alone = measure(model, ids[row : row + 1, 12 - length :], [observer]).data["key_vectors"][0]
        close(together[row], alone, 2e-5)


def test_only_the_first_samples_are_kept(ids: torch.Tensor) -> None:
    model = build("llama")
    whole = measure(model, ids, [KeyVectors(4, (0, 5))]).data["key_vectors"]
    assert whole.sizes["kept"] == 3
    for batch in (1, 2, 3):
        data = measure(model, ids, [KeyVectors(2, (0, 5)), AttentionReceived([0])], batch_size=batch).data
        assert data.sizes["sample"] == 3
        close(data["key_vectors"], whole[:2], 1e-5)


def test_keys_from_before_the_observation_are_not_there(ids: torch.Tensor) -> None:
    model, cache = build("llama"), DynamicCache()
    with torch.no_grad():
        model(ids[:, :10], past_key_values=cache)
        with observe(model, KeyVectors(1, (0, 9, 10, 20))) as seen:
            model(ids[:, 10:], past_key_values=cache)
    known = seen.measurement().data["key_vectors"].notnull().all(("kept", "layer", "head", "key_dim"))
    assert known.values.tolist() == [False, False, True, True]


@pytest.mark.parametrize(("kept", "positions"), [(0, (0,)), (2, ()), (2, (-1,))])
def test_keys_of_nothing_are_refused(kept: int, positions: tuple) -> None:
    with pytest.raises(InputError):
        KeyVectors(kept, positions)
