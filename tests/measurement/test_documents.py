"""Packed documents are samples of their own: what a pass shows of each equals the document alone, array by array."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.attention import CATALOG, Causal, Document, Window
from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, HiddenNorms, Measurement, SlotReceived, measure, observe
from sinkscope.measurement.calls.masks import DenseMask
from sinkscope.measurement.documents import documents_of_mask, parts_of, recurrent_layers
from tests.measurement.conftest import build, lab_model
from tests.measurement.observers.naive import close

LENGTHS = ((12, 20, 9), (41,), (12, 20, 9))  # of the documents of three rows: two are cut alike, one is whole


def texts(row: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(row)
    return [torch.randint(3, 90, (1, length), generator=draw) for length in LENGTHS[row]]


def packed(rows: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, positions within documents, and the number of each token's document."""
    ids = torch.cat([torch.cat(texts(row), 1) for row in rows])
    places = torch.stack([torch.cat([torch.arange(length) for length in LENGTHS[row]]) for row in rows])
    return ids, places, (places == 0).cumsum(-1)


def block_diagonal(numbers: Tensor) -> Tensor:
    same = numbers[:, :, None] == numbers[:, None, :]
    return (same & torch.ones_like(same).tril())[:, None]


def check_alone(
    found: Measurement, model: nn.Module, rows: tuple[int, ...], observers: object, tolerance: float
) -> None:
    """Every array of every document is that of the document by itself."""
    data, sample = found.data, 0
    assert data["row"].values.tolist() == [at for at, row in enumerate(rows) for _ in LENGTHS[row]]
    starts = [int(start) for row in rows for start in np.cumsum((0, *LENGTHS[row][:-1]))]
    assert data["start"].values.tolist() == starts
    for row in rows:
        for text in texts(row):
            alone = measure(model, text, observers).data
            for name, wanted in alone.data_vars.items():
                same(data[name], wanted, sample, tolerance)
            ids = data["token_id"].values[sample]
            assert ids[ids >= 0].tolist() == text[0].tolist()
            sample += 1
    assert sample == data.sizes["sample"]


def same(found: xr.DataArray, wanted: xr.DataArray, sample: int, tolerance: float) -> None:
    """NaN beyond what the document alone has."""
    axis = "sample" if "sample" in found.dims else "kept"
    if axis == "kept" and sample >= 4:  # as many as are kept by default
        return
    mine, own = found.isel({axis: sample}).values, wanted.isel({axis: 0}).values
    part = tuple(slice(0, size) for size in own.shape)
    np.testing.assert_allclose(mine[part], own, rtol=tolerance, atol=tolerance, err_msg=str(found.name))
    assert np.isfinite(mine).sum() == np.isfinite(own).sum(), found.name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "host"), [("llama", "sdpa"), ("llama", "eager"), ("mistral", "sdpa")])
def test_positions_that_start_anew_make_samples_for_every_observer(name: str, host: str) -> None:
    ids, places, _ = packed((0, 1, 2))
    model = build(name, host)
    found = measure(model, {"input_ids": ids, "position_ids": places}, "all")
    check_alone(found, model, (0, 1, 2), "all", 1e-6)
    assert found.record["packed"] == {"rows": 3, "documents": 7}


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_a_block_diagonal_mask_makes_samples(kind: str) -> None:
    ids, places, numbers = packed((0,))
    mask = block_diagonal(numbers)
    if kind == "additive":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    model = build("llama")
    inputs = {"input_ids": ids, "position_ids": places, "attention_mask": mask}
    found = measure(model, inputs, [AttentionReceived(), HiddenNorms()])
    check_alone(found, model, (0,), [AttentionReceived(), HiddenNorms()], 1e-6)


OPERATIONS = ["softmax", "sink_logit", "sigmoid_bias", "gated_head", "kv_bias", "stable_mask"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [("softmax", torch.float32), *((name, torch.float64) for name in OPERATIONS)]
)
def test_documents_of_lab_models_make_samples(name: str, dtype: torch.dtype) -> None:
    """What is left of a difference is the model's own, whose products sum rows of other lengths in another order.

    In float64 its logits agree to 1e-12, and what is measured, in float32 from there on, to that type's rounding.
    """
    spec = CATALOG[name]
    model = lab_model(replace(spec, mask=spec.mask & Document()), restart_positions=True).to(dtype)
    tolerance = 5e-6 if dtype == torch.float32 else 2e-7
    ids, _, numbers = packed((0, 1, 2))
    found = measure(model, {"input_ids": ids, "document_ids": numbers}, "all")
    with torch.no_grad():
        logits = model(ids, document_ids=numbers).logits
    data, sample = found.data, 0
    for row in range(3):
        start = 0
        for text in texts(row):
            inputs = {"input_ids": text, "document_ids": torch.zeros_like(text)}
            for variable, wanted in measure(model, inputs, "all").data.data_vars.items():
                same(data[variable], wanted, sample, tolerance)
            with torch.no_grad():
                own = model(**inputs).logits
            mine = logits[row : row + 1, start : start + text.shape[1]]
            torch.testing.assert_close(mine, own, atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=0)
            start += text.shape[1]
            sample += 1
    assert sample == 7


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "layers"),
    [("bamba", [0]), ("falcon_h1", [0, 1]), ("lfm2", [0]), ("llama", [])],
)
def test_the_record_notes_states_that_go_on_from_one_document_to_the_next(name: str, layers: list[int]) -> None:
    """The first of them is where a later document begins to differ from itself alone."""
    model = build(name, "eager").double()
    ids, places, _ = packed((0,))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = measure(model, {"input_ids": ids, "position_ids": places}, [HiddenNorms()])
    assert recurrent_layers(model) == layers
    note = found.record["packed"].get("note", "")
    assert re.findall(r"\d+", note) == [str(layer) for layer in layers]
    assert any(str(each.message) == note for each in said) == bool(layers)
    alone = measure(model, texts(0)[1], [HiddenNorms()]).data["hidden_norm"].values[0]
    changed = np.abs(found.data["hidden_norm"].values[1][:, : alone.shape[1]] - alone).max(-1) > 1e-6
    assert changed.any() == bool(layers)
    assert not layers or int(changed.argmax()) == layers[0] + 1


