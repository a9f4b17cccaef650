"""The spared tokens of the pass under way: whole passes, batches of rows, chunks, cached decoding, `generate`."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaForCausalLM, ViTConfig, ViTForImageClassification

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.quantization import (
    FirstTokens,
    Known,
    MeasuredSinks,
    Positions,
    RandomTokens,
    Spared,
    SparedInPass,
    Tokens,
)


def ids(rows: int = 4, tokens: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(5, 101, (rows, tokens), generator=torch.Generator().manual_seed(seed))


class Read:
    """What `SparedInPass` says during each pass of a model."""

    def __init__(self, model: nn.Module, spared: Spared | None, stack: ExitStack) -> None:
        self.passes = SparedInPass(model, spared, stack)
        self.now: list[Tensor] = []
        self.so_far: list[Tensor] = []
        stack.callback(model.model.layers[0].register_forward_pre_hook(self._read).remove)  # type: ignore[union-attr,index]

    def _read(self, module: nn.Module, args: tuple) -> None:
        self.now.append(self.passes.now)
        self.so_far.append(self.passes.so_far)


def a_known(model: nn.Module, given: dict[str, Tensor]) -> Known:
    return RandomTokens(FirstTokens(3), 5).known(model, given)


@pytest.mark.parametrize("pads", [0, 3])
@pytest.mark.parametrize("choice", [FirstTokens(2), Positions((1, 7)), Tokens((20, 30, 40, 50)), None])
def test_chunks_and_steps_tell_what_the_whole_row_does(
    tiny_llama: LlamaForCausalLM, choice: Spared | None, pads: int
) -> None:
    every, real = ids(), torch.ones(4, 12, dtype=torch.long)
    real[1, :pads] = 0
    given = {"input_ids": every, "attention_mask": real}
    spared = choice or a_known(tiny_llama, given)
    whole, cache = spared.mask(tiny_llama, given), DynamicCache(config=tiny_llama.config)
    with ExitStack() as stack, torch.no_grad():
        read = Read(tiny_llama, spared, stack)
        for part in (slice(0, 6), slice(6, 7), slice(7, 12)):
            tiny_llama(every[:, part], attention_mask=real[:, : part.stop], past_key_values=cache)
            assert torch.equal(read.so_far[-1], whole[:, : part.stop])
    assert torch.equal(torch.cat(read.now, 1), whole)


def test_known_rows_are_found_in_any_batch(tiny_llama: LlamaForCausalLM) -> None:
    given = {"input_ids": ids(6)}
    known = a_known(tiny_llama, given)
    whole = known.mask(tiny_llama, given)
    for rows in (slice(0, 4), slice(4, 6), torch.tensor([5, 0, 0, 3])):
        assert torch.equal(known.mask(tiny_llama, {"input_ids": given["input_ids"][rows]}), whole[rows])
    left = torch.nn.functional.pad(given["input_ids"], (2, 0))
    real = torch.nn.functional.pad(torch.ones_like(given["input_ids"]), (2, 0))
    assert torch.equal(known.mask(tiny_llama, {"input_ids": left, "attention_mask": real})[:, 2:], whole)


def test_rows_that_begin_alike_go_by_their_order_or_are_refused(tiny_llama: LlamaForCausalLM) -> None:
    every = ids(3)
    every[:, :4] = every[0, :4]
    chosen = torch.zeros(3, 12, dtype=torch.bool)
    chosen[0, 1], chosen[1, 2], chosen[2, 3] = True, True, True
    known = Known(chosen, every)
    assert torch.equal(known.mask(tiny_llama, {"input_ids": every[:, :4]}), chosen[:, :4])
    with pytest.raises(InputError, match="begin alike"):
        known.mask(tiny_llama, {"input_ids": every[1:, :4]})
    assert torch.equal(known.rows(slice(1, 3)).mask(tiny_llama, {"input_ids": every[1:, :4]}), chosen[1:, :4])
    same = Known(chosen, every[:1].expand(3, -1))  # to the end: any of them will do
    assert torch.equal(same.mask(tiny_llama, {"input_ids": every[:1]}), chosen[:1])


def test_other_inputs_than_the_known_ones_are_refused(tiny_llama: LlamaForCausalLM) -> None:
    known = a_known(tiny_llama, {"input_ids": ids()})
    with pytest.raises(InputError, match="row 0 of this pass is none of the 4"):
        known.mask(tiny_llama, {"input_ids": ids(2, seed=2)})
    longer = torch.cat([ids(), ids(seed=3)], 1)
    assert not known.mask(tiny_llama, {"input_ids": longer})[:, 12:].any()
    assert torch.equal(known.mask(tiny_llama, {"input_ids": longer})[:, :12], known.chosen)
    with ExitStack() as stack, pytest.raises(InputError, match="known"):
        SparedInPass(tiny_llama, MeasuredSinks(), stack)


def test_known_vectors_are_found_too(tiny_llama: LlamaForCausalLM) -> None:
    vectors = torch.randn(3, 5, 32)
    known = RandomTokens(FirstTokens(1)).known(tiny_llama, {"inputs_embeds": vectors})
    assert torch.equal(known.mask(tiny_llama, {"inputs_embeds": vectors[1:2]}), known.chosen[1:2])
    with pytest.raises(InputError, match="none of the 3"):
        known.mask(tiny_llama, {"inputs_embeds": vectors[:1] + 1})


def test_generate_spares_the_prompts_tokens_and_goes_on(tiny_llama: LlamaForCausalLM) -> None:
    with ExitStack() as stack:
        read = Read(tiny_llama, FirstTokens(2), stack)
        tiny_llama.generate(ids(2, 5), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert [tuple(mask.shape) for mask in read.now] == [(2, 5), (2, 1), (2, 1), (2, 1)]
    assert [int(mask.sum()) for mask in read.now] == [4, 0, 0, 0]
    assert read.so_far[-1].sum() == 4
    with pytest.raises(InputError, match="call that model itself"):
        read.passes.now  # noqa: B018


def test_a_cache_that_was_filled_before_hides_whose_tokens_it_holds(tiny_llama: LlamaForCausalLM) -> None:
    every, cache = ids(2), DynamicCache(config=tiny_llama.config)
    known = a_known(tiny_llama, {"input_ids": every})
    with torch.no_grad():
        tiny_llama(every[:, :6], past_key_values=cache)
    with ExitStack() as stack, torch.no_grad():
        read = Read(tiny_llama, Positions((1, 8)), stack)
        tiny_llama(every[:, 6:9], past_key_values=cache)
        assert read.so_far[-1][0].nonzero().flatten().tolist() == [1, 8]
    with ExitStack() as stack, torch.no_grad():
        SparedInPass(tiny_llama, known, stack)
        with pytest.raises(InputError, match="filled before"):
            tiny_llama(every[:, 9:], past_key_values=cache)


def test_what_is_left_alone_fits_the_tensors_of_the_pass(tiny_llama: LlamaForCausalLM) -> None:
    every, real, found = ids(2, 6), torch.ones(2, 6, dtype=torch.long), []
    real[0, :2] = 0
    with ExitStack() as stack, torch.no_grad():
        passes = SparedInPass(tiny_llama, FirstTokens(1), stack)

        def read(module: nn.Module, args: tuple) -> None:
            found.append(passes.exempt(torch.zeros(2, 6, 32)))
            found.append(passes.exempt(torch.zeros(12, 32)))
            with pytest.raises(UnsupportedModelError, match="other tokens"):
                passes.exempt(torch.zeros(5, 32))

        stack.callback(tiny_llama.model.layers[0].register_forward_pre_hook(read).remove)
        tiny_llama(every, attention_mask=real)
    expected = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
    assert torch.equal(found[0], expected[..., None])
    assert torch.equal(found[1], expected.view(-1, 1))


def test_an_images_columns_are_its_patches_behind_the_class_token() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4)).eval()
    seen: list[Tensor] = []
    with ExitStack() as stack, torch.no_grad():
        spared = SparedInPass(model, FirstTokens(2), stack)
        block = model.vit.layers[0] if hasattr(model.vit, "layers") else model.vit.encoder.layer[0]
        stack.callback(block.register_forward_pre_hook(lambda *_: seen.append(spared.now)).remove)
        model(pixel_values=torch.zeros(3, 3, 8, 8))
    assert len(seen) == 1
    assert seen[0].tolist() == 3 * [[True, True, False, False, False]]
