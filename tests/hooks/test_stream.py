"""The residual stream: read at every depth, edited at one, at the right positions, and never without a word."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel, BloomConfig, BloomForCausalLM

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.modules import blocks
from sinkscope.hooks.stream import OpenStream, Stream, read_stream, row_length, width_of
from sinkscope.interventions import ForbidSink, Intervention, SetActivations, ZeroHeads
from sinkscope.measurement import HiddenNorms, observe
from tests.families.registry import FAMILIES
from tests.measurement.conftest import build


def depths_of(model: nn.Module, **inputs: Tensor) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    with torch.no_grad(), read_stream(model, lambda depth, hidden, _: found.setdefault(depth, hidden)):
        model(**inputs)
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "qwen3_next"])
def test_depths_are_those_of_transformers_hidden_states(name: str) -> None:
    model, inputs = build(name, "eager"), FAMILIES[name].inputs()
    found = depths_of(model, **inputs)
    with torch.no_grad():
        theirs = model(**inputs, output_hidden_states=True).hidden_states
    assert sorted(found) == list(range(len(theirs)))
    for depth in range(len(theirs) - 1):  # the last of theirs is behind the final norm
        torch.testing.assert_close(found[depth], theirs[depth])


def test_blocks_of_a_family_with_attention_of_its_own_are_found_by_its_lists() -> None:
    model = BloomForCausalLM(BloomConfig(vocab_size=31, hidden_size=16, n_layer=3, n_head=2)).eval()
    ids = torch.arange(5)[None]
    theirs = model(ids, output_hidden_states=True).hidden_states
    found = depths_of(model, input_ids=ids)
    assert sorted(found) == [0, 1, 2, 3]
    for depth in range(3):
        torch.testing.assert_close(found[depth], theirs[depth])


def test_a_block_that_is_used_several_times_has_a_depth_for_each_use() -> None:
    sizes = {"hidden_size": 16, "embedding_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    model = AlbertModel(AlbertConfig(vocab_size=31, num_hidden_layers=3, **sizes)).eval()
    ids = torch.arange(5)[None]
    found = depths_of(model, input_ids=ids)
    theirs = model(ids, output_hidden_states=True).hidden_states
    assert sorted(found) == [0, 1, 2, 3]
    for depth, hidden in enumerate(theirs):
        torch.testing.assert_close(found[depth], hidden)
    with ExitStack() as stack:
        OpenStream(model, stack).edit(1, torch.zeros_like)
        with pytest.raises(UnsupportedModelError, match="uses one AlbertLayerGroup several times"):
            model(ids)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_edit_changes_its_depth_at_its_positions(depth: int) -> None:
    model = build("llama")
    ids, mask = torch.arange(6).expand(2, 6), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    before = depths_of(model, input_ids=ids, attention_mask=mask)
    with ExitStack() as stack:
        opened = OpenStream(model, stack)
        opened.edit(depth, lambda hidden: torch.where(opened.at((1,), hidden)[..., None], 7.0, hidden))
        after = depths_of(model, input_ids=ids, attention_mask=mask)
    chosen = torch.tensor([[0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    assert bool((after[depth][chosen] == 7.0).all())
    assert torch.equal(after[depth][~chosen], before[depth][~chosen])
    for earlier in range(depth):
        assert torch.equal(after[earlier], before[earlier])
    assert torch.equal(depths_of(model, input_ids=ids, attention_mask=mask)[2], before[2])


def test_what_a_block_is_given_is_what_the_one_before_left() -> None:
    model, inputs = build("llama"), FAMILIES["llama"].inputs()
    entered: list[Tensor] = []
    with ExitStack() as stack:
        OpenStream(model, stack).read_input(2, entered.append)
        found = depths_of(model, **inputs)
    assert torch.equal(entered[0], found[1])


def test_the_decoder_is_the_stream_of_an_encoder_decoder() -> None:
    stream = Stream.of(build("t5"))
    assert (stream.stack, stream.axis, stream.mask_name) == ("decoder", "tokens", "decoder_attention_mask")
    assert Stream.of(build("bert")).stack == "encoder"


def test_a_change_of_layers_that_never_dispatch_is_an_error_and_no_missing_effect() -> None:
    model, inputs = build("llama"), FAMILIES["llama"].inputs()
    stream = Stream.of(model)

    def own(hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None

    with ForbidSink((0,)).applied(model):
        stream.layers[0].forward = own
        model(**inputs)  # the other layer is changed still
        stream.layers[1].forward = own
        with pytest.raises(UnsupportedModelError, match=r"LlamaAttention never asked .*nothing was changed there"):
            model(**inputs)


def test_layers_depths_and_widths_that_do_not_exist() -> None:
    model = build("llama")
    stream = Stream.of(model)
    assert stream.depth == len(blocks(model)) == 2
    with pytest.raises(InputError, match="depth 3 is not a block's output: the model's blocks leave depths 1 to 2"):
        stream.block(3)
    with pytest.raises(InputError, match="layer 2 does not exist: the model's attention layers are 0 to 1"):
        stream.layer(2)
    assert width_of(model) == model.config.hidden_size
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    assert row_length(model, {"input_ids": torch.zeros(2, 3), "attention_mask": mask}) == 2


def test_the_layers_of_a_hybrid_are_named_by_both_counts() -> None:
    stream = Stream.of(build("qwen3_next"))
    [own] = [layer.layer_idx for layer in stream.layers]
    assert own > 0
    with pytest.raises(InputError, match=rf"attention layers are 0 to 0 \(in the model: {own}\)"):
        stream.layer(own)


@pytest.mark.parametrize("intervention", [ZeroHeads([(0, 1)]), SetActivations([(1, 0, 3)]), ForbidSink((0,))])
def test_recomputation_is_changed_as_the_pass_was(intervention: Intervention) -> None:
    model, inputs = build("llama"), FAMILIES["llama"].inputs()
    gradients = []
    for checkpointing in (False, True):
        model.zero_grad()
        if checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
            model.train()
        with intervention.applied(model):
            model(**inputs, use_cache=False).logits.square().mean().backward()
        gradients.append(model.model.layers[0].self_attn.v_proj.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_pass_that_is_refused_counts_nowhere() -> None:
    model, inputs = build("llama"), FAMILIES["llama"].inputs()

    def own(hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None

    with observe(model, HiddenNorms()) as seen, ForbidSink((0,)).applied(model):
        for layer in Stream.of(model).layers:
            layer.forward = own
        with pytest.raises(UnsupportedModelError, match="nothing was changed there"):
            model(**inputs)
    with pytest.raises(InputError, match="nothing was observed"):
        seen.measurement()
