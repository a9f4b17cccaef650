"""Several schemes of one model: whose bytes are compared, and which of them is advised."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import sinkscope as ss
from sinkscope.caches.sizes import held_bytes
from sinkscope.quantization import scheme_named
from sinkscope.sinks import First
from sinkscope.trials import advice, compared_schemes, scheme_trial


def test_bytes_are_those_of_a_model_in_16_bits_whatever_its_dtype() -> None:
    """A group that is still open counts two bytes a number, as the whole cache that it is compared with does."""
    ids = torch.randint(3, 2000, (2, 80), generator=torch.Generator().manual_seed(0))
    shares = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = ss.load("nano").to(dtype)
        trial = scheme_trial(model, ids, "kv4-kivi", {"first": First(4)}, controls=1)
        table = compared_schemes([trial])
        shares[dtype] = float(table["bytes_share"].iloc[0])
    cache = scheme_named("kv4-kivi").store(model, None)
    with torch.no_grad():
        whole = model(ids[:1, :40], use_cache=True).past_key_values
        model(ids[:1, :40], past_key_values=cache)
    exact = held_bytes(cache) / held_bytes(whole)
    assert shares[torch.bfloat16] == pytest.approx(exact, rel=0.01)
    assert shares[torch.float32] == pytest.approx(exact, rel=0.01)


def test_a_protected_arm_is_advised_by_its_own_bytes() -> None:
    rows = {
        "scheme": ["a", "b"],
        "word": ["small", "costs"],
        "kl": [0.01, 0.5],
        "bytes_share": [0.5, 0.4],
        "protected": ["", "first:4"],
        "protected_kl": [float("nan"), 0.02],
        "protected_word": ["", "small"],
        "protected_bytes_share": [float("nan"), 0.45],
        "caches": [True, True],
    }
    said = advice(pd.DataFrame(rows))
    assert "use 'a' (50 % of the bytes of 16 bits), or 'b' with 'first:4' kept (45 % of the bytes of 16 bits)" in said
    rows["protected_bytes_share"] = [float("nan"), 0.55]
    assert "'b' with" not in advice(pd.DataFrame(rows))
