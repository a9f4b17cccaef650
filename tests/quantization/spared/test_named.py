"""Named tokens: in the right columns with padding, caches, packed documents and learned tokens before a sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from sinkscope.attention import AttentionSpec, Causal, Document
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.quantization import FirstTokens, Positions, RandomTokens, Spared, Tokens

CHOICES = [FirstTokens(2), Positions((0, 3)), Tokens((7, 9))]


def ids(rows: int = 3, tokens: int = 12) -> Tensor:
    return torch.randint(5, 12, (rows, tokens), generator=torch.Generator().manual_seed(1))


def lab(**options: object) -> LabForCausalLM:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LabForCausalLM(LabConfig(**sizes, intermediate_size=32, **options)).eval()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("choice", CHOICES)
def test_a_padded_row_spares_what_it_spares_alone(tiny_llama: LlamaForCausalLM, choice: Spared, side: str) -> None:
    row = ids(1, 9)
    pads = (3, 0) if side == "left" else (0, 3)
    padded = torch.nn.functional.pad(row, pads, value=7)  # an id that is spared where it is real
    real = torch.nn.functional.pad(torch.ones_like(row), pads)
    found = choice.mask(tiny_llama, {"input_ids": padded, "attention_mask": real})
    assert torch.equal(found[real.bool()][None], choice.mask(tiny_llama, {"input_ids": row}))
    assert not found[~real.bool()].any()
    assert found.any()


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("pads", [0, 3])
def test_what_continues_a_cache_counts_on(tiny_llama: LlamaForCausalLM, choice: Spared, pads: int) -> None:
    every, real = ids(), torch.ones(3, 12, dtype=torch.long)
    real[1, :pads] = 0
    whole = choice.mask(tiny_llama, {"input_ids": every, "attention_mask": real})
    cache = DynamicCache(config=tiny_llama.config)
    found = []
    for part in (slice(0, 5), slice(5, 6), slice(6, 12)):
        given = {"input_ids": every[:, part], "attention_mask": real[:, : part.stop], "past_key_values": cache}
        found.append(choice.mask(tiny_llama, given))
        with torch.no_grad():
            tiny_llama(**given)
    assert torch.equal(torch.cat(found, 1), whole)


@pytest.mark.parametrize("choice", CHOICES)
def test_packed_documents_count_each_from_its_own_start(tiny_llama: LlamaForCausalLM, choice: Spared) -> None:
    one, other = ids(1, 5), ids(1, 7)
    places = torch.cat([torch.arange(5), torch.arange(7)])[None]
    found = choice.mask(tiny_llama, {"input_ids": torch.cat([one, other], 1), "position_ids": places})
    alone = [choice.mask(tiny_llama, {"input_ids": part}) for part in (one, other)]
    assert torch.equal(found, torch.cat(alone, 1))


def test_documents_of_lab_models_are_apart_where_their_mask_keeps_them_apart() -> None:
    given = {"input_ids": ids(1, 8), "document_ids": torch.tensor([[4, 4, 4, 9, 9, 9, 9, 9]])}
    apart = lab(attention=AttentionSpec(mask=Causal() & Document()))
    assert FirstTokens(1).mask(apart, given)[0].nonzero().flatten().tolist() == [0, 3]
    assert FirstTokens(1).mask(lab(), given)[0].nonzero().flatten().tolist() == [0]


def test_learned_tokens_stand_before_the_first() -> None:
    model, given = lab(sink_tokens=2), {"input_ids": ids(2, 6)}
    assert Positions((0, 3)).mask(model, given)[0].nonzero().flatten().tolist() == [0, 3]
    assert FirstTokens(3).mask(model, given).shape == (2, 8)
    token = int(given["input_ids"][0, 4])
    assert bool(Tokens((token,)).mask(model, given)[0, 6])
    assert not RandomTokens(Positions((5,)), 3).mask(model, given)[:, :2].any()


def test_a_control_has_the_same_budget_elsewhere(tiny_llama: LlamaForCausalLM) -> None:
    given = {"input_ids": ids(4, 12), "attention_mask": torch.ones(4, 12, dtype=torch.long)}
    given["attention_mask"][2, :4] = 0
    like = Tokens((7, 9))
    own = like.mask(tiny_llama, given)
    draws = [RandomTokens(like, seed).mask(tiny_llama, given) for seed in range(8)]
    for drawn in draws:
        assert torch.equal(drawn.sum(-1), own.sum(-1))
        assert not (drawn & (own | (given["attention_mask"] == 0))).any()
    assert len({tuple(drawn.flatten().tolist()) for drawn in draws}) == 8
    assert torch.equal(draws[3], RandomTokens(like, 3).mask(tiny_llama, given))
    assert torch.stack(draws).any(0)[:2].sum() > own[:2].sum()  # other tokens in other draws


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: FirstTokens(0), "at least 1"),
        (lambda: Positions((1, 1)), "different"),
        (lambda: Positions((-1,)), "from 0 on"),
        (lambda: Tokens(()), "at least one"),
        (lambda: Tokens("78"), "whole numbers"),
    ],
)
def test_what_chooses_nothing_is_refused(build: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        build()  # type: ignore[operator]


def test_tokens_without_ids_and_controls_without_room_are_refused(tiny_llama: LlamaForCausalLM) -> None:
    vectors = {"inputs_embeds": torch.zeros(1, 4, 32)}
    with pytest.raises(InputError, match="without ids"):
        Tokens((7,)).mask(tiny_llama, vectors)
    assert FirstTokens(1).mask(tiny_llama, vectors).tolist() == [[True, False, False, False]]
    with pytest.raises(InputError, match="spares 3 tokens and has 1 others"):
        RandomTokens(FirstTokens(3)).mask(tiny_llama, {"input_ids": ids(1, 4)})
    with pytest.raises(InputError, match="no token"):
        RandomTokens(Tokens((99,))).mask(tiny_llama, {"input_ids": ids(1, 4)})
