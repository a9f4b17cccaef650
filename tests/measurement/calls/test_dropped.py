"""Attention over the keys that a cache kept is read as attention over all tokens, in hub and lab models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

import sinkscope as ss
from sinkscope.attention import CATALOG, AttentionSpec, Causal, Window
from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import AttentionMaps
from sinkscope.model import LabConfig, LabForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class Dropping(DynamicLayer):
    """Keeps every key, and behind the prompt hands out `kept` of the prompt's: others in each row and head."""

    def __init__(self, seed: int, kept: int, heads: int, shuffled: bool) -> None:
        super().__init__()
        self.chosen = torch.Generator().manual_seed(seed)
        self.kept, self.heads, self.shuffled = kept, heads, shuffled
        self.prompt: Tensor | None = None
        self.places: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        seen, (batch, kv_heads, new, _) = self.get_seq_length(), key_states.shape
        keys, values = super().update(key_states, value_states)
        if self.prompt is None:
            drawn = torch.stack([torch.randperm(new, generator=self.chosen) for _ in range(batch * self.heads)])
            drawn = drawn[:, : self.kept] if self.shuffled else drawn[:, : self.kept].sort(-1).values
            self.prompt, self.first = drawn.view(batch, self.heads, self.kept), new
            self.places = torch.arange(new).expand(batch, 1, -1)
            return keys, values
        own = torch.arange(self.first, seen + new).expand(batch, self.heads, -1)
        self.places = torch.cat([self.prompt, own], -1)
        index = self.places.expand(-1, kv_heads, -1)[..., None]
        return tuple(x.gather(2, index.expand(-1, -1, -1, x.shape[-1])) for x in (keys, values))  # type: ignore

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        if self.prompt is None:
            return super().get_mask_sizes(query_length)
        length = self.kept + self.get_seq_length() - self.first + query_length
        return length, self.get_seq_length() + query_length - length


def dropping(model: PreTrainedModel, heads: int, kept: int = 4, shuffled: bool = False) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    cache.layers = [Dropping(seed, kept, heads, shuffled) for seed, _ in enumerate(cache.layers)]
    return cache


def lab(**fields: Any) -> LabForCausalLM:
    torch.manual_seed(0)
    model = LabForCausalLM(LabConfig(**SIZES | fields)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, 0.3)
    return model


IDS = torch.randint(0, 40, (2, 14), generator=torch.Generator().manual_seed(1))


def decoded(model: nn.Module, cache: DynamicCache) -> Tensor:
    """Logits behind the prompt of 9 tokens, one token at a time."""
    prompt = model(IDS[:, :9], past_key_values=cache).logits[:, -1:]
    steps = (model(IDS[:, t : t + 1], past_key_values=cache, position_ids=torch.full((2, 1), t)) for t in range(9, 14))
    return torch.cat([prompt, *(step.logits for step in steps)], 1)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("heads", [1, 2])
def test_maps_over_kept_keys_stand_at_their_columns(implementation: str, heads: int) -> None:
    model = lab().to_llama()
    model.set_attn_implementation("eager")
    cache, rows = dropping(model, heads), []
    for t in range(9, 14):
        if t == 9:
            model(IDS[:, :9], past_key_values=cache)
        step = model(
            IDS[:, t : t + 1], past_key_values=cache, output_attentions=True, position_ids=torch.full((2, 1), t)
        )
        whole = torch.zeros(2, 2, 4, 14)
        for index, (layer, weights) in enumerate(zip(cache.layers, step.attentions, strict=True)):
            columns = layer.places.repeat_interleave(4 // heads, 1)
            whole[:, index].scatter_(-1, columns, weights[:, :, 0])
        rows.append(whole)
    model.set_attn_implementation(implementation)
    with ss.observe(model, AttentionMaps(), ss.AttentionReceived(), ss.QueryKeyValueNorms()) as seen:
        decoded(model, dropping(model, heads))
    measured = seen.measurement()
    maps = torch.tensor(measured.data["attention_map"].values)
    torch.testing.assert_close(maps[..., 9:14, :14], torch.stack(rows, 3)[:1], atol=1e-5, rtol=1e-4)
    counts = (maps > 0).sum(-2).clamp(min=1)  # a head's later queries do not see what it dropped
    received = torch.tensor(measured.data["attention_received"].values)[:1]
    torch.testing.assert_close(received, maps.sum(-2) / counts, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_lab_model_decodes_as_its_llama_does(heads: int, shuffled: bool) -> None:
    model = lab()
    llama = model.to_llama()
    mine, theirs = (decoded(one, dropping(one, heads, shuffled=shuffled)) for one in (model, llama))
    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)
    assert (mine[:, 1:] - decoded(model, DynamicCache(config=model.config))[:, 1:]).abs().max() > 0.01


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["softmax_off_by_one", "sigmoid", "sigmoid_bias", "k_bias", "gated_head", "kernel_elu"]
)
def test_an_operation_over_kept_keys_is_that_operation_with_the_others_hidden(name: str) -> None:
    model = lab(attention=CATALOG[name])
    with ss.observe(model, AttentionMaps(), ss.AttentionReceived()) as seen:  # compares every output with its weights
        decoded(model, dropping(model, 2))
    maps = torch.tensor(seen.measurement().data["attention_map"].values)[:, :, :, 13]
    assert ((maps[..., :9] != 0).sum(-1) <= 4).all()
    assert maps[..., 9:14].abs().sum() > 0


@torch.no_grad()
@pytest.mark.parametrize(
    ("fields", "reader"),
    [
        ({"position": "alibi"}, "alibi"),
        ({"attention": CATALOG["stick_breaking"]}, "stick_breaking"),
        ({"attention": CATALOG["forgetting_gate"]}, "forgetting"),
        ({"attention": CATALOG["exclusive"]}, "exclusive"),
    ],
)
def test_what_reads_every_key_is_refused(fields: dict[str, Any], reader: str) -> None:
    model = lab(**fields)
    with pytest.raises(UnsupportedModelError, match=f"dropped keys.*{reader}"):
        decoded(model, dropping(model, 1))


@torch.no_grad()
def test_a_window_counts_columns_of_the_whole_text() -> None:
    model = lab(attention=AttentionSpec(mask=Causal() & Window(6)))
    with ss.observe(model, AttentionMaps()) as seen:
        decoded(model, dropping(model, 2))
    maps = torch.tensor(seen.measurement().data["attention_map"].values)
    assert (maps[:, :, :, 13, :8] == 0).all()


@torch.no_grad()
def test_keys_handed_out_twice_are_refused() -> None:
    model = lab().to_llama()

    class Twice(Dropping):
        def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            keys, values = super().update(*args, **kwargs)
            if self.places is not None and self.get_seq_length() > 9:
                self.places = self.places.clone()
                self.places[:, :, 1] = self.places[:, :, 0]
            return keys, values

    cache = dropping(model, 1)
    cache.layers = [Twice(0, 4, 1, False) for _ in cache.layers]
    with ss.observe(model) as seen:
        model(IDS[:, :9], past_key_values=cache)
        model(IDS[:, 9:12], past_key_values=cache, position_ids=torch.arange(9, 12)[None].expand(2, -1))
    with pytest.raises(UnsupportedModelError, match="once for every query"):
        seen.measurement()
