from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sinkscope.errors import InputError
from sinkscope.statistics import spectral
from sinkscope.statistics.spectral import spectral_bands


class Widest(TorchDispatchMode):
    """The largest float64 tensor that is made inside."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float64:
            self.numbers = max(self.numbers, made.numel())
        return made


def test_the_unembedding_is_read_in_blocks() -> None:
    """A float64 copy would be 1.3 GB for a vocabulary of 262,144 at width 640."""
    weight = torch.randn(5 * spectral.ROWS + 3, 8)
    with Widest() as seen:
        basis, _ = spectral_bands(weight, 4)
    assert 0 < seen.numbers <= spectral.ROWS * 8
    _, singular, _ = torch.linalg.svd(weight.double(), full_matrices=False)
    torch.testing.assert_close((weight @ basis).norm(dim=0).double(), singular, rtol=1e-5, atol=0)


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


def directions(weight: torch.Tensor) -> torch.Tensor:
    return spectral_bands(weight, 4)[0]


def test_a_weight_that_was_written_to_is_read_again() -> None:
    weight = torch.nn.Parameter(torch.randn(30, 8))
    first = directions(weight)
    assert directions(weight) is first, "remembered"
    with torch.no_grad():
        weight.add_(torch.randn(30, 8))
    second = directions(weight)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(second, directions(weight.detach().clone()))
    weight.data = torch.randn(30, 8)
    assert not torch.allclose(second, directions(weight))


def test_nothing_is_kept_of_a_weight_that_is_gone() -> None:
    before = len(spectral._KNOWN)
    weight = torch.randn(30, 8)
    directions(weight)
    assert len(spectral._KNOWN) == before + 1
    del weight
    assert len(spectral._KNOWN) == before
