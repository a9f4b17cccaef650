"""Forgetting gates sum over the tokens between key and query, and over nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache, StaticCache

import sinkscope.attention as zoo
from sinkscope.attention.functional import DenseVisibility
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM

from .problems import assert_close, assert_paths_agree, problem

PATHS = ["reference", "fast", "chunked"]
INTERLEAVED = torch.tensor([[0, 1, 0, 0, 1, 2, 1, 0, 2], [3, 3, 5, 3, 5, 5, 3, 5, 5]])
PACKED = zoo.Causal() & zoo.Document()


def gated(tokens: int, **options):
    return problem(zoo.CATALOG["forgetting_gate"], tokens=tokens, **options)


def parts_of(case, row: int, document: int):
    """A document of a row, alone."""
    own = (INTERLEAVED[row] == document).nonzero()[:, 0]
    one = slice(row, row + 1)
    cut = {name: getattr(case, name)[one][:, :, own] for name in ("query", "key", "value")}
    return replace(case, **cut, hidden=case.hidden[one][:, own]), own


@pytest.mark.parametrize("path", PATHS)
def test_documents_that_lie_among_each_other_are_each_like_alone(path):
    case = gated(9)
    bound = zoo.Visibility.of(PACKED, 9, 9, documents=INTERLEAVED)
    found = case.attend(mask=bound, path=path).output
    for row in range(2):
        for document in INTERLEAVED[row].unique().tolist():
            alone, own = parts_of(case, row, document)
            assert_close(found[row : row + 1, :, own], alone.attend(path=path).output)


def test_documents_that_lie_among_each_other_have_the_gradients_of_each_alone():
    case = gated(9, dtype=torch.float64)
    bound = zoo.Visibility.of(PACKED, 9, 9, documents=INTERLEAVED)
    assert_paths_agree(case, ["chunked"], mask=bound)
    whole = torch.autograd.grad(case.attend(mask=bound).output.square().sum(), case.hidden)[0]
    for row in range(2):
        for document in INTERLEAVED[row].unique().tolist():
            alone, own = parts_of(case, row, document)
            assert_close(
                whole[row, own], torch.autograd.grad(alone.attend().output.square().sum(), case.hidden)[0][row, own]
            )


def test_a_boolean_mask_counts_by_the_mask_that_it_narrows_and_is_refused_alone():
    case = gated(9)
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 0]])
    bound = zoo.Visibility.of(PACKED, 9, 9, attention_mask=real, documents=INTERLEAVED)
    narrowed = DenseVisibility(zoo.Full(), bound.query, bound.key, bound.dense(), bound)
    for path in PATHS:
        assert_close(case.attend(mask=narrowed, path=path).output, case.attend(mask=bound, path=path).output)
    assert_paths_agree(case, ["chunked"], mask=narrowed)
    with pytest.raises(InputError, match="a forgetting gate sums over the tokens between query and key"):
        case.attend(mask=bound.dense())


def test_padding_between_tokens_forgets_nothing():
    case = gated(7)
    real = torch.tensor([[1, 1, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1]])
    bound = zoo.Visibility.of(zoo.Causal(), 7, 7, attention_mask=real)
    for path in PATHS:
        found = case.attend(mask=bound, path=path).output
        for row in range(2):
            kept, one = real[row].bool(), slice(row, row + 1)
            cut = {name: getattr(case, name)[one][:, :, kept] for name in ("query", "key", "value")}
            alone = replace(case, **cut, hidden=case.hidden[one][:, kept])
            assert_close(found[one][:, :, kept], alone.attend(path=path).output)


def lab(**options) -> LabForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    spec = replace(zoo.CATALOG["forgetting_gate"], **options)
    model = LabForCausalLM(LabConfig(**sizes, attention=spec, position="none", sink_tokens=2)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "decay" in name or "q_proj" in name:
                parameter.normal_()
    return model


@torch.no_grad()
def test_padding_behind_sink_tokens_forgets_nothing():
    model, ids = lab(), torch.randint(31, (1, 8), generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(ids, (5, 0))
    real = torch.nn.functional.pad(torch.ones_like(ids), (5, 0))
    assert_close(model(padded, attention_mask=real).logits[:, 5:], model(ids).logits)
    cache = model(padded[:, :10], attention_mask=real[:, :10], use_cache=True).past_key_values
    stepped = model(padded[:, 10:], attention_mask=real, past_key_values=cache).logits
    assert_close(stepped, model(ids).logits[:, 5:])


@torch.no_grad()
def test_documents_behind_sink_tokens_are_each_like_alone():
    model = lab(mask=PACKED)
    ids = torch.randint(31, (1, 9), generator=torch.Generator().manual_seed(2))
    numbers = INTERLEAVED[:1]
    found = model(ids, document_ids=numbers).logits
    for document in numbers.unique().tolist():
        own = numbers[0] == document
        assert_close(found[:, own], model(ids[:, own]).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_a_cache_in_half_precision_keeps_what_tokens_carry(dtype):
    """Exactly: sums of log f over a text would drift away from those of the whole pass."""
    model, ids = lab().to(dtype), torch.randint(31, (1, 12), generator=torch.Generator().manual_seed(3))
    seen = []
    model.model.layers[0].self_attn.operation.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["carried"]), with_kwargs=True
    )
    model(ids)
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=20)):
        model(ids[:, :5], past_key_values=cache, use_cache=True)
        model(ids[:, 5:], past_key_values=cache, use_cache=True)
        torch.testing.assert_close(seen[-1], seen[0], rtol=2e-6, atol=1e-7)
