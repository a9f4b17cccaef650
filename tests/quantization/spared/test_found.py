"""Found tokens against plants: sinks wherever they stand, spikes of a channel, outlying inputs; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sinkscope import measure
from sinkscope.errors import InputError
from sinkscope.probes import AttentionMaps, AttentionReceived
from sinkscope.quantization import MeasuredSinks, OutlyingTokens, SpikeTokens
from tests.planted.factory import Plant, null_model, planted_ids, planted_model

MIDDLE = Plant(sinks=(0, 12), dimension=7)


def chosen(mask: Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in mask]


def test_sinks_are_found_where_they_were_planted() -> None:
    model, ids = planted_model(MIDDLE), planted_ids(MIDDLE, 3, 32)
    assert chosen(MeasuredSinks().mask(model, {"input_ids": ids})) == [[0, 12]] * 3


def test_sinks_are_found_row_by_row() -> None:
    plants = [Plant(sinks=(0,), dimension=7), MIDDLE, Plant(sinks=(0, 5), dimension=7)]
    ids = torch.cat([planted_ids(plant, 1, 32) for plant in plants])
    assert chosen(MeasuredSinks().mask(planted_model(MIDDLE), {"input_ids": ids})) == [[0], [0, 12], [0, 5]]


def test_a_sink_that_stays_below_in_one_row_is_one_by_its_position_and_by_its_id() -> None:
    """What α is in the rows alone would spare it in some, and leave the range to the others."""
    model = planted_model(MIDDLE)
    ids = torch.cat([planted_ids(MIDDLE, 4, 32), planted_ids(Plant(sinks=(0, 7), dimension=7), 2, 32)])
    alpha = measure(model, ids, [AttentionReceived()]).data["attention_received"].values.max((1, 2))
    rows = sorted(alpha[place] for place in [(row, 12) for row in range(4)] + [(4, 7), (5, 7)])
    between = (rows[0] + np.mean(rows)) / 2
    assert rows[0] < between < np.mean(rows)
    assert chosen(MeasuredSinks(float(between)).mask(model, {"input_ids": ids})) == [[0, 12]] * 4 + [[0, 7]] * 2


def test_a_measurement_tells_the_same_positions_without_a_look() -> None:
    model, ids = planted_model(MIDDLE), planted_ids(MIDDLE, 3, 32)
    found = MeasuredSinks(measurement=measure(model, ids, [AttentionReceived()]))
    assert not found.of_inputs
    assert chosen(found.mask(model, {"input_ids": ids[:1, :20]})) == [[0, 12]]
    with pytest.raises(InputError, match="another model"):
        found.mask(planted_model(MIDDLE, layers=3), {"input_ids": ids})


@pytest.mark.parametrize("place", [15, 16, 17])
def test_what_fewer_than_half_of_the_queries_see_is_no_sink(place: int) -> None:
    """At 16 of 32 exactly half of the queries see the token."""
    plant = Plant(sinks=(0, place), dimension=7)
    model, ids = planted_model(plant), planted_ids(plant, 2, 32)
    expected = [[0, place] if place <= 16 else [0]] * 2
    assert chosen(MeasuredSinks().mask(model, {"input_ids": ids})) == expected
    found = MeasuredSinks(measurement=measure(model, ids, [AttentionReceived()]))
    assert chosen(found.mask(model, {"input_ids": ids})) == expected


def test_a_packed_document_has_its_own_sinks() -> None:
    """The second document begins where few of the row's queries see anything."""
    model = planted_model(MIDDLE)
    for sizes, epsilon in (((24, 8), 0.3), ((8, 24), 0.8)):  # of the latter, most queries are another document's
        parts = [planted_ids(Plant(sinks=(0,), dimension=7), 1, size) for size in sizes]
        places = torch.cat([torch.arange(size) for size in sizes])[None]
        packed = {"input_ids": torch.cat(parts, 1), "position_ids": places}
        alone = [MeasuredSinks(epsilon).mask(model, {"input_ids": part}) for part in parts]
        assert chosen(MeasuredSinks(epsilon).mask(model, packed)) == chosen(torch.cat(alone, 1)) == [[0, sizes[0]]]


