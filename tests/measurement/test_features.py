"""The keys that generated queries give most, against eager maps of the same run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.measurement import StrongestKeys

NEW, PROMPT = 6, 9


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=50, num_key_value_heads=2, initializer_range=0.3, **sizes)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def prompts() -> dict[str, Tensor]:
    ids = torch.randint(3, 50, (2, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0  # the second row is shorter
    return {"input_ids": ids, "attention_mask": mask}


def generated(model: Any, prompts: dict[str, Tensor], **options: Any) -> Any:
    return model.generate(**prompts, max_new_tokens=NEW, do_sample=False, pad_token_id=0, **options)


def naive(model: LlamaForCausalLM, prompts: dict[str, Tensor], k: int) -> list[Any]:
    """For each generated query: (row, layer, head) → the k largest (mean weight, position, ‖v‖), from whole maps."""
    ids = generated(model, prompts)[:, :-1]  # the last token was never a query
    mask = torch.cat([prompts["attention_mask"], torch.ones(2, ids.shape[1] - PROMPT, dtype=torch.long)], 1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(ids, attention_mask=mask, output_attentions=True, use_cache=True)
    model.set_attn_implementation("sdpa")
    found = []
    for query in range(PROMPT, ids.shape[1]):
        at: dict[Any, Any] = {}
        for row in range(2):
            pad = int((mask[row] == 0).sum())
            for layer, maps in enumerate(out.attentions):
                values = out.past_key_values.layers[layer].values[row]
                for head in range(4):
                    means = []
                    for key in range(pad, query + 1):
                        rows = [float(maps[row, head, t, key]) for t in range(max(PROMPT, key), query + 1)]
                        means.append((sum(rows) / len(rows), key - pad, float(values[head // 2, key].norm())))
                    at[row, layer, head] = sorted(means, reverse=True)[:k]
        found.append(at)
    return found


def test_features_agree_with_whole_maps(llama: LlamaForCausalLM, prompts: dict[str, Tensor]) -> None:
    with ss.observe(llama, StrongestKeys(3)) as observation:
        generated(llama, prompts)
    measurement = observation.measurement()
    wanted = naive(llama, prompts, 3)
    each = measurement.features(3, per_token=True)
    last = measurement.features(2)
    assert last["attention"].dims == ("sample", "layer", "head", "strongest")
    for (row, layer, head), strongest in wanted[-1].items():
        here = last.isel(sample=row, layer=layer, head=head)
        np.testing.assert_allclose(here["attention"], [mean for mean, *_ in strongest[:2]], atol=1e-5)
        assert here["key"].values.tolist() == [position for _, position, _ in strongest[:2]]
        np.testing.assert_allclose(here["value_norm"], [norm for *_, norm in strongest[:2]], rtol=1e-5)
    first = {row: int(np.flatnonzero(np.isfinite(each["attention"][row, 0, 0, :, 0]))[0]) for row in range(2)}
    for step, at in enumerate(wanted):
        for (row, layer, head), strongest in at.items():
            here = each.isel(sample=row, layer=layer, head=head, position=first[row] + step)
            np.testing.assert_allclose(here["attention"], [mean for mean, *_ in strongest], atol=1e-5)
            assert here["key"].values.tolist() == [position for _, position, _ in strongest]


@pytest.mark.slow
def test_samples_that_are_cut_anew_as_keys_grow_keep_their_sums(
    llama: LlamaForCausalLM, prompts: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> Any:
        with ss.observe(llama, StrongestKeys(3)) as observation:
            generated(llama, prompts)
        return observation.measurement().features(3, per_token=True)

    whole = found()
    # Two samples of four heads fit in one chunk up to 12 keys, then one does.
    monkeypatch.setattr("sinkscope.measurement.calls.call.ELEMENTS", 2 * 4 * 12)
    xr.testing.assert_allclose(found(), whole)


def test_a_second_run_starts_anew_and_the_output_stays(llama: LlamaForCausalLM, prompts: dict[str, Tensor]) -> None:
    observer = StrongestKeys(2)
    plain = generated(llama, prompts)
    with ss.observe(llama, observer) as observation:
        assert torch.equal(generated(llama, prompts), plain)
        generated(llama, prompts)
    found = observation.measurement().features(2)
    np.testing.assert_array_equal(found["attention"][:2], found["attention"][2:])


def values_of(model: Any, ids: Tensor) -> np.ndarray:
    """‖v‖ of every token: (layer, head, position), each key-value head repeated for its group."""
    caught: list[Tensor] = []
    handles = [
        layer.self_attn.v_proj.register_forward_hook(lambda _m, _i, out: caught.append(out[0]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    heads, dim = model.config.num_key_value_heads, caught[0].shape[-1] // model.config.num_key_value_heads
    norms = torch.stack([each.unflatten(-1, (heads, dim)).norm(dim=-1).T for each in caught])
    return norms.repeat_interleave(model.config.num_attention_heads // heads, 1).numpy()


@pytest.mark.parametrize("gone", ["evicted", "left a window"])
def test_values_of_keys_that_are_gone_keep_their_norms(llama: LlamaForCausalLM, gone: str) -> None:
    model: Any = llama
    if gone == "left a window":
        torch.manual_seed(0)
        kept = {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["sliding_attention"] * 2}
        model = Qwen2ForCausalLM(Qwen2Config(**(llama.config.to_dict() | kept | {"model_type": "qwen2"}))).eval()
    ids = torch.randint(3, 50, (1, PROMPT), generator=torch.Generator().manual_seed(2))
    with ss.evicting(model, "h2o", 5, when="always") if gone == "evicted" else nullcontext() as cache:
        cached = {} if cache is None else {"past_key_values": cache}
        with torch.no_grad(), ss.observe(model, StrongestKeys(8)) as observation:
            written = generated(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **cached)
    found = observation.measurement().features(8)
    first, norms = values_of(model, written)[0], found["value_norm"][0, 0].values
    keys = found["key"][0, 0].values.astype(int)
    assert (keys < written.shape[1] - 6).any()
    np.testing.assert_allclose(norms, np.take_along_axis(first, keys, -1), rtol=1e-5)


def test_bad_input_is_one_line(llama: LlamaForCausalLM, prompts: dict[str, Tensor]) -> None:
    with pytest.raises(InputError, match="no strongest keys were observed"):
        ss.measure(llama, prompts).features(2)
    for count in (0, True):
        with pytest.raises(InputError, match="count = "):
            StrongestKeys(count)
    with ss.observe(llama, StrongestKeys(2)) as observation:
        generated(llama, prompts)
    with pytest.raises(InputError, match="k = 3: 2 keys"):
        observation.measurement().features(3)


def test_padding_is_no_key(llama: LlamaForCausalLM) -> None:
    """A text padded to the length of a longer one has the same features as without padding."""
    ids = torch.randint(3, 50, (2, PROMPT), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, :7] = 0
    with torch.no_grad(), ss.observe(llama, StrongestKeys(8)) as seen:
        generated(llama, {"input_ids": ids, "attention_mask": mask})
    with torch.no_grad(), ss.observe(llama, StrongestKeys(8)) as alone:
        generated(llama, {"input_ids": ids[1:, 7:]})
    beside, wanted = seen.measurement().features(8), alone.measurement().features(8)
    for name in wanted.data_vars:
        np.testing.assert_allclose(beside[name][1], wanted[name][0], rtol=1e-4, err_msg=str(name))
