"""How many tokens an attached layer has seen, from the cache that it is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from sinkscope.model.attached.layer import _seen
from sinkscope.model.shared_kv import KEYLESS


@pytest.mark.skipif(not KEYLESS, reason="this version of transformers has no layers that keep no keys")
def test_a_layer_that_keeps_no_keys_has_seen_what_the_first_has() -> None:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4), 0)
    cache.layers.append(KEYLESS[0]())
    reads = nn.Module()
    reads.layer_idx = 1
    assert _seen(cache, reads) == 3
