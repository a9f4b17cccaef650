"""Band energies against projections on the singular vectors of the unembedding (Cancedda 2024)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import measure
from sinkscope.measurement.metrics.massive import dark_shares
from sinkscope.measurement.observers.bands import SpectralBands
from tests.families.registry import FAMILIES
from tests.measurement.conftest import build
from tests.measurement.observers.residual import LENGTHS, close, measured, outlying, read_rows
from tests.planted.factory import Plant, planted_ids, planted_model

PROBED = (0, 2, 15)  # the last row has no position 15


def test_energies_are_shares_along_the_singular_vectors(ids: torch.Tensor) -> None:
    """Five bands of 32 directions: 6, 6, 7, 6, 7 of them, by singular value."""
    model = outlying()
    data, rows = measured(model, ids, LENGTHS, SpectralBands(5, PROBED)), read_rows(model, ids, LENGTHS)
    directions = np.linalg.svd(model.lm_head.weight.detach().double().numpy())[2]
    borders = [0, 6, 12, 19, 25, 32]
    for sample, depth in rows.places:
        state = rows.states[sample][depth]
        shares = np.array(
            [
                [sum((token @ directions[i]) ** 2 for i in range(*borders[band : band + 2])) for band in range(5)]
                / (token @ token)
                for token in state
            ]
        )
        here = {"sample": sample, "depth": depth}
        close(data["band_energy_mean"][here], shares.mean(0))
        for probe, position in enumerate(PROBED):
            wanted = shares[position] if position < len(state) else np.full(5, np.nan)
            close(data["band_energy"][here][probe], wanted)
    assert data["band"].values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 7, 20, 32])
def test_bands_hold_all_energy_and_a_direction_each_all_of_it(count: int, ids: torch.Tensor) -> None:
    """Parseval."""
    data = measure(build("llama"), ids, [SpectralBands(count)]).data
    close(data["band_energy"].sum("band"), 1, 1e-5)
    close(data["band_energy_mean"].sum("band"), 1, 1e-5)


@pytest.mark.parametrize("sink", [0, 7])
def test_a_massive_dimension_that_the_unembedding_ignores_is_dark(sink: int) -> None:
    plant = Plant(sinks=(sink,))
    model = planted_model(plant)
    with torch.no_grad():
        model.lm_head.weight[:, plant.dimension] = 0
    data = measure(model, planted_ids(plant), [SpectralBands(positions=(sink,))]).data
    probed = data["band_energy"].isel(probe_position=0)
    shares = dark_shares(probed.values, data["band_energy_mean"].values, np.full(4, 32))
    assert (shares.probed[:, plant.onset :] > 0.999).all()
    assert (shares.probed[:, : plant.onset] < 0.5).all()
    assert (shares.others < 0.3).all()


def test_the_others_are_all_tokens_but_the_probed_one() -> None:
    energies = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 6))  # sample, depth, token, band
    found = dark_shares(energies[:, :, 2], energies.mean(2), np.array([6, 6]))
    close(found.probed, energies[:, :, 2, 3])
    close(found.others, np.delete(energies, 2, axis=2)[..., 3].mean(2), 1e-9)
    assert np.isnan(dark_shares(energies[:, :, 0], energies[:, :, 0], np.array([1, 1])).others).all()


def test_models_without_what_is_needed_are_refused_or_left_out(ids: torch.Tensor) -> None:
    with pytest.raises(UnsupportedModelError, match="no unembedding"):
        measure(build("vit"), FAMILIES["vit"].inputs(), [SpectralBands()])
    with pytest.raises(UnsupportedModelError, match="width 32: ask for fewer"):
        measure(build("llama"), ids, [SpectralBands(33)])


def test_asking_whether_bands_apply_computes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "eigh", lambda *args: pytest.fail("computed"))
    assert SpectralBands(5).bound(build("llama")) == SpectralBands(5)
