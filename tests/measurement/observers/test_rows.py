"""What holds for every observer of the residual stream: caches, broken activations, positions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, KeyVectors, Observer, SinkUpdate, every, measure, observe
from sinkscope.measurement.observers.bands import SpectralBands
from sinkscope.measurement.observers.geometry import HiddenSimilarity, HiddenVectors, MatrixEntropy, Mixing
from sinkscope.measurement.observers.kept import AttentionMaps
from sinkscope.measurement.observers.lengths import ReceivedByLength
from sinkscope.measurement.observers.massive import MassiveActivations, TokenPeaks
from sinkscope.measurement.observers.outliers import OutlierStatistics
from sinkscope.measurement.observers.received import GivenTo, QueriesAbove
from sinkscope.measurement.observers.rows import lower_median
from sinkscope.measurement.observers.spikes import SpikeDimensions
from tests.measurement.conftest import MASKS
from tests.measurement.observers.residual import close, decoded, outlying

POSITIONS = (0, 3, 5)
STREAM: list[Observer] = [
    MassiveActivations(),
    TokenPeaks(),
    OutlierStatistics(),
    SpikeDimensions(count=4, positions=POSITIONS),
    SpectralBands(count=5, positions=POSITIONS),
    MatrixEntropy(),
    HiddenSimilarity(),
    Mixing(),
    HiddenVectors(kept=2, positions=POSITIONS),
]
ADDED = {"hidden_max", "spike_share", "normed_spike_share", "spike_key_cosine", "band_energy", "band_energy_mean"}
ADDED |= {"hidden_vectors", "spike_dimension"}
OF_ROWS = {"hidden_top", "hidden_top_position", "hidden_top_dimension", "hidden_median", "kurtosis", "kurtosis_neurons"}
OF_ROWS |= {"max_median_ratio", "outlier_count", "outlier_token_share", "outlier_dimension_share", "matrix_entropy"}
OF_ROWS |= {"hidden_spread", "last_pair_distance"}


def test_decoding_over_a_cache_gives_the_numbers_of_one_pass_or_none(ids: torch.Tensor) -> None:
    """Two left-padded rows; the second is compared with itself alone, without padding, in one pass."""
    model = outlying()
    data = decoded(model, ids, *STREAM)
    text = model.generate(ids[1:2, 2:6], max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)
    whole = measure(model, text[:, :-1], STREAM).data
    assert set(data.data_vars) - MASKS == ADDED | OF_ROWS | {"cos_hidden_first"}
    for name in ADDED:
        row = data[name][1]
        close(row[:, :8] if name == "hidden_max" else row, whole[name][0])
    for name in OF_ROWS:
        assert data[name].isnull().all(), name
        assert whole[name].notnull().all() or "share" in name, name
    close(data["cos_hidden_first"][1, :, :4], whole["cos_hidden_first"][0, :, :4])
    assert data["cos_hidden_first"][1, :, 4:].isnull().all(), "the first token's state is gone by then"


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_activations_that_are_no_numbers_count_nowhere_and_break_nothing(ids: torch.Tensor, value: float) -> None:
    model = outlying()
    model.model.layers[0].register_forward_hook(
        lambda module, args, output: output.index_fill(1, torch.tensor([4]), value)
    )
    with pytest.warns(UserWarning, match="first at depth 1"):
        data = measure(model, ids, STREAM).data
    for name in OF_ROWS - {"outlier_token_share", "outlier_dimension_share"}:
        assert data[name][:, 0].notnull().all(), name
    for name in OF_ROWS - {"hidden_top_position", "hidden_top_dimension", "last_pair_distance"}:
        assert data[name][:, 1].isnull().any(), name
    assert np.isfinite(data["hidden_max"][:, 1, :4]).all()


def test_every_observer_is_in_the_record_as_it_was_asked_for(ids: torch.Tensor) -> None:
    told = {entry.pop("name"): entry for entry in measure(outlying(), ids, STREAM).record["observers"]}
    assert list(told) == [type(observer).__name__ for observer in STREAM]
    assert told["SpectralBands"] == {"count": 5, "positions": [0, 3, 5]}
    assert told["HiddenVectors"] == {"kept": 2, "positions": [0, 3, 5]}


@pytest.mark.parametrize("kind", [SpikeDimensions, SpectralBands, HiddenVectors])
@pytest.mark.parametrize("positions", [(), (-1,), (3, 0), [2, 2], 3, (0.5,), (True,)])
def test_positions_that_do_not_rise_from_0_are_refused(kind: type[Observer], positions: list[int]) -> None:
    with pytest.raises(InputError, match="positions = "):
        kind(positions=positions)


@pytest.mark.parametrize("kind", [AttentionReceived, KeyVectors, SinkUpdate])
@pytest.mark.parametrize("positions", [(), (-1,), 3, (0.5,), (0, "1"), (True,)])
def test_positions_that_are_no_whole_numbers_are_refused(kind: type[Observer], positions: list[int]) -> None:
    with pytest.raises(InputError, match="positions = "):
        kind(positions=positions)


def test_positions_in_any_order_and_in_arrays_are_taken() -> None:
    assert AttentionReceived(np.array([3, 0])).positions == KeyVectors(positions=[3, 0, 3]).positions == (0, 3)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (MassiveActivations, "top"),
        (SpikeDimensions, "count"),
        (SpectralBands, "count"),
        (MatrixEntropy, "tokens"),
        (HiddenVectors, "kept"),
        (KeyVectors, "kept"),
        (AttentionMaps, "tokens"),
    ],
)
@pytest.mark.parametrize("count", [0, -1, 2.5, "8", None, True, math.nan])
def test_counts_that_are_none_are_refused(kind: type[Observer], name: str, count: object) -> None:
    with pytest.raises(InputError, match=f"{name} = "):
        kind(**{name: count})


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        (ReceivedByLength, "lengths", (3, None, (2.5,), ("8",))),
        (ReceivedByLength, "position", (2.5, "0", True)),
        (OutlierStatistics, "sigmas", (3.0, None, ("a",), (math.nan,), (math.inf,))),
        (MassiveActivations, "ratio", (0, -1.0, "a", None, math.nan)),
        (GivenTo, "to", (2.5, "0", None)),
        (QueriesAbove, "threshold", ("a", None, math.nan)),
    ],
)
def test_other_numbers_that_are_none_are_refused(kind: type[Observer], name: str, wrong: tuple[object, ...]) -> None:
    for value in wrong:
        with pytest.raises(InputError, match=repr(value) if isinstance(value, str) else None):
            kind(**{name: value})


def test_a_prefix_from_before_observation_has_no_numbers(ids: torch.Tensor) -> None:
    """Positions go on counting from the prefix; statistics of whole rows are absent, as no row was seen whole."""
    model, cache = outlying(), DynamicCache()
    with torch.no_grad():
        model(ids[:, :4], past_key_values=cache)
        with observe(model, *STREAM) as seen:
            model(ids[:, 4:], past_key_values=cache)
    data, whole = seen.measurement().data, measure(model, ids, STREAM).data
    assert set(data.data_vars) - MASKS == ADDED
    close(data["hidden_max"][:, :, 4:], whole["hidden_max"][:, :, 4:])
    assert data["hidden_max"][:, :, :4].isnull().all()
    for name in ("spike_share", "spike_key_cosine", "band_energy"):
        assert data[name].sel(probe_position=[0, 3]).isnull().all(), name
        close(data[name].sel(probe_position=5), whole[name].sel(probe_position=5))
    assert data["hidden_vectors"][:, :, :2].isnull().all()
    close(data["hidden_vectors"][:, :, 2], whole["hidden_vectors"][:, :, 2])


def test_observers_that_share_an_axis_must_label_it_alike(ids: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"axis 'probe_position' differently: \[0\], \[0, 3\]"):
        measure(outlying(), ids, [SpikeDimensions(), SpectralBands(positions=(0, 3))])
    labels: dict[str, set[tuple]] = {}
    for observer in every():
        for name, values in observer.coordinates.items():
            labels.setdefault(name, set()).add(tuple(values))
    assert {name for name, values in labels.items() if len(values) > 1} == set()


@pytest.mark.parametrize("size", [1, 2, 31, 4095, 4097, 20_001, 65_536])
def test_the_median_of_a_long_list_is_the_lower_one_exactly(size: int) -> None:
    """Also where most values are equal, where they come in order, and where the sample says nothing of the rest."""
    generator = torch.Generator().manual_seed(size)
    drawn = torch.randn(size, generator=generator)
    hidden = torch.zeros(size).index_fill_(0, torch.arange(0, size, max(1, size // 4096 | 1)), 1e6)
    for values in (drawn, drawn.round(), torch.ones(size), drawn.sort().values, drawn.abs().exp(), hidden):
        assert lower_median(values) == values.sort().values[(size - 1) // 2]
        assert lower_median(values).dtype == torch.float32
