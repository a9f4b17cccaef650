"""Tools the probe tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import PreTrainedModel

from sinkscope.attention import CATALOG, AttentionSpec
from sinkscope.measurement import Measurement, SpectralBands, every
from sinkscope.model import LabConfig, LabForCausalLM
from tests.families.registry import FAMILIES
from tests.measurement.planted import measured, small_dataset

# What a pass over a cache, or a row alone, adds to: without what is made of whole rows, of a few kept samples, or only
# for some models.
WHOLE = {"MassiveActivations", "OutlierStatistics", "MatrixEntropy", "Mixing", "HiddenSimilarity"}
WHOLE |= {"KeyVectors", "HiddenVectors", "ExpertPeaks"}
ADDITIVE = tuple(observer for observer in every() if type(observer).__name__ not in WHOLE)
EXPERTLESS = (*(observer for observer in every() if type(observer).__name__ != "ExpertPeaks"), SpectralBands())

DECODERS = ["llama", "mistral", "gpt2", "gpt_neox", "opt", "phi", "qwen3", "gemma2", "gemma3", "gpt_oss", "granite_swa"]
DECODERS += ["jamba", "qwen3_next", "deepseek_v3", "cohere2"]


MASKS = {"tokens", "queries", "most_queries", "visible_queries", "uniform_received"}  # whatever is observed


def lab_model(attention: str | AttentionSpec, **options: object) -> LabForCausalLM:
    """A lab model with attention far from uniform and learned slots far from their start."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LabConfig(**sizes, num_key_value_heads=2, intermediate_size=48, attention=attention, **options)
    model = LabForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(4)
            if "operation" in name:
                parameter.normal_()
    return model


def build(name: str, host: str = "sdpa") -> PreTrainedModel:
    """A model of a family, or of a lab operation `lab:NAME`."""
    if name.startswith("lab:"):
        return lab_model(name.removeprefix("lab:"))
    family = FAMILIES[name]
    if not family.exists:
        pytest.skip(f"the installed transformers has no family {name}")
    return family.build(host if host in family.hosts else "eager")


# One operation for each way of being read; the fast tests of passes take these, the slow ones the whole catalog.
FEW = {"softmax_off_by_one", "stable_mask", "sigmoid_bias", "kv_bias", "gated_value", "forgetting_gate", "differential"}


def operations(prefix: str = "") -> list[Any]:
    """All operations as parameters of a test, slow but for a few."""
    return [pytest.param(prefix + name, marks=() if name in FEW else pytest.mark.slow) for name in CATALOG]


CAUSAL = [*DECODERS, *(f"lab:{name}" for name in sorted(FEW))]  # test_lab.py reads all operations so


@pytest.fixture
def ids() -> torch.Tensor:
    return FAMILIES["llama"].inputs()["input_ids"]


@pytest.fixture
def assert_same() -> Callable[..., None]:
    """Two measurements agree in every variable, NaN at the same places (in columns that both have)."""

    def check(one: Measurement, other: Measurement, tolerance: float = 2e-5) -> None:
        assert set(one.data.data_vars) == set(other.data.data_vars)
        for name in set(one.data.data_vars) - {"tokens"}:
            left, right = one.data[name].values, other.data[name].values
            width = min(left.shape[-1], right.shape[-1])
            np.testing.assert_allclose(
                left[..., :width], right[..., :width], rtol=tolerance, atol=tolerance, err_msg=str(name)
            )

    return check


@pytest.fixture(scope="session")
def complete() -> Measurement:
    """A measurement with every variable; tests must not change it."""
    return measured()


@pytest.fixture
def dataset() -> xr.Dataset:
    return small_dataset()
