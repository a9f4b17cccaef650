"""Losses through a cache are those of one dense pass under the mask that the cache amounts to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.trials import ThroughCache, run, stream_nll, unchanged
from tests.trials.caches import ANY, keeping, llama, texts, twin

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
    found = run(model, ids, [twin(), keeping(0, 2)], reading=ThroughCache(CONTEXT))
    assert (found.values("twin", "nats") == found.values("full", "nats")).all()
    assert found.values("twin").max() == 0
    assert found.mean("twin", "agreement").value == 1
    assert found.mean("0+2").value > 0.01


def test_the_divergence_is_that_of_both_predictions() -> None:
    model, ids = llama(), texts(1, CONTEXT + 2)
    # The context itself is read whole by both: its last token's prediction cannot differ.
    first = run(model, ids[:, : CONTEXT + 1], [keeping(0, 2)], reading=ThroughCache(CONTEXT))
    assert first.values("0+2").tolist() == [0.0]
    both = run(model, ids, [keeping(0, 2)], reading=ThroughCache(CONTEXT)).values("0+2")[0]
    logs = []
    for arm in (twin(), keeping(0, 2)):
        with torch.no_grad(), arm.open(model, ANY) as cache:
            model(ids[:, :CONTEXT], past_key_values=cache)
            step, place = ids[:, CONTEXT : CONTEXT + 1], torch.tensor([[CONTEXT]])
            logs.append(model(step, past_key_values=cache, position_ids=place).logits[0, -1].log_softmax(-1).double())
    expected = torch.nn.functional.kl_div(logs[1], logs[0], log_target=True, reduction="sum")
    assert both == pytest.approx(float(expected) / 2, abs=1e-6)  # the mean with the context's own


def test_the_model_is_left_in_its_mode_and_no_gradient_is_made() -> None:
    model = llama().train()
    assert not stream_nll(model, texts(1, 9), unchanged(), context=CONTEXT).requires_grad
    assert model.training


@pytest.mark.parametrize("context", [0, 9, 10])
def test_a_context_that_leaves_nothing_is_refused(context: int) -> None:
    with pytest.raises(InputError, match="context ="):
        stream_nll(llama(), texts(1, 9), unchanged(), context=context)
