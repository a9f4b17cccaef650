"""Each intervention does exactly what its formula says: against sums and maps written out here."""

from __future__ import annotations

import pytest
import torch

from sinkscope.hooks.modules import position_embedding, unembedding
from sinkscope.interventions import (
    FirstTokenView,
    ForbidSink,
    RemoveContribution,
    ReplacePosition,
    SetActivations,
    SuppressBands,
    SwapPositions,
    ZeroHeads,
    mean_values,
    perturbation_spread,
)
from tests.families.registry import FAMILIES
from tests.interventions.conftest import a_model, inputs_of, logits, stream
from tests.measurement.conftest import lab_model


def maps(name: str, **inputs: torch.Tensor) -> torch.Tensor:
    """Eager attention maps (layer, batch, head, query, key)."""
    model = a_model(name, "eager")
    with torch.no_grad():
        return torch.stack(model(**inputs, output_attentions=True).attentions)


def maps_under(name: str, intervention: object) -> torch.Tensor:
    model = a_model(name, "eager")
    with intervention.applied(model), torch.no_grad():
        return torch.stack(model(**inputs_of(name), output_attentions=True).attentions)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "lab:softmax"])
def test_forbidden_keys_get_nothing_and_rows_still_sum_to_one(name):
    found = maps_under(name, ForbidSink((0, 2)))
    own = torch.eye(24, dtype=torch.bool)
    for key in (0, 2):
        assert bool((found[..., key][..., ~own[:, key]] == 0).all())
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))
    # In the first layer, whose inputs are unchanged, the other weights keep their proportions.
    plain = maps(name, **inputs_of(name))[0]
    kept = plain.clone()
    hidden = ~own & torch.isin(torch.arange(24), torch.tensor([0, 2]))
    kept = kept.masked_fill(hidden, 0)
    torch.testing.assert_close(found[0], kept / kept.sum(-1, keepdim=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "bert", "lab:softmax"])
def test_a_first_tokens_view_is_itself(name):
    found = maps_under(name, FirstTokenView(4))
    torch.testing.assert_close(found[..., 4, :], torch.eye(24)[4].expand_as(found[..., 4, :]))
    torch.testing.assert_close(found[0][:, :, 5:], maps(name, **inputs_of(name))[0][:, :, 5:])


def test_a_query_with_nothing_else_to_see_keeps_what_it_saw():
    model, inputs = a_model("llama", "eager"), inputs_of("llama")
    only_first = torch.full((3, 1, 24, 24), torch.finfo(torch.float32).min)
    only_first[..., 0] = 0  # every query sees the first key alone
    plain = logits(model, **inputs, attention_mask=only_first)
    with ForbidSink((0,)).applied(model):
        torch.testing.assert_close(logits(model, **inputs, attention_mask=only_first), plain, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_written_masks_are_narrowed(kind):
    model, inputs = a_model("llama", "sdpa" if kind == "bool" else "eager"), inputs_of("llama")
    window = torch.ones(24, 24).tril().triu(-7).bool().expand(3, 1, -1, -1)
    narrowed = window & ~(torch.arange(24) == 3) | torch.eye(24, dtype=torch.bool) & window

    def written(mask: torch.Tensor) -> torch.Tensor:
        lowest = torch.finfo(torch.float32).min
        return mask if kind == "bool" else torch.zeros(mask.shape).masked_fill(~mask, lowest)

    with ForbidSink((3,)).applied(model):
        found = logits(model, **inputs, attention_mask=written(window))
    torch.testing.assert_close(found, logits(model, **inputs, attention_mask=written(narrowed)), rtol=1e-5, atol=1e-6)


def test_entries_are_set_where_they_are_named_and_nowhere_else():
    model, inputs = a_model("llama"), inputs_of("llama")
    before = stream(model, **inputs)
    with SetActivations(((1, 2, 3), (1, None, 5)), "mean", (7.0, -1.0)).applied(model):
        after = stream(model, **inputs)
    expected = before[1].clone()
    expected[:, 2, 3], expected[:, :, 5] = 7.0, -1.0
    assert torch.equal(after[1], expected)
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[2], before[2])


def test_means_are_over_rows_or_over_all_tokens():
    model, inputs = a_model("llama"), inputs_of("llama")
    found = mean_values(model, inputs, ((1, 2, 3), (0, None, 5)), batch_size=2)
    hidden = stream(model, **inputs)
    assert found == pytest.approx((hidden[1, :, 2, 3].mean().item(), hidden[0, :, :, 5].mean().item()), abs=1e-6)
    padding = torch.ones(3, 24, dtype=torch.long)
    padding[0, 20:] = 0
    (padded,) = mean_values(model, {**inputs, "attention_mask": padding}, ((0, None, 5),))
    assert padded == pytest.approx(hidden[0, :, :, 5][padding.bool()].mean().item(), abs=1e-6)


