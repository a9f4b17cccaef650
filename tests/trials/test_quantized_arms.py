"""Arms of caches that are not ours."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from transformers import cache_utils

from sinkscope.caches.sizes import held_bytes
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.trials import ThroughCache, run, transformers_quantized
from tests.families.registry import FAMILIES
from tests.trials.caches import ANY, llama, texts

WHY = "optimum-quanto and hqq are not installed: pip install 'sinkscope[quantize]'"
needs_fp8 = pytest.mark.skipif(not hasattr(cache_utils, "Fp8QuantizedLayer"), reason="transformers has no fp8 cache")
needs_backends = pytest.mark.skipif(find_spec("hqq") is None or find_spec("optimum") is None, reason=WHY)


@needs_fp8
@torch.no_grad()
def test_fp8_is_full_precision_in_its_first_pass_and_not_behind() -> None:
    model, ids = llama(), texts(2, 24)
    arm = transformers_quantized("fp8")
    assert arm.name == "fp8"
    with arm.open(model, ANY) as cache:
        assert torch.equal(model(ids, past_key_values=cache).logits, model(ids).logits)
        assert held_bytes(cache) < 0.6 * 2 * 2 * 24 * 2 * 2 * 8 * 4  # half of fp32, its last pass beside
    first = run(model, ids[:, :13], [arm], reading=ThroughCache(12))
    assert first.values("fp8").max() < 1e-9
    assert run(model, ids, [arm], reading=ThroughCache(12)).values("fp8").mean() > 1e-9


@needs_backends
@pytest.mark.slow
@pytest.mark.parametrize(("backend", "bits", "axis"), [("hqq", 3, 0), ("hqq", 4, 1)])
@torch.no_grad()
def test_groups_are_rounded_anew_at_each_flush(backend: Any, bits: int, axis: int) -> None:
    """What is read back of the first tokens changes when later ones are put beside them."""
    model, ids = llama(), texts(1, 97)
    with transformers_quantized(backend, bits, group=64, residual=32, axis=axis).open(model, ANY) as cache:
        model(ids[:, :64], past_key_values=cache)
        layer = cache.layers[0]
        before = layer._dequantize(layer._quantized_keys)
        for t in range(64, 97):
            model(ids[:, t : t + 1], past_key_values=cache)
        assert not torch.equal(layer._dequantize(layer._quantized_keys)[:, :, :64], before)


@pytest.mark.parametrize("backend", ["quanto", "hqq"])
def test_a_missing_package_is_named(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("is_optimum_quanto_available", "is_hqq_available"):
        monkeypatch.setattr(cache_utils, check, lambda: False)
    with (
        pytest.raises(InputError, match=r"pip install 'sinkscope\[quantize\]'"),
        transformers_quantized(backend, 4).open(llama(), ANY),
    ):
        pass


def test_another_backend_is_named() -> None:
    with pytest.raises(InputError, match="did you mean 'quanto'"):
        transformers_quantized("quant")  # type: ignore[arg-type]


@needs_fp8
def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(InputError, match="fp8"), transformers_quantized("fp8", 4).open(llama(), ANY):
        pass
    sliding = FAMILIES["mistral"].build("sdpa")
    with pytest.raises(UnsupportedModelError, match="mistral"), transformers_quantized("fp8").open(sliding, ANY):
        pass
