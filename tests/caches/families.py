"""Which families a stream is tried on: those that write text, and variants in which what matters for a cache occurs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.families.registry import COLLECTED, ENTRIES, FAMILIES, KINDS, REFUSED, Family

WRITERS = (
    "decoders",
    "mixtures of experts",
    "windows, chunks and softcaps",
    "learned sinks",
    "latent attention",
    "keys chosen by an index",
    "hybrids and output gates",
    "several towers",
)
OWN = ("bloom", "mpt", "falcon", "falcon_alibi", "gptj", "gpt_neo", "codegen", "xglm", "gpt_neox_japanese", "trocr")
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "dynamic": {"factor": 4.0},
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64},
}


def with_options(name: str, **options: Any) -> Family:
    """A family with other options."""
    family = (FAMILIES | COLLECTED)[name]
    return replace(family, options={**family.options, **options})


def scaled(kind: str) -> Family:
    """Llama with scaled frequencies."""
    rope = {"rope_type": kind, "rope_theta": 10000.0, **SCALED[kind]}
    return with_options("llama", rope_parameters=rope, max_position_embeddings=256)


VARIANTS: dict[str, Family] = {
    **{f"llama, {kind}": scaled(kind) for kind in SCALED},
    **{f"{name}, mixed": with_options(name, **MIXED) for name in ("cohere2", "olmo3", "afmoe", "gemma3n")},
    "mistral, no window": with_options("mistral", sliding_window=None),
    "starcoder2, no window": with_options("starcoder2", sliding_window=None),
    "llama4, mixed": with_options(
        "llama4", layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0], floor_scale=4
    ),
}
EVERY: dict[str, Family] = (
    {name: family for kind in WRITERS for name, family in KINDS[kind].items() if name != "clip"}
    | {name: COLLECTED[name] for name in OWN}
    | ENTRIES
    | {name: REFUSED[name] for name in ("rwkv", "mamba")}
    | VARIANTS
)

# Why a family does not stream; what is not named here does.
NO_FULL_LAYER = "no layer that sees everything"
ABSOLUTE = "absolute positions"
REFUSALS = {
    **dict.fromkeys(("gpt2", "ctrl", "gpt_bigcode", "opt", "biogpt", "bert_decoder", "gpt_neo", "xglm"), ABSOLUTE),
    **dict.fromkeys(("mistral", "starcoder2", "cohere2", "olmo3", "afmoe", "llama4", "gemma3n"), NO_FULL_LAYER),
    **dict.fromkeys(("deepseek_v4_sliding", "gemma3_vision"), NO_FULL_LAYER),
    **dict.fromkeys(("hy_v4", "deepseek_v32", "glm_moe_dsa", "axk2", "deepseek_v4"), "keys chosen by an index"),
    **dict.fromkeys(("minimax", "recurrent_gemma"), "cache of its own"),
    **dict.fromkeys(("llama, dynamic", "llama, longrope"), "changes the frequencies"),
    "minimax_m3": "does not run on single tokens",
    "inkling2": "bias by distance",
    "falcon_alibi": "tokens seen",
    "openai_privacy_filter": "does not keep its keys",
    "trocr": "no position_ids",
    "rwkv": "takes no cache",
    "mamba": "takes no",  # cache, or position_ids from transformers 5.24 on
}
STREAMS = {name: family for name, family in EVERY.items() if name not in REFUSALS}
EXACT = ("minicpm3",)  # ill-conditioned: compared in fp64


def slow_but(quick: Iterable[str], names: Iterable[str]) -> list[Any]:
    """Parameters of a test that are slow but for a few; those that the installed transformers lacks are skipped."""

    def marks(name: str) -> list[Any]:
        lacking = pytest.mark.skipif(
            name in EVERY and not EVERY[name].exists, reason="transformers is older than the family"
        )
        return [lacking] if name in set(quick) else [lacking, pytest.mark.slow]

    return [pytest.param(name, marks=marks(name)) for name in names]
