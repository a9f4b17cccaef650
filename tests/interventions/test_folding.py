"""Folding a sink: which tokens, heads and queries; what it costs to make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.llama.modeling_llama import LlamaAttention

import sinkscope as ss
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import Constants, FoldSink, constants
from tests.interventions.conftest import a_model, logits
from tests.measurement.conftest import lab_model
from tests.planted.factory import F3, planted_ids, planted_model

AFTER = 3


def ids(rows: int = 2, tokens: int = 10, seed: int = 1) -> Tensor:
    return torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def under(model: nn.Module, fold: FoldSink, text: Tensor) -> Tensor:
    with fold.applied(model):
        return logits(model, input_ids=text)


def passes(model: nn.Module, run: Any) -> int:
    """Forward passes of the model meanwhile."""
    count = []
    hook = model.register_forward_pre_hook(lambda *_: count.append(1))
    run()
    hook.remove()
    return len(count)


@pytest.mark.parametrize("form", ["logit", "logit+value"])
@pytest.mark.parametrize("on", [(0,), (0, 2)], ids=str)
@pytest.mark.parametrize(
    ("name", "host"), [("llama", "sdpa"), ("gpt_oss", "eager"), ("lab:gated_elementwise", "eager")]
)
def test_a_column_behind_the_keys_is_the_constant_in_its_place(name: str, host: str, on: Any, form: Any) -> None:
    model = a_model(name, host)
    text = ids(2, model.config.sliding_window if name == "gpt_oss" else 12)  # its windows see all keys then
    fold = ss.fold(model, ids(3, text.shape[1], 7), form, on=on[: 2 if text.shape[1] > 5 else 1], after=AFTER)
    gone = under(model, replace(fold, gone=True), text)
    torch.testing.assert_close(gone, under(model, fold, text), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(gone, logits(model, input_ids=text), atol=1e-4)


@pytest.mark.parametrize("form", ["logit", "logit+value", "key+value"])
def test_layers_may_have_heads_of_unequal_width(form: Any) -> None:
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "sliding_window": 32}
    sizes |= {"hidden_size": 32, "hidden_size_per_layer_input": 8, "intermediate_size": 37, "num_kv_shared_layers": 0}
    torch.manual_seed(0)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**sizes, **layers, vocab_size=99, vocab_size_per_layer_input=99)).eval()
    text = ids(1, 12)
    fold = ss.fold(model, text if form == "key+value" else ids(3, 12, 7), form, on=(0,), after=AFTER)
    assert fold.constants.differ(0) == (form != "key+value")
    if form == "key+value":
        torch.testing.assert_close(under(model, fold, text), logits(model, input_ids=text))
        return
    torch.testing.assert_close(under(model, replace(fold, gone=True), text), under(model, fold, text))
    assert not torch.allclose(under(model, fold, text), logits(model, input_ids=text), atol=1e-3)


@pytest.mark.parametrize("form", ["logit", "logit+value", "key+value"])
def test_layers_may_have_fewer_heads(form: Any) -> None:
    model = a_model("llama")
    config = model.config.__class__.from_dict(model.config.to_dict())
    config.num_attention_heads, config.num_key_value_heads = 2, 1
    config.head_dim = model.model.layers[0].self_attn.head_dim
    config._attn_implementation = model.config._attn_implementation
    torch.manual_seed(1)
    model.model.layers[1].self_attn = LlamaAttention(config, 1).eval()
    text = ids(1, 12)
    fold = ss.fold(model, text if form == "key+value" else ids(3, 12, 7), form, on=(0,), after=AFTER)
    assert fold.constants.logits[AFTER][1].isnan()[:, 0].tolist() == [False] * 2 + [True] * (
        model.config.num_attention_heads - 2
    )
    if form == "key+value":
        torch.testing.assert_close(under(model, fold, text), logits(model, input_ids=text))
        return
    torch.testing.assert_close(under(model, replace(fold, gone=True), text), under(model, fold, text))
    assert not torch.allclose(under(model, fold, text), logits(model, input_ids=text), atol=1e-4)


@pytest.mark.parametrize("form", ["logit", "logit+value"])
def test_queries_that_lost_the_sink_get_the_constants_too(form: Any) -> None:
    """One layer, written out: the softmax over the kept keys and the constant."""
    torch.manual_seed(0)
    model = a_model("llama")
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers, keys, text = 1, 5, ids(2, 12)
    fold = ss.fold(model, ids(4, 12, 7), form, on=(0,), after=AFTER, gone=True)
    hidden = {}

    def keep(module: nn.Module, args: Any) -> None:
        hidden["heads"] = args[0]

    hook = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(keep)
    attention = model.model.layers[0].self_attn
    entered = model.model.layers[0].input_layernorm(model.model.embed_tokens(text))
    own = constants(model, text, (0,), AFTER, positions=12)  # of each text: its keys and values at every position
    query = attention.q_proj(entered).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
    cos, sin = model.model.rotary_emb(entered, torch.arange(12)[None])
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    query, _ = apply_rotary_pos_emb(query, query, cos, sin)
    group = query.shape[1] // own.keys.shape[2]
    cache = ss.StreamingCache(model, 0, keys)
    with fold.applied(model), torch.no_grad():
        for t in range(12):
            model(text[:, t : t + 1], past_key_values=cache, use_cache=True)
            seen = list(range(max(0, t - keys + 1), t + 1))
            for row in range(2):
                for head in range(query.shape[1]):
                    kept = [k for k in seen if not (k == 0 and t >= AFTER)]
                    key, value = (table[row, 0, head // group][kept] for table in (own.keys, own.values))
                    scores = key @ query[row, head, t] * attention.scaling
                    if t >= AFTER:
                        mean = fold.constants.values[:, 0, head // group, 0].mean(0)
                        scores = torch.cat([scores, fold.constants.logits[AFTER][0, head, :1]])
                        value = torch.cat([value, (torch.zeros_like(mean) if form == "logit" else mean)[None]])
                    expected = scores.softmax(0) @ value
                    found = hidden["heads"][row, -1].unflatten(0, (-1, attention.head_dim))[head]
                    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    hook.remove()


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_a_layer_whose_window_never_reaches_the_sink_is_left_alone(name: str) -> None:
    model, text = a_model(name, "eager"), ids(2, 14)
    window = model.config.sliding_window  # of the first layer; the second sees all keys
    fold = ss.fold(model, ids(3, 14, 7), on=(0,), after=window, gone=True)
    table = fold.constants.logits[window][..., 0]
    assert table[0].isnan().all()
    assert table[1].isfinite().all()
    torch.testing.assert_close(under(model, fold, text), under(model, replace(fold, layers=(1,)), text))


@pytest.mark.parametrize("gone", [False, True])
def test_a_logit_that_no_text_showed_is_refused_where_it_is_needed(gone: bool) -> None:
    model = a_model("llama")
    with pytest.raises(InputError, match="position 0 from position 3 on, so its logit is unknown"):
        FoldSink((0,), AFTER, constants=constants(model, ids(3, AFTER, 7), (0,), AFTER), gone=gone)
    fold = ss.fold(model, ids(3, 12, 7), on=(0,), after=AFTER, gone=gone)
    fold.constants.logits[AFTER][1, 2, 0] = torch.nan  # one layer and head, as a chunk of another text may hide it
    with pytest.raises(InputError, match=r"layer '.*1.*': a query sees a token"):
        under(model, fold, ids(2, 12))


def test_softmax_layers_are_folded_beside_others() -> None:
    model, texts, text = lab_model(["softmax", "sigmoid"]), ids(3, 12, 7), ids(2, 12)
    fold = ss.fold(model, texts, on=(0,), after=AFTER, layers=(0,))
    assert fold.constants.logits[AFTER][1].isnan().all()
    torch.testing.assert_close(  # the first layer reads the embeddings, whatever comes after it
        fold.constants.logits[AFTER][0],
        constants(lab_model("softmax"), texts, (0,), AFTER).logits[AFTER][0],
    )
    assert not torch.allclose(under(model, fold, text), logits(model, input_ids=text), atol=1e-4)
    with pytest.raises(UnsupportedModelError, match="not a plain softmax"):
        under(model, replace(fold, layers=None), text)


def test_a_head_is_folded_alone() -> None:
    model, text = a_model("llama"), ids(2, 12)
    fold = ss.fold(model, ids(3, 12, 7), on=(0,), after=AFTER)
    outputs: list[Tensor] = []
    layer = model.model.layers[0].self_attn
    hook = layer.o_proj.register_forward_pre_hook(lambda _, args: outputs.append(args[0].clone()))
    logits(model, input_ids=text)
    under(model, replace(fold, heads=[(0, 2)]), text)
    under(model, replace(fold, layers=(0,)), text)
    hook.remove()
    plain, alone, whole = (each.unflatten(-1, (-1, layer.head_dim)) for each in outputs)
    others = [head for head in range(plain.shape[2]) if head != 2]
    assert torch.equal(alone[:, :, others], plain[:, :, others])
    torch.testing.assert_close(alone[:, AFTER:, 2], whole[:, AFTER:, 2], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(alone[:, AFTER:, 2], plain[:, AFTER:, 2], atol=1e-4)
    every = [(layer, head) for layer in range(2) for head in range(plain.shape[2])]
    both = under(model, replace(fold, heads=every), text), under(model, fold, text)
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)


def test_the_sink_is_measured_where_none_is_named_and_each_is_one_pass() -> None:
    model, texts = planted_model(), planted_ids(F3, samples=4, tokens=24)
    found: list[FoldSink] = []
    assert passes(model, lambda: found.append(ss.fold(model, texts))) == 2
    assert found[0].positions_named == (0,)
    assert passes(model, lambda: found.append(ss.fold(model, texts, on="positions:0"))) == 1
    assert found[1].constants.logits[8].shape == found[0].constants.logits[8].shape


def test_bfloat16_one_text_and_an_odd_length() -> None:
    model = a_model("llama").to(torch.bfloat16)
    fold = ss.fold(model, ids(1, 11, 7), "key+value", on=(0,), after=AFTER)
    same = under(model, fold, ids(1, 11, 7))
    plain = logits(model, input_ids=ids(1, 11, 7))
    assert float((same - plain).float().abs().max()) <= 0.05 * float(plain.float().abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_may_be_given(dtype: torch.dtype) -> None:
    model = a_model("llama").to(dtype)
    embedded = model.get_input_embeddings()(ids(3, 10, 7))
    assert embedded.requires_grad
    found = ss.fold(model, {"inputs_embeds": embedded}, on=(0,), after=AFTER).constants
    assert torch.equal(found.keys, ss.fold(model, ids(3, 10, 7), on=(0,), after=AFTER).constants.keys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "logits"}, "did you mean 'logit'"),
        ({"form": "key+value", "gone": True}, "a key has a position"),
        ({"on": "none"}, "acts on some tokens"),
        ({"heads": [(0, 99)]}, "head 99 does not exist"),
        ({"heads": [(9, 0)]}, "layer 9 does not exist"),
        ({"heads": [(0, 0)], "layers": (1,)}, "give one of the two"),
        ({"after": 0}, "after = 0"),
        ({"on": (11,)}, "at least"),
        ({"after": 10}, "its logit is unknown"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], message: str) -> None:
    model = a_model("llama")
    with pytest.raises(InputError, match=message):
        under(model, ss.fold(model, ids(3, 10, 7), **{"on": (0,), "after": AFTER, **options}), ids())


def test_constants_say_where_they_come_from() -> None:
    model = a_model("llama")
    fold = ss.fold(model, ids(3, 10, 7), on=(0,), after=AFTER)
    assert isinstance(fold.constants, Constants)
    about = fold.describe()
    assert (about["form"], about["constants"]["texts"], about["on"]) == ("logit+value", 3, [(0, AFTER)])
