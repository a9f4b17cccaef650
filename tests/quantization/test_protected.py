"""Protected tokens of the pass under way: whole passes, batches of rows, chunks, cached decoding, `generate`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaForCausalLM, ViTConfig, ViTForImageClassification

from sinkscope import quantization
from sinkscope.attention import AttentionSpec, Causal, Document
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.model.columns import columns_of
from sinkscope.quantization import (
    Grid,
    ProtectedInPass,
    QuantizeCache,
    QuantizeLinear,
    calibrated,
    matched_tokens,
    quantized_cache,
    random_tokens,
    resolved,
)
from sinkscope.quantization.protected import among
from sinkscope.sinks import Choice, First, Measured, Positions, Rows, TokenIds, Tokens

CHOICES = [First(2), Positions(0, 3), TokenIds(7, 9)]


def ids(rows: int = 4, tokens: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(5, 101, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def few(rows: int = 3, tokens: int = 12) -> Tensor:
    """Texts of seven different tokens."""
    return torch.randint(5, 12, (rows, tokens), generator=torch.Generator().manual_seed(1))


def mask(protect: Choice | Tokens, model: nn.Module, given: dict[str, Any]) -> Tensor:
    return among(protect, columns_of(model, given))


class Read:
    """What `ProtectedInPass` says during each pass of a model."""

    def __init__(self, model: nn.Module, protect: Choice | Tokens | None, stack: ExitStack) -> None:
        self.passes = ProtectedInPass(model, protect, stack)
        self.now: list[Tensor] = []
        self.so_far: list[Tensor] = []
        stack.callback(model.model.layers[0].register_forward_pre_hook(self._read).remove)  # type: ignore[union-attr,index]

    def _read(self, module: nn.Module, args: tuple) -> None:
        self.now.append(self.passes.now)
        self.so_far.append(self.passes.so_far)


def known_tokens(chosen: Tensor, texts: Tensor | None) -> Tokens:
    """Tokens that were chosen in certain texts, whole rows without padding."""
    rows = Rows.plain([chosen.shape[1]] * len(chosen), None if texts is None else texts.numpy())
    return Tokens(chosen.numpy()[:, None, None], rows, (), "by hand")


def three_a_row(model: nn.Module, given: dict[str, Tensor]) -> Tokens:
    """Three tokens of each row, others in each."""
    real = columns_of(model, given).real
    drawn = torch.rand(real.shape, generator=torch.Generator().manual_seed(5)).masked_fill(~real, -1)
    chosen = torch.zeros_like(real).scatter(1, drawn.topk(3, dim=1).indices, True)
    tokens = resolved(First(1), model, given)
    assert tokens.rows is not None
    places = torch.argsort((~real).int(), dim=-1, stable=True)
    return Tokens(chosen.gather(1, places).numpy()[:, None, None], tokens.rows, (), "by hand")


@pytest.mark.parametrize("pads", [0, 3])
@pytest.mark.parametrize("choice", [First(2), Positions(1, 7), TokenIds(20, 30, 40, 50), None])
def test_chunks_and_steps_tell_what_the_whole_row_does(
    tiny_llama: LlamaForCausalLM, choice: Choice | None, pads: int
) -> None:
    every, real = ids(), torch.ones(4, 12, dtype=torch.long)
    real[1, :pads] = 0
    given = {"input_ids": every, "attention_mask": real}
    protect = choice or three_a_row(tiny_llama, given)
    whole, cache = mask(protect, tiny_llama, given), DynamicCache(config=tiny_llama.config)
    with ExitStack() as stack, torch.no_grad():
        read = Read(tiny_llama, protect, stack)
        for part in (slice(0, 6), slice(6, 7), slice(7, 12)):
            tiny_llama(every[:, part], attention_mask=real[:, : part.stop], past_key_values=cache)
            assert torch.equal(read.so_far[-1], whole[:, : part.stop])
    assert torch.equal(torch.cat(read.now, 1), whole)


def test_known_rows_are_found_in_any_batch(tiny_llama: LlamaForCausalLM) -> None:
    given = {"input_ids": ids(6)}
    known = three_a_row(tiny_llama, given)
    whole = mask(known, tiny_llama, given)
    for rows in (slice(0, 4), slice(4, 6), torch.tensor([5, 0, 0, 3])):
        assert torch.equal(mask(known, tiny_llama, {"input_ids": given["input_ids"][rows]}), whole[rows])
    left = torch.nn.functional.pad(given["input_ids"], (2, 0))
    real = torch.nn.functional.pad(torch.ones_like(given["input_ids"]), (2, 0))
    assert torch.equal(mask(known, tiny_llama, {"input_ids": left, "attention_mask": real})[:, 2:], whole)


def test_rows_that_begin_alike_go_by_their_order_or_are_refused(tiny_llama: LlamaForCausalLM) -> None:
    every = ids(3)
    every[:, :4] = every[0, :4]
    chosen = torch.zeros(3, 12, dtype=torch.bool)
    chosen[0, 1], chosen[1, 2], chosen[2, 3] = True, True, True
    known = known_tokens(chosen, every)
    assert torch.equal(mask(known, tiny_llama, {"input_ids": every[:, :4]}), chosen[:, :4])
    with pytest.raises(InputError, match="begin alike"):
        mask(known, tiny_llama, {"input_ids": every[1:, :4]})
    assert torch.equal(mask(known.part(slice(1, 3)), tiny_llama, {"input_ids": every[1:, :4]}), chosen[1:, :4])
    same = known_tokens(chosen, every[:1].expand(3, -1))  # to the end: any of them will do
    assert torch.equal(mask(same, tiny_llama, {"input_ids": every[:1]}), chosen[:1])


@pytest.mark.parametrize("longer_first", [False, True])
def test_a_text_that_continues_another_protects_its_own(tiny_llama: LlamaForCausalLM, longer_first: bool) -> None:
    longer, other = ids(2, 6)
    real, chosen = torch.ones(3, 6, dtype=torch.long), torch.zeros(3, 6, dtype=torch.bool)
    real[0, 4:] = 0  # the first text is the beginning of the last
    every = torch.stack([longer * real[0], other, longer])
    chosen[0, 1] = chosen[1, 2] = chosen[2, 5] = True
    order = [2, 1, 0] if longer_first else [0, 1, 2]
    rows = resolved(First(1), tiny_llama, {"input_ids": every[order], "attention_mask": real[order]}).rows
    known = Tokens(chosen[order].numpy()[:, None, None], rows, (), "by hand")
    generated = torch.cat([longer, torch.tensor([7, 8])])[None]
    assert torch.equal(mask(known, tiny_llama, {"input_ids": longer[None]}), chosen[2:])
    assert torch.equal(mask(known, tiny_llama, {"input_ids": generated})[:, :6], chosen[2:])
    assert torch.equal(mask(known, tiny_llama, {"input_ids": every[[2, 1]]}), chosen[[2, 1]])
    assert torch.equal(
        mask(known, tiny_llama, {"input_ids": every[order], "attention_mask": real[order]}), chosen[order]
    )


def test_other_inputs_than_the_known_ones_are_refused(tiny_llama: LlamaForCausalLM) -> None:
    known = three_a_row(tiny_llama, {"input_ids": ids()})
    with pytest.raises(InputError, match="row 0 of this pass is not one of the 4"):
        mask(known, tiny_llama, {"input_ids": ids(2, seed=2)})
    longer = torch.cat([ids(), ids(seed=3)], 1)
    assert not mask(known, tiny_llama, {"input_ids": longer})[:, 12:].any()
    assert torch.equal(mask(known, tiny_llama, {"input_ids": longer})[:, :12], torch.from_numpy(known.any_head()))
    with ExitStack() as stack, pytest.raises(InputError, match="find_tokens"):
        ProtectedInPass(tiny_llama, Measured(), stack)


def test_tokens_without_ids_are_those_of_all_rows_whole(tiny_llama: LlamaForCausalLM) -> None:
    given = {"inputs_embeds": torch.randn(3, 5, 32)}
    chosen = torch.zeros(3, 5, dtype=torch.bool)
    chosen[0, 1] = chosen[2, 3] = True
    known = known_tokens(chosen, None)
    assert torch.equal(mask(known, tiny_llama, given), chosen)
    part = {"inputs_embeds": given["inputs_embeds"][1:]}
    assert torch.equal(mask(known.part(slice(1, 3)), tiny_llama, part), chosen[1:])
    with pytest.raises(InputError, match="tokens were chosen, whole"):
        mask(known, tiny_llama, part)


def test_generate_protects_the_prompts_tokens_and_goes_on(tiny_llama: LlamaForCausalLM) -> None:
    with ExitStack() as stack:
        read = Read(tiny_llama, First(2), stack)
        tiny_llama.generate(ids(2, 5), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert [tuple(mask.shape) for mask in read.now] == [(2, 5), (2, 1), (2, 1), (2, 1)]
    assert [int(mask.sum()) for mask in read.now] == [4, 0, 0, 0]
    assert read.so_far[-1].sum() == 4
    with pytest.raises(InputError, match="call that model itself"):
        read.passes.now  # noqa: B018


def test_a_cache_that_was_filled_before_hides_whose_tokens_it_holds(tiny_llama: LlamaForCausalLM) -> None:
    every, cache = ids(2), DynamicCache(config=tiny_llama.config)
    known = three_a_row(tiny_llama, {"input_ids": every})
    with torch.no_grad():
        tiny_llama(every[:, :6], past_key_values=cache)
    with ExitStack() as stack, torch.no_grad():
        read = Read(tiny_llama, Positions(1, 8), stack)
        tiny_llama(every[:, 6:9], past_key_values=cache)
        assert read.so_far[-1][0].nonzero().flatten().tolist() == [1, 8]
    with ExitStack() as stack, torch.no_grad():
        ProtectedInPass(tiny_llama, known, stack)
        with pytest.raises(InputError, match="have no ids"):
            tiny_llama(every[:, 9:], past_key_values=cache)


def test_what_is_left_alone_fits_the_tensors_of_the_pass(tiny_llama: LlamaForCausalLM) -> None:
    every, real, found = ids(2, 6), torch.ones(2, 6, dtype=torch.long), []
    real[0, :2] = 0
    with ExitStack() as stack, torch.no_grad():
        passes = ProtectedInPass(tiny_llama, First(1), stack)

        def read(module: nn.Module, args: tuple) -> None:
            found.append(passes.exempt(torch.zeros(2, 6, 32)))
            found.append(passes.exempt(torch.zeros(12, 32)))
            with pytest.raises(UnsupportedModelError, match="its tokens are others"):
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
        protected = ProtectedInPass(model, First(2), stack)
        block = model.vit.layers[0] if hasattr(model.vit, "layers") else model.vit.encoder.layer[0]
        stack.callback(block.register_forward_pre_hook(lambda *_: seen.append(protected.now)).remove)
        model(pixel_values=torch.zeros(3, 3, 8, 8))
    assert len(seen) == 1
    assert seen[0].tolist() == 3 * [[True, True, False, False, False]]


def lab(**options: object) -> LabForCausalLM:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LabForCausalLM(LabConfig(**sizes, intermediate_size=32, **options)).eval()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("choice", CHOICES)
def test_a_padded_row_protects_what_it_protects_alone(tiny_llama: LlamaForCausalLM, choice: Choice, side: str) -> None:
    row = few(1, 9)
    pads = (3, 0) if side == "left" else (0, 3)
    padded = torch.nn.functional.pad(row, pads, value=7)  # an id that is protected where it is real
    real = torch.nn.functional.pad(torch.ones_like(row), pads)
    found = mask(choice, tiny_llama, {"input_ids": padded, "attention_mask": real})
    assert torch.equal(found[real.bool()][None], mask(choice, tiny_llama, {"input_ids": row}))
    assert not found[~real.bool()].any()
    assert found.any()


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("pads", [0, 3])
def test_what_continues_a_cache_counts_on(tiny_llama: LlamaForCausalLM, choice: Choice, pads: int) -> None:
    every, real = few(), torch.ones(3, 12, dtype=torch.long)
    real[1, :pads] = 0
    whole = mask(choice, tiny_llama, {"input_ids": every, "attention_mask": real})
    cache = DynamicCache(config=tiny_llama.config)
    found = []
    for part in (slice(0, 5), slice(5, 6), slice(6, 12)):
        given = {"input_ids": every[:, part], "attention_mask": real[:, : part.stop], "past_key_values": cache}
        found.append(mask(choice, tiny_llama, given))
        with torch.no_grad():
            tiny_llama(**given)
    assert torch.equal(torch.cat(found, 1), whole)


@pytest.mark.parametrize("choice", CHOICES)
def test_packed_documents_count_each_from_its_own_start(tiny_llama: LlamaForCausalLM, choice: Choice) -> None:
    one, other = few(1, 5), few(1, 7)
    places = torch.cat([torch.arange(5), torch.arange(7)])[None]
    found = mask(choice, tiny_llama, {"input_ids": torch.cat([one, other], 1), "position_ids": places})
    alone = [mask(choice, tiny_llama, {"input_ids": part}) for part in (one, other)]
    assert torch.equal(found, torch.cat(alone, 1))


def test_documents_of_lab_models_are_apart_where_their_mask_keeps_them_apart() -> None:
    given = {"input_ids": few(1, 8), "document_ids": torch.tensor([[4, 4, 4, 9, 9, 9, 9, 9]])}
    apart = lab(attention=AttentionSpec(mask=Causal() & Document()))
    assert mask(First(1), apart, given)[0].nonzero().flatten().tolist() == [0, 3]
    assert mask(First(1), lab(), given)[0].nonzero().flatten().tolist() == [0]


def test_learned_tokens_stand_before_the_first() -> None:
    model, given = lab(sink_tokens=2), {"input_ids": few(2, 6)}
    assert mask(Positions(0, 3), model, given)[0].nonzero().flatten().tolist() == [0, 3]
    assert mask(First(3), model, given).shape == (2, 8)
    token = int(given["input_ids"][0, 4])
    assert bool(mask(TokenIds(token), model, given)[0, 6])
    long = {"input_ids": few(2, 40)}
    drawn = random_tokens(Positions(5), torch.Generator(), model, long)
    assert not mask(drawn, model, long)[:, :2].any()


def test_a_control_protects_as_many_others_in_every_row(tiny_llama: LlamaForCausalLM) -> None:
    given = {"input_ids": ids(4, 40), "attention_mask": torch.ones(4, 40, dtype=torch.long)}
    given["attention_mask"][2, :4] = 0
    like = TokenIds(7, 9, 12, 33)
    own, generator = mask(like, tiny_llama, given), torch.Generator().manual_seed(0)
    draws = [mask(random_tokens(like, generator, tiny_llama, given), tiny_llama, given) for _ in range(8)]
    for drawn in draws:
        assert torch.equal(drawn.sum(-1), own.sum(-1))
        assert not (drawn & (own | (given["attention_mask"] == 0))).any()
    assert len({tuple(drawn.flatten().tolist()) for drawn in draws}) == 8
    with pytest.raises(InputError, match="nothing is protected"):
        random_tokens(None, generator, tiny_llama, given)


def test_a_control_has_as_many_cached_and_later_tokens_as_its_arm() -> None:
    """Rows with tokens on one side of the context alone, on both, and half of one."""
    mask = np.zeros((4, 40), dtype=bool)
    for row, chosen in enumerate(([0, 3], [0, 2, 30, 31, 39], [25], [*range(10), 26])):
        mask[row, chosen] = True
    tokens = Tokens(mask[:, None, None], Rows.plain([40] * 4), (), "planted")
    drawn = [matched_tokens(tokens, np.random.default_rng(seed), 20).any_head() for seed in range(20)]
    for control in drawn:
        assert not (control & mask).any()
        for side in (slice(0, 20), slice(20, 40)):
            assert control[:, side].sum(1).tolist() == mask[:, side].sum(1).tolist()
    assert len({control.tobytes() for control in drawn}) > 10


def test_words_are_the_choice_that_they_name(tiny_llama: LlamaForCausalLM) -> None:
    grid, texts = Grid(3), ids(4, 40)

    def outcome(protect: Any) -> list[Any]:
        linear, cached = QuantizeLinear(grid, grid, protect=protect), QuantizeCache(grid, grid, protect)
        both, calibration = [], calibrated(tiny_llama, texts, Grid(4, "tensor"), protect=protect)
        for how in (linear, cached):
            with how.applied(tiny_llama):
                both.append(tiny_llama(texts).logits)
        both.append(tiny_llama(texts, past_key_values=quantized_cache(tiny_llama, grid, grid, protect)).logits)
        drawn = linear.control(torch.Generator().manual_seed(0), tiny_llama, {"input_ids": texts})
        return [*both, linear.describe(), cached.describe(), calibration.describe(), drawn.describe()]

    with torch.no_grad():
        for found, wanted in zip(outcome("first:2"), outcome(First(2)), strict=True):
            assert torch.equal(found, wanted) if isinstance(found, Tensor) else found == wanted
        with QuantizeLinear(grid, grid, protect="none").applied(tiny_llama):
            found = tiny_llama(texts).logits
        with QuantizeLinear(grid, grid).applied(tiny_llama):
            assert torch.equal(found, tiny_llama(texts).logits)
    for wrong, says in (("frist:2", "did you mean 'first'"), (2, "protect is a int: expected a choice")):
        for how in (QuantizeLinear(grid, grid, protect=wrong), QuantizeCache(grid, grid, wrong)):  # type: ignore[arg-type]
            with pytest.raises(InputError, match=says), how.applied(tiny_llama):
                pass
        with pytest.raises(InputError, match=says):
            quantized_cache(tiny_llama, grid, grid, wrong)  # type: ignore[arg-type]


def test_old_names_are_read_with_a_note() -> None:
    with pytest.warns(DeprecationWarning, match=r"now sinkscope\.sinks\.Measured"):
        assert quantization.MeasuredSinks is Measured
    with pytest.warns(DeprecationWarning, match="TokenIds"):
        assert quantization.Tokens((2, 13)) == TokenIds(2, 13)
    with pytest.warns(DeprecationWarning, match="protect="):
        assert QuantizeLinear(Grid(8), Grid(8), spared=First(1)) == QuantizeLinear(Grid(8), Grid(8), protect=First(1))
    with pytest.raises(AttributeError):
        quantization.Nothing  # noqa: B018