def test_a_block_adds_nothing_to_tokens_without_contribution():
    model, inputs = a_model("gpt2"), inputs_of("gpt2")
    before = stream(model, **inputs)
    with RemoveContribution(2, (0, 4)).applied(model):
        after = stream(model, **inputs)
    chosen = torch.isin(torch.arange(24), torch.tensor([0, 4]))
    assert torch.equal(after[2][:, chosen], after[1][:, chosen])
    assert torch.equal(after[2][:, ~chosen], before[2][:, ~chosen])


def test_zeroed_heads_hand_nothing_to_the_output_projection():
    model, inputs = a_model("llama"), inputs_of("llama")
    seen: list[torch.Tensor] = []
    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda m, args: seen.append(args[0].clone()))
    logits(model, **inputs)
    with ZeroHeads(((1, 1), (1, 3))).applied(model):
        logits(model, **inputs)
    with ZeroHeads(((1, 1),), positions=(6,)).applied(model):
        logits(model, **inputs)
    before, everywhere, at_six = (part.unflatten(-1, (4, 8)) for part in seen)
    assert bool((everywhere[:, :, [1, 3]] == 0).all())
    assert torch.equal(everywhere[:, :, [0, 2]], before[:, :, [0, 2]])
    before[:, 6, 1] = 0
    assert torch.equal(at_six, before)


def test_swapped_positions_permute_the_embedding_rows():
    model, inputs = a_model("gpt2"), {"input_ids": torch.full((1, 24), 7)}
    before, table = stream(model, **inputs)[0, 0], model.transformer.wpe.weight.detach().clone()
    with SwapPositions(0, 5).applied(model):
        swapped = stream(model, **inputs)[0, 0]
    with ReplacePosition(0, 5).applied(model):
        replaced = stream(model, **inputs)[0, 0]
    order = list(range(24))
    order[0], order[5] = 5, 0
    assert torch.equal(swapped, before[order])
    order[5] = 5
    assert torch.equal(replaced, before[order])
    assert torch.equal(model.transformer.wpe.weight, table)


@pytest.mark.parametrize("name", ["gpt2", "gpt_bigcode", "opt", "bert", "roberta", "vit", "lab:learned"])
def test_exchanging_what_two_tokens_get_is_exchanging_rows_of_the_table(name):
    lab = name == "lab:learned"
    model = lab_model("softmax", position="learned") if lab else FAMILIES[name].build()
    inputs = inputs_of("llama") if lab else FAMILIES[name].inputs()
    rows = position_embedding(model).rows
    with torch.no_grad(), SwapPositions(0, 5).applied(model):
        found = model(**inputs)[0]
    rows[[0, 5]] = rows[[5, 0]]
    with torch.no_grad():
        torch.testing.assert_close(found, model(**inputs)[0], rtol=0, atol=1e-6)


def test_suppressed_bands_hold_no_energy_and_protected_tokens_keep_theirs():
    model, inputs = a_model("gpt2"), inputs_of("gpt2")
    right = torch.linalg.svd(unembedding(model)).Vh  # rows, largest singular value first; bands of 1 or 2 directions
    before = stream(model, **inputs)[-1]
    with SuppressBands((0, 19), depths=(2,)).applied(model):
        after = stream(model, **inputs)[-1]
    gone = right[[0, 30, 31]]
    assert torch.equal(after[:, 0], before[:, 0])
    assert (after[:, 1:] @ gone.mT).abs().max() < 1e-4
    torch.testing.assert_close(after[:, 1:], (before - before @ gone.mT @ gone)[:, 1:], rtol=1e-3, atol=1e-4)
    with SuppressBands((0, 19), protect=(), positions=(0,), depths=(2,)).applied(model):
        only_first = stream(model, **inputs)[-1]
    assert torch.equal(only_first[:, 1:], before[:, 1:])
    assert not torch.allclose(only_first[:, 0], before[:, 0])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_perturbation_moves_no_earlier_token(name):
    model, inputs = a_model(name), inputs_of(name)
    spread = perturbation_spread(model, inputs["input_ids"], position=5, scale=0.01, batch_size=2)
    assert spread.dims == ("sample", "depth", "position")
    assert (spread.values[:, :, :5] == 0).all()
    assert (spread.values[:, 0, 6:] == 0).all()
    assert spread.values[:, 0, 5] == pytest.approx(1)
    assert (spread.values[:, 1:, 5:] > 0).all()
