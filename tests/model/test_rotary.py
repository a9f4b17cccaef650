"""Rotary positions: golden logits, dependence on differences alone, partial and scaled rotation."""

from __future__ import annotations

import pytest
import torch
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from sinkscope.attention import Causal, Visibility
from sinkscope.errors import InputError
from sinkscope.model.positions import Rope, Rotary, TokenPositions, rotate

SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}


def turned(x: torch.Tensor, **options: object) -> torch.Tensor:
    """(batch, heads, position, dim), each token turned by its place."""
    rope = Rope(head_dim=x.shape[-1], length=64, **options)
    positions = TokenPositions.of(Visibility.of(Causal(), x.shape[2], x.shape[2]))
    return rotate(x, Rotary(rope).rotation(positions))


def test_golden_logits():
    """Base 10000, head width 8, q = k = 1, scale 8^-1/2, computed elsewhere."""
    ones = turned(torch.ones(1, 1, 64, 8))[0, 0]
    logits = ones @ ones.T / 8**0.5
    assert logits[3, :4].tolist() == pytest.approx([1.389387, 1.812822, 2.499803, 2.828427], abs=1e-5)
    future = torch.ones(64, 64).triu(1).bool()
    alpha = logits.masked_fill(future, -torch.inf).softmax(-1).sum(0) / torch.arange(64, 0, -1)
    assert alpha[0].item() == pytest.approx(0.058409, abs=1e-5)
    assert alpha[63].item() == pytest.approx(0.051037, abs=1e-5)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_logits_depend_on_differences_alone(fraction):
    query, key = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64).expand(-1, -1, -1, 40, -1)
    logits = turned(query, fraction=fraction) @ turned(key, fraction=fraction).mT
    for offset in (-7, 0, 3):
        diagonal = logits[0, 0].diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=0)
    assert logits[0, 0, 9].std() > 0.1


def test_partial_rotation_is_gpt_neox():
    x = torch.randn(1, 2, 9, 16)
    found = turned(x, fraction=0.25, theta=500.0)
    assert torch.equal(found[..., 4:], x[..., 4:])
    config = GPTNeoXConfig(hidden_size=32, num_attention_heads=2, rotary_pct=0.25, rotary_emb_base=500.0)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}
    frequency = 500.0 ** -(torch.arange(0, 4, 2) / 4)
    angle = torch.cat([torch.arange(9.0)[:, None] * frequency] * 2, -1)[None]
    expected, _ = apply_rotary_pos_emb(x, x, angle.cos(), angle.sin())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_frequencies_are_those_of_llama(kind):
    x = torch.randn(1, 1, 50, 16)
    found = turned(x, theta=300.0, scaling=SCALINGS[kind])
    llama = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=16,
            num_attention_heads=1,
            max_position_embeddings=64,
            rope_parameters={**SCALINGS[kind], "rope_theta": 300.0},
        )
    )
    cos, sin = (part[:, None] for part in llama(x, torch.arange(50)[None]))
    expected = x * cos + torch.cat([-x[..., 8:], x[..., :8]], -1) * sin
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found - turned(x, theta=300.0)).abs().max() > 0.1, "it must differ from the unscaled rotation"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head_dim": 7}, "7"),
        ({"fraction": 0.3}, "rope_fraction = 0.3"),
        ({"fraction": 0.0}, "above 0"),
        ({"fraction": 1.5}, "at most 1"),
        ({"theta": 0.0}, "rope_theta = 0"),
        ({"scaling": {"factor": 2.0}}, "rope_type"),
        ({"scaling": {"rope_type": "yarnn", "factor": 2.0}}, "did you mean 'yarn'"),
        ({"scaling": {"rope_type": "dynamic", "factor": 2.0}}, "cached keys"),
        ({"scaling": {"rope_type": "longrope", "factor": 2.0}}, "cached keys"),
        ({"scaling": {"rope_type": "linear"}}, "needs 'factor'"),
        ({"scaling": {"rope_type": "linear", "facto": 2.0}}, "did you mean 'factor'"),
        ({"scaling": {"rope_type": "linear", "factor": 0.5}}, "at least 1"),
        ({"scaling": {"rope_type": "linear", "factor": "2"}}, "positive number"),
    ],
)
def test_bad_ropes(options, words):
    with pytest.raises(InputError, match=words):
        Rope(**{"head_dim": 16, "length": 64} | options)
