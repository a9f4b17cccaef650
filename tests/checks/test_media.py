"""The report card of models that read images: planted sinks, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch
import xarray as xr
from transformers import ViTModel

from sinkscope.checks import TextSet, check
from sinkscope.checks.sink import _anywhere_row, _heads
from sinkscope.errors import InputError
from sinkscope.measurement import measure
from tests.families.inputs import COLOURS, PATCH, SIDE
from tests.families.registry import FAMILIES

LAYERS, IMAGES = 2, 5
FIRST_QUERIES, FIRST_KEYS = (re.compile(rf"\.0\..*({names})$") for names in (r"q\w*\.bias", r"k\w*\.weight"))


def planted(*, on_class: bool) -> ViTModel:
    """Queries of the first layer look for one direction, which the class token or bright patches have.

    The second layer reads all tokens alike.
    """
    model = FAMILIES["vit"].build()
    with torch.no_grad():
        embeddings = model.embeddings
        embeddings.position_embeddings.zero_()
        embeddings.cls_token.zero_()
        patches = embeddings.patch_embeddings.projection
        patches.weight.zero_()
        patches.bias.zero_()
        if on_class:
            embeddings.cls_token[..., 0] = 1.0
        else:
            patches.weight[0] = 1.0
        for name, parameter in model.named_parameters():
            if "attention" in name:  # names differ between releases of transformers
                parameter.zero_()
            if FIRST_QUERIES.search(name):
                parameter.fill_(3.0)
            if FIRST_KEYS.search(name):
                parameter[:, 0] = 3.0
    return model


def one_bright_patch_each() -> torch.Tensor:
    """Black images; image i has its i-th patch white."""
    pixels = torch.zeros(IMAGES, COLOURS, SIDE, SIDE)
    across = SIDE // PATCH
    for number in range(IMAGES):
        top, left = PATCH * (number // across), PATCH * (number % across)
        pixels[number, :, top : top + PATCH, left : left + PATCH] = 1.0
    return pixels


def test_a_sink_on_the_class_token_is_found_at_its_position() -> None:
    card = check(planted(on_class=True), inputs={"pixel_values": torch.randn(IMAGES, COLOURS, SIDE, SIDE)})
    rows = {row.key: row for row in card.part("sink").first.rows}
    assert card.part("sink").first.facts["position"] == 0
    assert card.part("sink").first.facts["layers"] == [0]
    assert rows["rate"].number.value == rows["anywhere"].number.value == pytest.approx(100 / LAYERS)
    assert "5 images" in card.part("sink").first.answer


def test_a_sink_that_is_elsewhere_in_each_image_is_found_too() -> None:
    card = check(planted(on_class=False), inputs={"pixel_values": one_bright_patch_each()})
    rows = {row.key: row for row in card.part("sink").first.rows}
    assert rows["anywhere"].number.value == pytest.approx(100 / LAYERS)
    assert rows["rate"].number.value == pytest.approx(100 / LAYERS / IMAGES)


def test_heads_that_a_layer_lacks_and_tokens_that_few_queries_see_do_not_count() -> None:
    data = measure(FAMILIES["llama"].build(), FAMILIES["llama"].inputs()).data
    alpha = xr.zeros_like(data["attention_received"])
    alpha[..., -1] = 1.0  # the last token sees itself
    alpha.loc[{"head": 0, "position": 2, "layer": 1}] = 0.9
    alpha.loc[{"head": [2, 3], "layer": 1}] = float("nan")  # of a layer with half as many heads
    none = torch.zeros(3, 0, dtype=torch.long)
    images = TextSet("images", "", none, none[:0], samples="images")
    row = _anywhere_row(data.assign(attention_received=alpha), "decoder", images)
    layers, heads = data.sizes["layer"], data.sizes["head"]
    assert row.number.value == pytest.approx(100 / (heads - 2) / layers)
    assert _heads(alpha.transpose("sample", "layer", "head", "position").values).sum() == layers * heads - 2


def test_each_tower_has_its_own_rows_and_a_flag_is_of_all() -> None:
    model = FAMILIES["clip"].build()
    with torch.no_grad():
        for name, parameter in model.vision_model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()  # its attention is uniform
    card = check(model, inputs=FAMILIES["clip"].inputs())
    rows = {row.key: row for row in card.part("sink").first.rows}
    assert {key.partition(":")[2] for key in rows} == {"vision", "encoder"}
    measured = measure(model, FAMILIES["clip"].inputs())
    for stack in ("vision", "encoder"):
        rate = measured.sink_rate(0.3, stack=stack).max()
        assert rows[f"rate:{stack}"].number.value <= float(rate) + 1e-6
    assert rows["rate:vision"].number.value == 0 < rows["rate:encoder"].number.value
    assert not card.raises("no-sink")


def test_other_images_are_other_texts() -> None:
    model, pixels = planted(on_class=True), torch.randn(IMAGES, COLOURS, SIDE, SIDE)
    one, same, other = (check(model, inputs={"pixel_values": each}) for each in (pixels, pixels.clone(), pixels + 1))
    assert one.record["texts"][0]["sha256"] == same.record["texts"][0]["sha256"]
    assert one.against(same)["difference"].abs().max() == 0
    with pytest.raises(InputError, match="made on other texts"):
        one.against(other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": {"input_ids": torch.ones(3, 8, dtype=torch.long)}}, "texts are given as texts"),
        ({"inputs": {"pixel_values": torch.zeros(1, COLOURS, SIDE, SIDE)}}, "at least 2 are needed"),
        ({"inputs": {"pixel_values": torch.zeros(3, COLOURS, 7, 7)}}, "cannot read these images"),
        ({"inputs": {"pixel_values": torch.zeros(3, COLOURS, SIDE, SIDE)}, "texts": ["a"]}, "exclude each other"),
    ],
)
def test_what_cannot_be_read_is_refused(options: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check(planted(on_class=True), **options)
