"""Policies for images in a vision-language model: what they keep of a picture's tokens, from the model's own maps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sinkscope.caches import Policy, evicting
from sinkscope.caches.policies import FastV, ImageEdges, LookM
from sinkscope.errors import InputError
from tests.families.inputs import IMAGE_TOKEN
from tests.families.registry import FAMILIES

BEGIN, END = 91, 90
BUDGET = 36
SEERS = ("llava", "smolvlm")


def seen_and_read(name: str) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    """The model under eager attention, a text with a picture between its marks, and which tokens stand for it."""
    family = FAMILIES[name]
    model, given = family.build("eager"), family.inputs(samples=2)
    ids = given["input_ids"]
    image = ids == IMAGE_TOKEN
    columns = image[0].nonzero()[:, 0]
    ids[(ids == BEGIN) | (ids == END)] = 5
    ids[:, int(columns[0]) - 1], ids[:, int(columns[-1]) + 1] = BEGIN, END
    return model, given, image[0]


def kept(model: nn.Module, given: dict[str, Tensor], policy: Policy, budget: int) -> list[list[list[set[int]]]]:
    """Columns kept of the prompt, by layer, row and head."""
    with evicting(model, policy, budget) as cache, torch.no_grad():
        model(**given, past_key_values=cache)
    return [[[set(head) for head in row] for row in layer.places.tolist()] for layer in cache.kept]


def maps(model: nn.Module, given: dict[str, Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return list(model(**given, output_attentions=True, use_cache=False).attentions)


@pytest.mark.parametrize("name", SEERS)
def test_fastv_drops_the_tokens_of_the_image_that_the_last_query_sees_least(name: str) -> None:
    model, given, image = seen_and_read(name)
    text = int((~image).sum())
    budget = text + int(image.sum()) // 2
    first, second = kept(model, given, FastV((IMAGE_TOKEN,), layers=1), budget)
    assert {len(head) for row in first for head in row} == {len(image)}, "the first layer keeps everything"
    weights = maps(model, given)[1][:, :, -1].mean(1)
    for row, heads in enumerate(second):
        ranked = weights[row].masked_fill(~image, -1).argsort(descending=True)
        wanted = set((~image).nonzero()[:, 0].tolist()) | set(ranked[: budget - text].tolist())
        assert all(head == wanted for head in heads)


@pytest.mark.parametrize("name", SEERS)
def test_look_m_takes_what_is_seen_of_an_image_after_the_text(name: str) -> None:
    model, given, image = seen_and_read(name)
    text = int((~image).sum())
    for budget in (text - 4, text + 3):
        for layer, rows in enumerate(kept(model, given, LookM((IMAGE_TOKEN,), 2, 3), budget)):
            received = maps(model, given)[layer].sum(2).unflatten(1, (2, -1)).mean(2)  # of a head group
            ranked = received.double() - 1000.0 * image
            ranked[..., :2] = ranked[..., -3:] = torch.inf
            for row, heads in enumerate(rows):
                for head, found in enumerate(heads):
                    assert found == set(ranked[row, head].argsort(descending=True)[:budget].tolist())


@pytest.mark.parametrize("name", SEERS)
def test_borders_of_an_image_stay(name: str) -> None:
    model, given, image = seen_and_read(name)
    columns = image.nonzero()[:, 0]
    begin, end, length = int(columns[0]) - 1, int(columns[-1]) + 1, len(image)
    borders = {*range(max(0, begin - 4), begin + 8), *range(end - 8, min(length, end + 4))}
    wanted = {0, 1} | borders | set(range(length - 3, length))
    for rows in kept(model, given, ImageEdges((BEGIN,), (END,), 2, 3), len(wanted)):
        assert all(head == wanted for row in rows for head in row)


@pytest.mark.parametrize(
    "policy", [FastV((IMAGE_TOKEN,), 1), LookM((IMAGE_TOKEN,), 2, 3), ImageEdges((BEGIN,), (END,), 2, 3)]
)
def test_a_picture_is_written_about_with_room_for_all_as_without(policy: Policy) -> None:
    model, given, image = seen_and_read("llava")
    more = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with evicting(model, policy, len(image) + 5, "always") as cache:
        assert torch.equal(model.generate(**given, past_key_values=cache, **more), model.generate(**given, **more))
    with evicting(model, policy, BUDGET, "always") as cache:
        model.generate(**given, past_key_values=cache, **more)
    assert cache.kept[-1].places.shape[2] == BUDGET


def test_a_policy_that_skips_every_layer_is_refused() -> None:
    model, *_ = seen_and_read("llava")
    with pytest.raises(InputError, match=r"first 2 evicting layers, and this model has 2"):
        evicting(model, FastV((IMAGE_TOKEN,)), 12).__enter__()