def test_intervals_count_documents() -> None:
    ids, places, _ = packed((0,))
    found = measure(build("llama"), {"input_ids": ids, "position_ids": places})
    apart = found.sink_rate_interval(0, 0.05)
    whole = measure(build("llama"), {"input_ids": ids, "position_ids": places}, apart=False)
    assert found.data.sizes["sample"] == 3
    assert whole.data.sizes["sample"] == 1
    assert apart.low <= apart.value <= apart.high
    assert np.isnan(whole.sink_rate_interval(0, 0.05).low), "one sample has no interval"


def test_a_layer_that_shows_across_makes_the_row_whole() -> None:
    """With a cache of its own the model does not read from positions that documents are apart."""
    model = build("llama")
    ids, places, _ = packed((0,))
    with torch.no_grad(), observe(model, AttentionReceived()) as seen, pytest.warns(UserWarning, match="read whole"):
        model(input_ids=ids, position_ids=places, use_cache=True)
    data = seen.measurement().data
    with torch.no_grad(), observe(model, AttentionReceived(), apart=False) as asked:
        model(input_ids=ids, position_ids=places, use_cache=True)
    whole = asked.measurement().data
    assert data.sizes["sample"] == 1
    close(data["attention_received"], whole["attention_received"])
    assert data["visible_queries"].values[0, 0].tolist() == list(range(41, 0, -1))


class Masking(nn.Module):
    """A model that makes a block-diagonal mask by itself."""

    def __init__(self, model: PreTrainedModel, mask: Tensor) -> None:
        super().__init__()
        self.inner, self.mask = model, mask
        self.config = model.config

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> object:
        return self.inner(input_ids, attention_mask=self.mask, position_ids=position_ids, use_cache=False)


def test_documents_that_only_masks_tell_apart_make_samples_as_well() -> None:
    ids, places, numbers = packed((0,))
    model = build("llama")
    with torch.no_grad(), observe(Masking(model, block_diagonal(numbers)), AttentionReceived(), HiddenNorms()) as seen:
        seen.model(ids, position_ids=places)
    check_alone(seen.measurement(), model, (0,), [AttentionReceived(), HiddenNorms()], 1e-6)


def test_a_cache_of_packed_documents_is_not_gone_on_with() -> None:
    ids, _, numbers = packed((0,))
    model = build("llama")
    with torch.no_grad(), observe(model, AttentionReceived()):
        cache = model(ids, attention_mask=block_diagonal(numbers), use_cache=True).past_key_values
        with pytest.raises(InputError, match="apart=False"):
            model(ids[:, :1], past_key_values=cache)


def test_plain_rows_windows_and_padding_are_one_document_each() -> None:
    model = build("mistral")
    ids = torch.randint(3, 90, (2, 24))
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inputs in (ids, {"input_ids": ids, "attention_mask": mask}):
            found = measure(model, inputs, [AttentionReceived()])
            assert found.data.sizes["sample"] == 2
            assert "packed" not in found.record


def test_a_packed_slot_is_the_mean_over_its_documents() -> None:
    model = lab_model(replace(CATALOG["sink_logit"], mask=Causal() & Document()), restart_positions=True)
    ids, _, numbers = packed((0,))
    inputs = {"input_ids": ids, "document_ids": numbers}
    apart, whole = (
        measure(model, inputs, [SlotReceived()], apart=each).data["slot_received"] for each in (True, False)
    )
    weights = np.array(LENGTHS[0]) / sum(LENGTHS[0])
    close((apart.values * weights[:, None, None]).sum(0), whole.values[0])


@pytest.mark.parametrize(
    ("borders", "spans"),
    [([], []), ([5], [(0, 5), (5, 9)]), ([1, 5], [(0, 1), (1, 5), (5, 9)])],
)
def test_borders_are_read_from_masks(borders: list[int], spans: list[tuple[int, int]]) -> None:
    numbers = torch.zeros(1, 9, dtype=torch.long)
    for border in borders:
        numbers[:, border:] += 1
    for mask in (block_diagonal(numbers), (numbers[:, :, None] == numbers[:, None, :])[:, None]):
        found = documents_of_mask(DenseMask(mask))
        parts = [] if found is None else parts_of(found)
        assert [(part.columns.start, part.columns.stop) for part in parts] == spans


def test_a_mask_without_documents_has_none() -> None:
    triangle = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    diagonal = torch.eye(9, dtype=torch.bool)[None, None]
    padded = triangle.clone()
    padded[..., :4, :] = padded[..., :4] = False
    for mask in (triangle, triangle.triu(-2), diagonal, padded, torch.ones_like(triangle)):
        found = documents_of_mask(DenseMask(mask))
        assert found is None or not parts_of(found)


def test_windows_within_documents_count_what_they_see() -> None:
    model = lab_model(replace(CATALOG["softmax"], mask=Causal() & Window(4) & Document()), restart_positions=True)
    ids, _, numbers = packed((0,))
    data = measure(model, {"input_ids": ids, "document_ids": numbers}, [AttentionReceived()]).data
    for sample, length in enumerate(LENGTHS[0]):
        wanted = np.minimum(4, np.arange(length, 0, -1))
        assert data["visible_queries"].values[sample, 0, :length].tolist() == wanted.tolist()
