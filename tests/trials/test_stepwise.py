"""Losses through a cache are those of one dense pass under the mask that the cache amounts to."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import Grid, Rotated
from sinkscope.quantization import quantized_cache
from sinkscope.sinks import First
from sinkscope.trials import ThroughCache, run, scheme_trial, stream_nll, unchanged
from sinkscope.trials.feeding import Feed
from tests.caches.families import slow_but
from tests.families.registry import COLLECTED, FAMILIES
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


@pytest.mark.parametrize("start", [1, 5, 6, 7, 12])
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((Grid(2, "channel", group=6), Grid(2, "token")), id="groups of 6"),
        pytest.param((Rotated(Grid(3, "channel", group=4)), Rotated(Grid(3, "token"))), id="rotated"),
        pytest.param((Grid(2, "token"), Grid(2, "token")), id="each token"),
    ],
)
@torch.no_grad()
def test_a_rounded_cache_read_in_pieces_predicts_as_one_token_at_a_time(numbers, window: int, start: int) -> None:
    """Wherever a block closes: it may be read rounded by no earlier token, and by the token that completes it."""
    model, ids = llama().double(), texts(3, 31)  # in single precision the least difference is another code
    passes = []
    model.model.register_forward_pre_hook(
        lambda module, args, given: passes.append(given["input_ids"].shape[1]), with_kwargs=True
    )

    def read(singly: bool) -> Tensor:
        passes.clear()
        feed = Feed(model, quantized_cache(model, *numbers, "first:1", window))
        feed.read_all(ids[:, :start])
        rest = ids[:, start:]
        return torch.cat(list(feed.read_singly(rest) if singly else map(feed.read_all, rest.split(1, 1))), 1)

    expected, whole = read(False), model(ids).logits[:, start:]
    assert len(passes) == 1 + 31 - start + 1
    # Rounding reads states in single precision; a block that closes too late moves logits by about 1.
    torch.testing.assert_close(read(True), expected, atol=1e-4, rtol=0)
    block = quantized_cache(model, *numbers, None, window).scheme.block
    assert len(passes) <= 1 + 2 * math.ceil((31 - start) / block) + 1 or block == 1
    assert (expected - whole).abs().max() > 1e-3  # what is read is rounded


@torch.no_grad()
def test_no_pass_holds_more_logits_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Feed.__module__], "TOGETHER", 10)
    model, ids = llama(), texts(3, 20)
    read = list(Feed(model, DynamicCache(config=model.config)).read_singly(ids))
    assert [part.shape[1] for part in read] == [3, 3, 3, 3, 3, 3, 2]
    torch.testing.assert_close(torch.cat(read, 1), model(ids).logits, atol=1e-5, rtol=0)
    with keeping(2, 3).open(model, ANY) as cache:  # of a cache that is not known, nothing is taken for granted
        assert [part.shape[1] for part in Feed(model, cache).read_singly(ids)] == [1] * 20


BESIDE = ("gemma2", "gemma3n", "falcon_h1", "qwen3_next", "deepseek_v3", "gpt_neox", "bloom", "olmoe")


@pytest.mark.parametrize("name", slow_but(("gemma2", "falcon_h1"), BESIDE))
@torch.no_grad()
def test_families_read_several_tokens_as_they_read_each(name: str) -> None:
    """They also have windows, recurrent states, latents, other positions or experts, which are not rounded."""
    family = (FAMILIES | COLLECTED)[name]
    model, ids = family.build(family.hosts[0]), texts(2, 40)
    grids = Grid(8, "channel", group=4), Grid(8, "token")  # 8 bits: where a code differs, logits hardly do
    makers = [lambda: DynamicCache(config=model.config), lambda: quantized_cache(model, *grids, "first:1")]
    if name == "gemma3n":  # which reads keys of other layers
        with pytest.raises(UnsupportedModelError):
            makers.pop()()
    for make in makers:
        parts, one_by_one = Feed(model, make()), Feed(model, make())
        found = torch.cat([parts.read_all(ids[:, :9]), *parts.read_singly(ids[:, 9:])], 1)
        wanted = torch.cat([one_by_one.read_all(ids[:, :9]), *map(one_by_one.read_all, ids[:, 9:].split(1, 1))], 1)
        torch.testing.assert_close(found, wanted, atol=3e-3, rtol=0)


@pytest.mark.parametrize("scheme", ["kv2-kivi", "kv4-token"])
def test_a_trial_of_caches_is_the_same_in_pieces_and_token_by_token(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = llama(), texts(4, 90)
    lengths = []
    model.model.register_forward_pre_hook(
        lambda module, args, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    found = scheme_trial(model, ids, scheme, {"first": First(2)}, 1, context=20)
    singly = [length for length in lengths if length == 1]
    assert len(singly) == {"kv2-kivi": 2 * 3, "kv4-token": 69 * 3}[scheme]  # of 69 tokens, in three arms
    monkeypatch.setattr(Feed, "read_singly", lambda feed, rest: map(feed.read_all, rest.split(1, 1)))
    expected = scheme_trial(model, ids, scheme, {"first": First(2)}, 1, context=20)
    for arm in found.arms:
        for of in ("kl", "nats", "agreement", "bytes"):
            both = (trial.data[of].sel(arm=arm) for trial in (found, expected))
            np.testing.assert_allclose(*both, atol=1e-6, err_msg=f"{arm} {of}")
    assert expected.values(scheme).min() > 1e-5
