"""Changes that test where a sink comes from: variance of head outputs, feed-forwards, what maps read, narrow views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import MatchVariance, MuteFeedForward, OneKeyView, SetReadings, readers
from tests.interventions.conftest import a_model, hooks, logits, stream

K, P = 5, 0


def ids(rows: int = 2, tokens: int = 9) -> Tensor:
    return torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(1))


def head_outputs(model: nn.Module, change: Any = None) -> list[Tensor]:
    """(batch, query, heads, dim) of each layer of a Llama, as the output projection gets them."""
    found: list[Tensor] = []
    kept = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda module, args, width=layer.self_attn.head_dim: found.append(args[0].unflatten(-1, (-1, width)))
        )
        for layer in model.model.layers
    ]
    if change is None:
        logits(model, input_ids=ids())
    else:
        with change.applied(model):
            logits(model, input_ids=ids())
    for hook in kept:
        hook.remove()
    return found


@pytest.mark.parametrize("by", ["output", "values"])
def test_head_outputs_get_the_variance_of_another_token(by: Any) -> None:
    model = a_model("llama")
    plain, changed = head_outputs(model), head_outputs(model, MatchVariance(K, P, by))
    for found in changed:
        variance = found.var(-1, correction=0)
        torch.testing.assert_close(variance[:, K], variance[:, P], rtol=1e-4, atol=0)
    others = [t for t in range(9) if t != K]
    assert torch.equal(changed[0][:, others], plain[0][:, others])
    here, there = plain[0][:, K], changed[0][:, K]
    if by == "values":
        ratio = there / here
        torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio), rtol=1e-3, atol=1e-4)
    else:
        torch.testing.assert_close(there.mean(-1), here.mean(-1), rtol=1e-4, atol=1e-6)
    assert hooks(model) == 0


def test_its_control_goes_as_far_in_another_direction() -> None:
    model = a_model("llama")
    change = MatchVariance(K, P)
    control = change.control(torch.Generator().manual_seed(0), model, {"input_ids": ids()})
    plain, changed, drawn = (head_outputs(model, each)[0][:, K] for each in (None, change, control))
    far, as_far = (changed - plain).norm(dim=-1), (drawn - plain).norm(dim=-1)
    torch.testing.assert_close(far, as_far, rtol=1e-3, atol=1e-6)
    assert torch.nn.functional.cosine_similarity(changed - plain, drawn - plain, dim=-1).abs().max() < 0.9
    again = head_outputs(model, control)[0][:, K]
    assert torch.equal(again, drawn)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "lab:softmax"])
def test_a_feed_forward_is_off_for_a_token_and_only_there(name: str) -> None:
    model, text = a_model(name), ids()
    blocks = {
        "gpt2": lambda: model.transformer.h[1].mlp,
        "bert": lambda: model.bert.encoder.layer[1].output.dense,
    }.get(name, lambda: model.model.layers[1].mlp)()

    def off(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, P] = 0
        return output

    hook = blocks.register_forward_hook(off)
    expected = logits(model, input_ids=text)
    hook.remove()
    with MuteFeedForward(2, (P,)).applied(model):
        found = logits(model, input_ids=text)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, logits(model, input_ids=text), atol=1e-4)
    assert MuteFeedForward(2, (P,)).control(torch.Generator(), model, {"input_ids": text}).positions != (P,)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_a_mixture_of_experts_is_refused_by_name(name: str) -> None:
    model = a_model(name, "eager")
    with (
        MuteFeedForward(1, (P,)).applied(model),
        pytest.raises(UnsupportedModelError, match=f"family '{name}': .* block 0 is given tokens in no order"),
    ):
        logits(model, input_ids=ids())


def test_what_maps_read_is_changed_and_the_stream_is_not() -> None:
    model, text = a_model("llama"), ids()
    paths = [each.path for each in readers(model, 1)]
    assert {path.rsplit(".", 1)[1] for path in paths} == {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
    assert not any(".0." in path for path in paths), "the first block reads depth 0"
    dims, seen = (3, 9), {}
    modules = dict(model.named_modules())
    kept = [
        modules[path].register_forward_pre_hook(lambda _, args, path=path: seen.setdefault(path, []).append(args[0]))
        for path in paths
    ]
    plain = stream(model, input_ids=text)
    with SetReadings((P,), dims, dict.fromkeys(paths, (0.5, -0.25))).applied(model):
        changed = stream(model, input_ids=text)
    for hook in kept:
        hook.remove()
    assert torch.equal(changed[:2], plain[:2]), "depths 0 and 1 come before what reads them"
    for path, (before, after) in seen.items():
        assert torch.equal(after[:, P, list(dims)], after.new_tensor([0.5, -0.25]).expand(2, 2)), path
        if ".1.self_attn" in path:
            assert torch.equal(after[:, 1:], before[:, 1:])
    with pytest.raises(InputError, match="map that reads the stream"):
        SetReadings((P,), (1,), {"model.layers.0.mlp.down_proj": (0.0,)}).attach(
            model, __import__("contextlib").ExitStack()
        )
    with pytest.raises(InputError, match="one for each of dims"):
        SetReadings((P,), (1, 2), {"q": (0.0,)})


@pytest.mark.parametrize("name", ["llama", "lab:softmax"])
def test_a_query_sees_one_other_key_alone(name: str) -> None:
    model, text = a_model(name, "eager"), ids()
    with OneKeyView(K, 2).applied(model), torch.no_grad():
        maps = model(text, output_attentions=True).attentions
    for weights in maps:
        torch.testing.assert_close(weights[:, :, K, 2], torch.ones_like(weights[:, :, K, 2]))
        assert float(weights[:, :, K + 1, :].max()) < 1
    control = OneKeyView(K, 2).control(torch.Generator(), model, {})
    assert (control.position, control.key < K) == (K, True)


def test_bad_input_is_refused() -> None:
    model = a_model("llama")
    with MatchVariance(20, 0).applied(model), pytest.raises(InputError, match="position 20 is not in this pass"):
        logits(model, input_ids=ids())
    with pytest.raises(InputError, match="'output' or 'values'"):
        MatchVariance(5, 0, "outputs")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="depth 9"), MuteFeedForward(9, (0,)).applied(model):
        pass
