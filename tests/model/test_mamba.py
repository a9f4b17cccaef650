"""Hybrids: transformers' Jamba at the same weights, the recurrence written out, and what a state cannot do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, JambaConfig, JambaForCausalLM

import sinkscope as ss
import sinkscope.attention as zoo
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM
from tests.model.test_variants import build

HYBRID = {"attention_every": 3, "attention_offset": 1, "mamba_d_state": 4, "mamba_expand": 2}
IDS = torch.randint(1, 53, (2, 9), generator=torch.Generator().manual_seed(0))
NAMES = {".mamba.mixer.": ".mamba.", ".mlp.": ".feed_forward.", "post_attention_layernorm": "pre_ff_layernorm"}


def recurrence(mixer: torch.nn.Module, hidden: Tensor) -> Tensor:
    """Gu & Dao 2023, algorithm 2, with Jamba's norms, token by token in float64."""
    named = {name: parameter.double() for name, parameter in mixer.named_parameters()}
    x, gate = (hidden.double() @ named["in_proj.weight"].T).chunk(2, -1)
    kernel, state = named["conv1d.weight"][:, 0], torch.zeros(*x[:, 0].shape, 4, dtype=torch.float64)
    outputs = []

    def normed(values: Tensor, name: str) -> Tensor:
        return values / (values.square().mean(-1, keepdim=True) + 1e-5).sqrt() * named[f"{name}_layernorm.weight"]

    for token in range(x.shape[1]):
        past = [x[:, token - 3 + tap] if token - 3 + tap >= 0 else torch.zeros_like(x[:, 0]) for tap in range(4)]
        seen = F.silu(sum(value * kernel[:, tap] for tap, value in enumerate(past)) + named["conv1d.bias"])
        step, into, out = (seen @ named["x_proj.weight"].T).split([2, 4, 4], -1)
        step = F.softplus(normed(step, "dt") @ named["dt_proj.weight"].T + named["dt_proj.bias"])
        decay = (step[..., None] * -named["A_log"].exp()).exp()
        state = decay * state + (step * seen)[..., None] * normed(into, "b")[:, None]
        read = (state * normed(out, "c")[:, None]).sum(-1) + named["D"] * seen
        outputs.append((read * F.silu(gate[:, token])) @ named["out_proj.weight"].T)
    return torch.stack(outputs, 1)


@torch.no_grad()
def test_a_layer_is_its_recurrence():
    mixer, hidden = build(**HYBRID).model.layers[0].mamba.mixer, torch.randn(2, 9, 24)
    torch.testing.assert_close(mixer(hidden).double(), recurrence(mixer, hidden), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_without_positions_it_is_transformers_jamba():
    model = build(**HYBRID, position="none")
    config = model.config
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    names += ("intermediate_size", "rms_norm_eps", "mamba_d_state", "mamba_d_conv", "mamba_expand")
    jamba = JambaForCausalLM(
        JambaConfig(
            **{name: getattr(config, name) for name in names},
            attn_layer_period=3,
            attn_layer_offset=1,
            num_experts=1,
            tie_word_embeddings=False,
            pad_token_id=0,
        )
    ).eval()
    state = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        state[name.replace("model.norm.", "model.final_layernorm.")] = tensor
    jamba.load_state_dict(state)
    torch.testing.assert_close(model(IDS).logits, jamba(IDS).logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_state_forgets_slowly_at_first():
    """Δ = softplus(bias) starts between 0.001 and 0.1 and A at −1 … −d_state, also where a model is loaded."""
    model = LabForCausalLM(LabConfig(**HYBRID, vocab_size=8))
    mixer = model.model.layers[0].mamba.mixer
    steps = F.softplus(mixer.dt_proj.bias)
    assert 1e-3 <= steps.min() < 4e-3
    assert 3e-2 < steps.max() <= 0.1 + 1e-6
    assert mixer.A_log.exp()[0].tolist() == pytest.approx([1, 2, 3, 4])
    assert (mixer.D == 1).all()
    assert (mixer.conv1d.bias == 0).all()


@torch.no_grad()
def test_a_chunk_goes_on_from_the_state_that_a_cache_holds():
    """transformers' own layer begins every scan over several tokens from an empty state."""
    layer, hidden = build(**HYBRID).model.layers[0].mamba, torch.randn(2, 9, 24)
    cache = DynamicCache(config=build(**HYBRID).config)
    visible = build().model.layers[0].self_attn.operation.bind(9, 9, torch.device("cpu"))
    full = layer(hidden, visible)
    parts = [layer(hidden[:, part], visible, cache) for part in (slice(0, 4), slice(4, 9))]
    torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-5, rtol=1e-4)
    cache = DynamicCache(config=build(**HYBRID).config)
    layer(hidden[:, :4], visible, cache)
    assert (layer.mixer(hidden[:, 4:], cache) - full[:, 4:]).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("sinks", [0, 2])
def test_padding_anywhere_leaves_the_state_alone(sinks):
    """A row with gaps is the row without them, also for tokens that go on from its state."""
    model, real = build(**HYBRID, sink_tokens=sinks), torch.tensor([0, 1, 1, 0, 0, 1, 1, 0, 0])
    kept = real.bool()
    alone = model(torch.cat([IDS[:1, kept], IDS[:1, :2]], 1)).logits[0]
    mask = torch.stack([real, torch.ones_like(real)])
    first = model(IDS, attention_mask=mask, use_cache=True)
    torch.testing.assert_close(first.logits[0, kept], alone[:4], atol=2e-5, rtol=1e-4)
    longer = torch.cat([mask, torch.ones(2, 2, dtype=torch.long)], 1)
    then = model(IDS[:, :2], attention_mask=longer, past_key_values=first.past_key_values).logits[0]
    torch.testing.assert_close(then, alone[4:], atol=2e-5, rtol=1e-4)


def test_padding_behind_a_state_is_refused():
    model, real = build(**HYBRID), torch.ones_like(IDS)
    cache = model(IDS[:, :5], use_cache=True).past_key_values
    real[0, 7:] = 0
    with pytest.raises(InputError, match="padding follows tokens"):
        model(IDS[:, 5:], attention_mask=real, past_key_values=cache)


def test_a_cache_without_states_is_refused():
    with pytest.raises(InputError, match="DynamicCache"):
        build(**HYBRID)(IDS, past_key_values=DynamicCache(), use_cache=True)


def test_packed_documents_are_refused():
    spec = zoo.AttentionSpec(mask=zoo.Causal() & zoo.Document())
    with pytest.raises(InputError, match="document"):
        LabConfig(**HYBRID, attention=spec)


@torch.no_grad()
def test_only_attention_layers_enter_the_sink_rate():
    measured = ss.measure(build(**HYBRID), IDS)
    assert measured.data["layer_index"].values.tolist() == [1]
    assert measured.data["hidden_norm"].shape == (2, 4, 9)
    assert measured.data["attention_received"].shape == (2, 1, 4, 9)