def test_padding_moves_no_sink() -> None:
    model, ids = planted_model(MIDDLE), planted_ids(MIDDLE, 2, 28)
    given = {
        "input_ids": torch.nn.functional.pad(ids, (4, 0), value=3),
        "attention_mask": torch.nn.functional.pad(torch.ones_like(ids), (4, 0)),
    }
    assert chosen(MeasuredSinks().mask(model, given)) == [[4, 16]] * 2


def test_measured_is_the_share_of_written_out_maps() -> None:
    """In its own row, or on average at its position, or over all tokens of its id that enough queries see."""
    model, ids = planted_model(MIDDLE), planted_ids(MIDDLE, 3, 32)
    ids[1, 9] = ids[0, 4]  # an id in several places
    with torch.no_grad():
        kept = [measure(model, ids[row : row + 1], [AttentionMaps()]).data["attention_map"].values for row in range(3)]
    share = np.concatenate(kept).sum(-2) / np.arange(32, 0, -1)  # row layer head key
    share = share.reshape(3, -1, 32)[..., :17]
    row, here = np.zeros((3, 17)), ids[:, :17].numpy()
    for n, k in np.ndindex(3, 17):
        same = [share[a, :, b] for a, b in np.ndindex(3, 17) if here[a, b] == here[n, k]]
        row[n, k] = max(share[n, :, k].max(), share[:, :, k].mean(0).max(), np.mean(same, 0).max())
    for epsilon in (0.05, 0.1, 0.3, float(np.sort(row.flatten())[-9]) - 1e-4):
        found = MeasuredSinks(epsilon).mask(model, {"input_ids": ids}).numpy()
        assert (found[:, :17] == (row > epsilon)).all()


def test_no_sink_is_said_with_what_was_looked_at() -> None:
    ids = planted_ids(MIDDLE, 2, 32)
    with pytest.raises(InputError, match=r"no sink found: of 34 tokens .* epsilon = 0.9 .* the most is 0\.\d+, at"):
        MeasuredSinks(0.9).mask(null_model(), {"input_ids": ids})
    with pytest.raises(InputError, match=r"no position .* epsilon = 0.9 .* the most is"):
        MeasuredSinks(0.9, measure(null_model(), ids, [AttentionReceived()])).mask(null_model(), {"input_ids": ids})


def test_the_spike_channel_tells_the_sinks_from_its_onset_on() -> None:
    plant = Plant(sinks=(0, 12), dimension=7, onset=2)
    model, given = planted_model(plant), {"input_ids": planted_ids(plant, 3, 32)}
    found = SpikeTokens.of(model, given, count=2)
    assert (found.depth, found.dimension) == (2, 7)
    assert chosen(found.mask(model, given)) == [[0, 12]] * 3
    assert chosen(SpikeTokens(3, 7, 2).mask(model, given)) == [[0, 12]] * 3
    with pytest.warns(UserWarning, match="nothing stands out"):
        SpikeTokens(1, 9, 2).mask(model, given)
    with pytest.raises(InputError, match="depths 0 to 4"):
        SpikeTokens(5, 7).mask(model, given)
    with pytest.raises(InputError, match="dimension 64 does not exist"):
        SpikeTokens(2, 64).mask(model, given)


def test_outlying_tokens_are_those_whose_input_was_made_large() -> None:
    plant = Plant(sinks=(0, 12), dimension=7, onset=2)
    model, given = planted_model(plant), {"input_ids": planted_ids(plant, 3, 32)}
    assert chosen(OutlyingTokens("down", 20).mask(model, given)) == [[0, 12]] * 3  # the map that writes the spike
    with pytest.raises(InputError, match=r"no token outlies at 'query': the largest is \d"):
        OutlyingTokens("query", 50).mask(model, given)
    with pytest.raises(InputError, match="unknown site 'dwn': did you mean 'down'"):
        OutlyingTokens("dwn").mask(model, given)


def test_what_continues_a_cache_is_not_looked_at_again() -> None:
    from transformers import DynamicCache

    model, ids = planted_model(MIDDLE), planted_ids(MIDDLE, 1, 16)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache)
    for choice in (MeasuredSinks(), OutlyingTokens(), SpikeTokens(1, 7)):
        with pytest.raises(InputError, match="continue a cache"):
            choice.mask(model, {"input_ids": ids[:, :4], "past_key_values": cache})
    assert cache.get_seq_length() == 16
