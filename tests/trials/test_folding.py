"""What folding costs, head by head, in bands and in a stream; how many passes it takes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.interventions import FoldSink
from sinkscope.trials import ThroughCache, folded_heads, folded_stream, matters, run
from tests.trials.planted import ids, llama

AFTER = 4


def sharp(layers: int = 2) -> nn.Module:
    """A model whose attention is far from uniform."""
    model = llama(layers)
    for name, weight in model.named_parameters():
        if "self_attn" in name:
            weight.data *= 15
    return model


def folds_of(model: nn.Module) -> dict[str, FoldSink]:
    fold = ss.fold(model, ids(6, 14, 5), on=(0,), after=AFTER)
    return {form: replace(fold, form=form) for form in ("logit", "logit+value", "key+value")}


def nats(model: nn.Module, text: Tensor, change: FoldSink | None = None) -> Tensor:
    with nullcontext() if change is None else change.applied(model), torch.no_grad():
        logs = model(text, use_cache=False).logits.log_softmax(-1)
    return -logs[:, AFTER:-1].gather(-1, text[:, AFTER + 1 :, None])[..., 0].mean(1)


def test_slopes_are_those_of_the_loss() -> None:
    """(J(ε) − J(−ε)) / 2ε with the head's output moved by hand, for the heads of the first layer."""
    model, text = sharp().double(), ids(3, 14)
    folds = folds_of(model)
    found = folded_heads(model, text, folds, draws=1)
    projection, heads = model.model.layers[0].self_attn.o_proj, 4
    for form, fold in folds.items():
        outputs: list[Tensor] = []
        hook = projection.register_forward_pre_hook(lambda _, args, kept=outputs: kept.append(args[0].clone()))
        nats(model, text)
        nats(model, text, replace(fold, layers=(0,)))
        hook.remove()
        apart = (outputs[1] - outputs[0]).unflatten(-1, (heads, -1))
        for head in range(heads):
            losses = []
            for step in (1e-3, -1e-3):
                moved = torch.zeros_like(apart)
                moved[:, :, head] = step * apart[:, :, head]
                moving = projection.register_forward_pre_hook(lambda _, args, by=moved: (args[0] + by.flatten(2),))
                losses.append(nats(model, text))
                moving.remove()
            slope = (losses[0] - losses[1]) / 2e-3
            np.testing.assert_allclose(found["slope"].sel(form=form)[:, 0, head], slope, rtol=2e-3, atol=5e-6)
    assert float(np.abs(found["slope"].sel(form="logit")[:, 0]).max()) > 1e-3, "nothing to see"


def test_logits_and_masses_are_those_of_the_model() -> None:
    model, text = sharp(), ids(3, 14)
    found = folded_heads(model, text, folds_of(model), batch_size=2)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(text, output_attentions=True).attentions
    for layer, weights in enumerate(maps):
        np.testing.assert_allclose(found["mass"][layer], weights[:, :, AFTER:, 0].mean((0, 2)), rtol=1e-4)
    assert bool((found["logit_std"] > 0).all())
    assert bool((found["curvature"] >= 0).all())


def test_a_constant_first_token_has_no_price_as_key_and_value() -> None:
    model, text, others = sharp(), ids(3, 14), ids(6, 14, 5)
    text[:, 0] = others[:, 0] = 1
    fold = ss.fold(model, others, "key+value", on=(0,), after=AFTER)
    found = folded_heads(model, text, {"key+value": fold, "logit+value": replace(fold, form="logit+value")})
    cost = np.abs(found["slope"]) + found["curvature"]
    assert float(cost.sel(form="key+value").max()) < 1e-5 < 1e-3 < float(cost.sel(form="logit+value").max())


def test_forms_in_bands_are_folds_of_their_layers() -> None:
    model, text = sharp(3), ids(4, 14)
    known = ids(6, 14, 5)
    trial = matters(model, text, ("fold-logit", "fold-key"), on=(0,), after=AFTER, by="band", calibrate_on=known)
    assert trial.named("arm")[:3] == ["fold-logit@layer 0", "fold-logit@layer 1", "fold-logit@layer 2"]
    fold = replace(ss.fold(model, known, "logit", on=(0,), after=AFTER), layers=(1,))
    np.testing.assert_allclose(trial.values("fold-logit@layer 1", "nats"), nats(model, text, fold), rtol=1e-4)


@pytest.mark.parametrize("controls", [0, 2])
def test_folding_takes_the_passes_that_it_needs(controls: int) -> None:
    model, text, texts_read = sharp(), ids(40, 14), []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: texts_read.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    trial = matters(model, text, ("fold-logit", "fold-sink", "fold-key"), on=(0,), after=AFTER, controls=controls)
    hook.remove()
    needed = 8 + trial.texts * (1 + 3 * (1 + controls))  # constants; the unchanged model, three arms, their controls
    assert needed <= sum(texts_read) <= 1.2 * needed


def test_a_stream_without_its_sink_reads_as_the_fold_until_it_drops_and_keeps_no_more_keys() -> None:
    model, text = sharp(), ids(3, 14)
    fold = folds_of(model)["logit+value"]
    wide = run(
        model, text, [folded_stream("folded", fold, 20)], reading=ThroughCache(1, 1), score=("nats",), controls=0
    )
    with fold.applied(model), torch.no_grad():
        logs = model(text).logits.log_softmax(-1)
    whole = -logs[:, :-1].gather(-1, text[:, 1:, None])[..., 0].mean(1)
    np.testing.assert_allclose(wide.values("folded", "nats"), whole, rtol=1e-4)
    arm = folded_stream("folded", fold, 6)
    with arm.open(model, None) as cache, torch.no_grad():  # type: ignore[arg-type]
        for column in range(14):
            model(text[:, column : column + 1], past_key_values=cache, use_cache=True)
        assert cache is not None
        assert cache.layers[0].keys.shape[2] <= 6
    with pytest.raises(InputError, match="a key has a position"):
        folded_stream("folded", replace(fold, form="key+value"), 6)


def test_folds_of_other_tokens_or_layers_are_no_one_question() -> None:
    model = sharp()
    one = folds_of(model)["logit"]
    other = ss.fold(model, ids(6, 14, 5), "logit", on=(1,), after=AFTER)
    with pytest.raises(InputError, match="same tokens"):
        folded_heads(model, ids(), {"a": one, "b": other})
    with pytest.raises(InputError, match="all layers"):
        folded_heads(model, ids(), {"a": replace(one, layers=(0,))})
