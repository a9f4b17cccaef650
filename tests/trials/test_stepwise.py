"""Losses through a cache are those of one dense pass under the mask that the cache amounts to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.trials import unchanged, scored, stream_nll
from tests.trials.caches import keeping, llama, texts, twin

CONTEXT = 7


def dense(model: LlamaForCausalLM, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """−log p of tokens CONTEXT … end in one pass without a cache; `mask` (query, key) is True where a key is seen."""
    given = {} if mask is None else {"attention_mask": mask[None, None].expand(len(ids), 1, -1, -1)}
    with torch.no_grad():
        logs = model(ids, use_cache=False, **given).logits.log_softmax(-1)
    return -logs[:, CONTEXT - 1 : -1].gather(2, ids[:, CONTEXT:, None])[..., 0].double()


def test_the_full_cache_predicts_as_one_dense_pass() -> None:
    model, ids = llama(), texts(3, 19)
    found = stream_nll(model, ids, unchanged(), context=CONTEXT)
    torch.testing.assert_close(found, dense(model, ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("sinks", "recent"), [(0, 4), (2, 3), (1, 0)])
def test_a_cache_that_drops_keys_predicts_as_a_dense_pass_that_masks_them(sinks: int, recent: int) -> None:
    """With one layer a dropped key is a masked one: nothing of it has gone into later keys."""
    model, ids = llama(layers=1), texts(2, 19)
    query, key = torch.arange(19)[:, None], torch.arange(19)[None]
    kept = (key < sinks) | (key >= query - recent)  # of what came before the query, and the query itself
    mask = (key <= query) & (kept | (query < CONTEXT))
    found = stream_nll(model, ids, keeping(sinks, recent), context=CONTEXT)
    torch.testing.assert_close(found, dense(model, ids, mask), atol=1e-5, rtol=0)
    assert (found - dense(model, ids)).abs().max() > 0.01


def test_a_twin_of_the_full_cache_differs_in_nothing() -> None:
    model, ids = llama(), texts(3, 12)
    found = scored(model, ids, [unchanged(), twin(), keeping(0, 2)], context=CONTEXT)
    assert torch.equal(found["twin"].nll, found["full"].nll)
    assert found["twin"].kl.abs().max() == 0
    assert found["twin"].same.all()
    assert found["0+2"].kl.mean() > 0.01


def test_the_divergence_is_that_of_both_predictions() -> None:
    model, ids = llama(), texts(1, CONTEXT + 1)
    found = scored(model, ids, [unchanged(), keeping(0, 2)], context=CONTEXT)["0+2"]
    # The context itself is read whole by both: its last token's prediction cannot differ.
    assert found.kl.abs().max() == 0
    again = scored(model, texts(1, CONTEXT + 2), [unchanged(), keeping(0, 2)], context=CONTEXT)
    logs = []
    for keep in (None, 2):
        arm = unchanged() if keep is None else keeping(0, keep)
        with torch.no_grad(), arm.open(model) as cache:
            model(ids[:, :CONTEXT], past_key_values=cache)
            place = torch.tensor([[CONTEXT]])
            step = texts(1, CONTEXT + 2)[:, CONTEXT : CONTEXT + 1]
            logs.append(model(step, past_key_values=cache, position_ids=place).logits[0, -1].log_softmax(-1).double())
    expected = torch.nn.functional.kl_div(logs[1], logs[0], log_target=True, reduction="sum")
    torch.testing.assert_close(again["0+2"].kl[0, 1], expected, atol=1e-6, rtol=0)


def test_the_model_is_left_in_its_mode_and_no_gradient_is_made() -> None:
    model = llama().train()
    assert not stream_nll(model, texts(1, 9), unchanged(), context=CONTEXT).requires_grad
    assert model.training


@pytest.mark.parametrize("context", [0, 9, 10])
def test_a_context_that_leaves_nothing_is_refused(context: int) -> None:
    with pytest.raises(InputError, match="context of"):
        stream_nll(llama(), texts(1, 9), unchanged(), context=context)
