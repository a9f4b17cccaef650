"""The planted models have what the plant says, and nothing else. Truth: eager maps and hooks (`reading.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

import sinkscope as ss
from tests.planted.factory import F3, NULL, SINK_TOKEN, Plant, null_model, planted_ids, planted_model
from tests.planted.families import ENCODER_PLANT, planted_encoder, planted_gpt2
from tests.planted.reading import Reading, read

LAYERS, HEADS, TOKENS = 4, 4, 32
PLANTS = {
    "f3": F3,
    "in the embedding": Plant(onset=0),
    "late": Plant(onset=3),
    "decays": Plant(sinks=(7,), onset=2, decay=3),
    "elsewhere": Plant(sinks=(7,), dimension=40),
    "broadcast": Plant(value="broadcast"),
    "some heads": Plant(heads=((1, 0), (2, 3))),
    "no massive activation": Plant(massive=False),
    "no massive activation, elsewhere, broadcast": Plant(massive=False, sinks=(7,), value="broadcast", onset=0),
    "no massive activation, decays": Plant(massive=False, decay=3),
    "no sink": Plant(attended=False),
    "no sink, elsewhere": Plant(attended=False, sinks=(7,)),
    "nothing": NULL,
}


@pytest.fixture(params=PLANTS.values(), ids=PLANTS.keys())
def plant(request: pytest.FixtureRequest) -> Plant:
    return request.param


@pytest.fixture
def reading(plant: Plant) -> Reading:
    return read(planted_model(plant), planted_ids(plant))


def seen_by_half(received: torch.Tensor) -> torch.Tensor:
    """Positions that at least half of the queries see."""
    return received[..., : TOKENS // 2 + 1]


def test_attention_goes_to_the_sink_in_the_planted_heads_and_nowhere_else(plant: Plant, reading: Reading) -> None:
    received = seen_by_half(reading.received())
    expected = torch.zeros_like(received, dtype=torch.bool)
    for layer, head in plant.attending(LAYERS, HEADS):
        expected[layer, :, head, list(plant.sinks)] = True
    assert (received[expected] > 0.98).all()
    assert (received[~expected] < 0.2).all()


def test_the_massive_activation_is_where_it_was_planted(plant: Plant, reading: Reading) -> None:
    for depth in range(LAYERS + 1):
        there = plant.massive and depth in plant.depths(LAYERS)
        assert reading.massive(depth) == ({(sink, plant.dimension) for sink in plant.sinks} if there else set())
        for sink in plant.sinks:
            entry = reading.hidden[depth][:, sink, plant.dimension]
            wanted = plant.size if depth in plant.depths(LAYERS) else 0.0
            torch.testing.assert_close(entry, torch.full_like(entry, wanted), atol=1e-2, rtol=0)


def test_everything_else_is_moderate(plant: Plant, reading: Reading) -> None:
    rest = reading.hidden.clone()
    for sink in plant.sinks:
        rest[:, :, sink, plant.dimension] = 0
    assert rest.abs().max() < 3
    assert ((rest.abs().flatten(2).median(2).values > 0.1) & (rest.abs().flatten(2).median(2).values < 0.5)).all()


def test_values_are_drained_or_broadcast(plant: Plant, reading: Reading) -> None:
    for sink in plant.sinks:
        ratio = reading.value_ratio(sink)
        for layer in range(LAYERS):
            if layer not in plant.depths(LAYERS):
                drained = not plant.massive
                assert ratio[layer] < 0.15 if drained else 0.5 < ratio[layer] < 1.5
            elif plant.value == "drained":
                assert ratio[layer] < (0.01 if plant.massive else 0.1)
            else:
                assert 0.75 < ratio[layer] < 1.25


def test_measure_agrees(plant: Plant) -> None:
    rate = ss.measure(planted_model(plant), planted_ids(plant)).sink_rate()
    wanted = torch.zeros(TOKENS // 2 + 1)
    wanted[list(plant.sinks)] = 100 * len(plant.attending(LAYERS, HEADS)) / (LAYERS * HEADS)
    torch.testing.assert_close(torch.as_tensor(rate.values[: TOKENS // 2 + 1], dtype=torch.float32), wanted)


def test_two_sinks_share_the_attention() -> None:
    plant = Plant(sinks=(0, 7))
    maps = read(planted_model(plant), planted_ids(plant)).maps
    for layer, head in plant.attending(LAYERS, HEADS):
        both = maps[layer, :, head, 7:][..., [0, 7]]
        assert ((both > 0.45) & (both < 0.55)).all()
        assert (maps[layer, :, head, :7, 0] > 0.98).all()


@pytest.mark.parametrize("plant", [F3, Plant(massive=False), Plant(sinks=(7,), onset=0), Plant(value="broadcast")])
def test_without_the_entry_there_is_no_sink(plant: Plant) -> None:
    model = planted_model(plant)

    def erase(_: object, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden = args[0].clone()
        hidden[:, list(plant.sinks), plant.dimension] = 0
        return (hidden, *args[1:])

    model.model.layers[plant.onset].register_forward_pre_hook(erase)
    assert (seen_by_half(read(model, planted_ids(plant)).received()) < 0.2).all()


def test_a_broadcast_is_one_vector_for_every_query() -> None:
    plant = Plant(value="broadcast")
    reading = read(planted_model(plant), planted_ids(plant))
    outputs = torch.einsum("lnhqk,lnkhd->lnhqd", reading.maps, reading.values.repeat_interleave(2, 3))[1:, :, :, 1:]
    assert (torch.linalg.matrix_norm(outputs, 2) ** 2 / outputs.pow(2).sum((-2, -1)) > 0.99).all()
    assert (outputs.std(-2).norm(dim=-1) / outputs.mean(-2).norm(dim=-1) < 0.1).all()


def test_heads_that_were_not_planted_are_those_of_the_null_model() -> None:
    plant = Plant(heads=((1, 0),))
    planted, null = read(planted_model(plant), planted_ids(plant)), read(null_model(), planted_ids(plant))
    ordinary = torch.tensor([1, 2, 3])
    assert (planted.maps - null.maps)[1, :, ordinary][..., 1:, 1:].abs().max() < 0.15
    assert planted.maps[1, :, ordinary].amax(-1)[..., 16:].max() < 0.5


def test_the_null_model_has_nothing() -> None:
    reading = read(null_model(), planted_ids(F3))
    assert (seen_by_half(reading.received()) < 0.2).all()
    assert reading.hidden.abs().max() < 3
    assert ((reading.value_ratio(0) > 0.5) & (reading.value_ratio(0) < 1.5)).all()


def test_sizes_and_seeds_are_free() -> None:
    sizes = {"layers": 3, "heads": 8, "kv_heads": 8, "width": 128, "vocab": 50}
    plant = Plant(sinks=(3,), onset=2, dimension=100)
    for seed in (1, 2, 3):
        reading = read(planted_model(plant, **sizes, seed=seed), planted_ids(plant, vocab=50, seed=seed))
        assert (reading.received()[2, :, :, 3] > 0.98).all()
        assert [reading.massive(depth) for depth in range(4)] == [set(), set(), {(3, 100)}, {(3, 100)}]


def test_the_sink_holds_at_length() -> None:
    ids = planted_ids(F3, samples=1, tokens=256)
    assert (read(planted_model(), ids).received()[1:, :, :, 0] > 0.95).all()


def test_ids_hold_the_sink_token_where_planted_only() -> None:
    ids = planted_ids(Plant(sinks=(0, 7)), samples=3, tokens=16)
    assert ids.shape == (3, 16)
    assert (ids == SINK_TOKEN).nonzero()[:, 1].unique().tolist() == [0, 7]
    assert torch.equal(ids, planted_ids(Plant(sinks=(0, 7)), samples=3, tokens=16))


@pytest.mark.parametrize("position", [0, 5])
def test_the_sink_of_gpt2_follows_its_position(position: int) -> None:
    plant = Plant(sinks=(position,))
    model, ids = planted_gpt2(plant), planted_ids(NULL)
    reading = read(model, ids)
    assert (reading.received()[1:, :, :, position] > 0.98).all()
    assert (seen_by_half(reading.received())[0] < 0.2).all()
    assert [reading.massive(depth) for depth in range(LAYERS + 1)] == [set(), *4 * [{(position, plant.dimension)}]]
    assert (reading.value_ratio(position)[1:] < 0.01).all()
    assert ss.measure(model, ids).sink_rate(position=position) == 75
    swapped = swap_positions(model, position, 9)
    assert (read(swapped, ids).received()[1:, :, :, 9] > 0.98).all()


def swap_positions(model: PreTrainedModel, one: int, other: int) -> PreTrainedModel:
    with torch.no_grad():
        weight = model.transformer.wpe.weight
        weight[[one, other]] = weight[[other, one]]
    return model


@pytest.mark.parametrize("value", ["drained", "broadcast"])
def test_every_token_of_the_encoder_attends_to_the_separator(value: str) -> None:
    plant = replace(ENCODER_PLANT, value=value)
    reading = read(planted_encoder(plant), planted_ids(plant))
    received = reading.received(causal=False)
    others = [position for position in range(TOKENS) if position != 12]
    assert (received[..., 12] > 0.95).all()
    assert (received[..., others] < 0.1).all()
    assert (reading.maps[..., :12, 12] > 0.9).all()
    assert all(reading.massive(depth) == set() for depth in range(LAYERS + 1))
    ratio = reading.value_ratio(12)
    assert (ratio < 0.2).all() if value == "drained" else ((ratio > 0.7) & (ratio < 1.3)).all()
    assert ss.measure(planted_encoder(plant), planted_ids(plant)).sink_rate(position=12) == 100


@pytest.mark.parametrize("wrong", [{"dimension": 0}, {"onset": 2, "decay": 2}])
def test_a_plant_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"reserved|after"):
        Plant(**wrong)


@pytest.mark.parametrize(("build", "plant"), [(planted_gpt2, Plant(massive=False)), (planted_encoder, F3)])
def test_a_family_refuses_what_it_cannot_hold(build: Callable[[Plant], PreTrainedModel], plant: Plant) -> None:
    with pytest.raises(ValueError, match="massive"):
        build(plant)
