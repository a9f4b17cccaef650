"""Artefact patches of planted norms are found exactly (Darcet et al. 2023)."""

from __future__ import annotations

import numpy as np
import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import metrics

PREFIX = ["CLS", "register 0"]


def planted(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Norms around 20 with a few patches at 200 and a register at 300, and where the artefacts are."""
    generator = np.random.default_rng(seed)
    norms = generator.normal(20, 2, (4, 2 + 49))
    artefacts = np.zeros(norms.shape, bool)
    artefacts[np.arange(4), 2 + generator.integers(49, size=4)] = True
    norms[artefacts], norms[:, 1] = 200, 300
    return norms, artefacts


@pytest.mark.parametrize("options", [{"cutoff": 150.0}, {}, {"times": 5.0}])
def test_precision_and_recall_are_one(options: dict[str, float]) -> None:
    norms, artefacts = planted()
    np.testing.assert_array_equal(metrics.artefact_patches(norms, 2, **options), artefacts)


def test_a_register_is_no_artefact_but_would_be_as_a_patch() -> None:
    norms, _ = planted()
    assert not metrics.artefact_patches(norms, 2)[:, :2].any()
    assert metrics.artefact_patches(norms, 0)[:, 1].all()


def test_nothing_is_found_where_nothing_was_planted() -> None:
    norms = np.random.default_rng(1).normal(20, 2, (4, 51))
    assert not metrics.artefact_patches(norms, 2).any()


def test_the_table_counts_every_kind() -> None:
    norms, artefacts = planted()
    received = np.full((4, 2, 3, 51), 0.01)
    received[..., 1] = 0.5
    table = metrics.patch_table(norms, received, PREFIX, artefacts).set_index("kind")
    assert table["tokens"].to_dict() == {"CLS": 1, "register 0": 1, "artefact patch": 1, "patch": 48}
    assert table.loc["register 0", "attention"] == pytest.approx(0.5)
    assert table.loc["artefact patch", "norm"] == pytest.approx(200)


def test_a_cutoff_must_be_positive() -> None:
    with pytest.raises(InputError, match="must be positive"):
        metrics.artefact_patches(np.ones((1, 4)), 1, cutoff=0.0)


def test_tokens_without_a_norm_are_of_no_kind() -> None:
    norms = np.array([[1.0, 1.0, 9.0, 1.0], [1.0, 1.0, 1.0, np.nan], [np.nan] * 4])
    with metrics.quiet():
        table = metrics.patch_table(norms, None, ["CLS"], metrics.artefact_patches(norms, 1)).set_index("kind")
    assert table["tokens"].to_dict() == {"CLS": 1.0, "artefact patch": 0.5, "patch": 2.0}
    assert table.loc["patch", "norm"] == 1.0
