"""Attention maps of few tokens equal those of eager attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.measurement import measure
from sinkscope.measurement.observers.kept import AttentionMaps
from tests.families import reference
from tests.families.registry import FAMILIES
from tests.measurement.conftest import build


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "bert"])
@pytest.mark.parametrize("tokens", [7, 64])
def test_maps_equal_eager_attention(name: str, tokens: int) -> None:
    family = FAMILIES[name]
    inputs = family.inputs()
    [maps] = reference.eager_maps(family, inputs).values()
    found = measure(build(name), inputs, [AttentionMaps(tokens)]).data["attention_map"]
    assert found.dims == ("kept", "layer", "head", "query", "key")
    kept = min(tokens, 24)
    wanted = np.stack([layer[0, :, :kept, :kept].numpy() for layer in maps])
    np.testing.assert_allclose(found.values[0], wanted, atol=1e-5)


def test_only_the_first_sample_is_kept(ids: torch.Tensor) -> None:
    both = measure(build("llama"), ids, [AttentionMaps(8)], batch_size=2).data["attention_map"]
    alone = measure(build("llama"), ids[:1], [AttentionMaps(8)]).data["attention_map"]
    assert both.sizes["kept"] == 1
    np.testing.assert_allclose(both.values, alone.values, atol=1e-6)
