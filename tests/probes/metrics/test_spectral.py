from __future__ import annotations

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.probes.metrics.spectral import spectral_bands


def test_bands_are_the_right_singular_vectors_in_order():
    unembedding = torch.randn(97, 32)
    basis, bands = spectral_bands(unembedding)
    _, singular, right = torch.linalg.svd(unembedding)
    torch.testing.assert_close((unembedding @ basis).norm(dim=0), singular, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((basis * right.mT).sum(0).abs(), torch.ones(32), rtol=0, atol=1e-3)
    assert [band.stop - band.start for band in bands].count(2) == 12
    assert len(bands) == 20


def test_bands_are_orthogonal_sum_to_identity_and_keep_energy():
    basis, bands = spectral_bands(torch.randn(50, 24), 7)
    filters = [basis[:, band] @ basis[:, band].mT for band in bands]
    torch.testing.assert_close(sum(filters), torch.eye(24), rtol=0, atol=1e-5)
    for index, one in enumerate(filters):
        torch.testing.assert_close(one @ one, one, rtol=0, atol=1e-5)
        for other in filters[:index]:
            torch.testing.assert_close(one @ other, torch.zeros(24, 24), rtol=0, atol=1e-5)
    hidden = torch.randn(5, 24)
    energy = torch.stack([(hidden @ basis[:, band]).square().sum(-1) for band in bands]).sum(0)
    torch.testing.assert_close(energy, hidden.square().sum(-1))


@pytest.mark.parametrize("count", [0, 25])
def test_more_bands_than_directions_are_refused(count):
    with pytest.raises(InputError, match="width 24: choose 1 to 24"):
        spectral_bands(torch.randn(50, 24), count)
