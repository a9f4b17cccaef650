"""How observers' pieces become labeled arrays: extra axes, maxima, kept samples, modules of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache

from sinkscope.hooks.modules import attention_layers
from sinkscope.measurement import Array, AttentionReceived, LayerSums, Observer, Piece, measure, observe
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.observers.observer import Hidden, ModuleCall, ModuleWatch
from tests.measurement.conftest import build

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Spread(Observer):
    """Quantiles of each token's entries: an extra axis behind the positions."""

    @property
    def reads_blocks(self) -> bool:
        return True

    @property
    def coordinates(self) -> dict[str, tuple[float, ...]]:
        return {"quantile": QUANTILES}

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        values = hidden.values.quantile(torch.tensor(QUANTILES), -1).permute(1, 2, 0)
        yield Piece("spread", values[:, None], hidden.start)

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        return {"spread": Array(found.sums["spread"], "query", ("quantile",))} if "spread" in found.sums else {}


@dataclass(frozen=True)
class Largest(Observer):
    """The largest entry of the queries of a layer, and of each query; for the layer as a whole."""

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        lengths = call.query.amax(-1)
        yield Piece("each", lengths, call.query_start, reduction="max")
        yield Piece("all", lengths.amax((1, 2), keepdim=True)[..., 0], reduction="max")

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        if "all" not in found.sums:
            return {}
        return {
            "each": Array(found.sums["each"], "query"),
            "all": Array(found.sums["all"], None, per_head=False),
        }


@dataclass(frozen=True)
class FirstQueries(Observer):
    """The first query vector of the first two samples."""

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if call.samples_before < 2:
            yield Piece("first", call.query[:, :, 0])

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        return {"first": Array(found.sums["first"], None, ("dim",), kept=2)} if "first" in found.sums else {}


@dataclass(frozen=True)
class Inputs(Observer):
    """Norm of what an attention module is given: read from the module itself."""

    def watches(self, model: nn.Module) -> Iterable[ModuleWatch]:
        return [ModuleWatch(module, layer, _norm) for module, layer in attention_layers(model).items()]

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        return {"input_norm": Array(found.sums["norm"], "query", per_head=False)} if "norm" in found.sums else {}


def _norm(at: ModuleCall, args: tuple, kwargs: dict, output: object) -> Iterable[Piece]:
    hidden = args[0] if args else kwargs["hidden_states"]
    yield Piece("norm", hidden.norm(dim=-1)[:, None], at.start)


def padded(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_extra_axes_stand_behind_positions_and_follow_real_tokens(ids: torch.Tensor) -> None:
    found = measure(build("gpt2"), padded(ids), [Spread()]).data["spread"]
    assert found.dims == ("sample", "depth", "position", "quantile")
    assert found["quantile"].values.tolist() == list(QUANTILES)
    alone = measure(build("gpt2"), ids[:1, 5:], [Spread()]).data["spread"]
    np.testing.assert_allclose(found[0, 0, :19], alone[0, 0], atol=1e-6)
    assert bool(found[0, :, 19:].isnull().all())
    assert bool((found.diff("quantile").fillna(1) > 0).all())


def test_maxima_over_passes_equal_one_pass(ids: torch.Tensor) -> None:
    model = build("llama")
    whole = measure(model, ids, [Largest()]).data
    with observe(model, Largest()) as seen, torch.no_grad():
        cache = DynamicCache()
        for part in ids.split([10, 9, 5], 1):
            model(part, past_key_values=cache)
    pieces = seen.measurement().data
    assert whole["all"].dims == ("sample", "layer")
    for name in ("all", "each"):
        np.testing.assert_allclose(pieces[name], whole[name], atol=1e-5)


def test_kept_samples_have_an_axis_of_their_own(ids: torch.Tensor) -> None:
    for batch_size in (1, 2, 3):
        data = measure(build("llama"), ids, [FirstQueries(), AttentionReceived()], batch_size=batch_size).data
        assert data["first"].dims == ("kept", "layer", "head", "dim")
        assert data.sizes["kept"] == 2
        assert data.sizes["sample"] == 3
        assert bool(data["first"].notnull().all())


def test_heads_and_extra_axes_of_unequal_length_are_filled_with_nan(ids: torch.Tensor) -> None:
    data = measure(build("jamba"), ids, [FirstQueries(), Inputs()]).data
    assert bool(data["first"].notnull().all())
    assert data["input_norm"].dims == ("sample", "layer", "position")


def test_modules_are_read_at_their_layer_and_left_alone(ids: torch.Tensor) -> None:
    model = build("albert")  # one shared module, used once per layer
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    found = measure(model, ids, [Inputs(), AttentionReceived()]).data
    assert found["input_norm"].sizes["layer"] == found["attention_received"].sizes["layer"] == 2
    assert bool(found["input_norm"].notnull().all())
    seen: list[torch.Tensor] = []
    [attention] = attention_layers(model)
    attention.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args or (kwargs.get("hidden_states"),))[0].norm(dim=-1)), with_kwargs=True
    )
    with torch.no_grad():
        model(ids)
    np.testing.assert_allclose(found["input_norm"].values, torch.stack(seen, 1).numpy(), rtol=1e-5)
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks


def test_an_observer_that_needs_the_model_is_bound_to_it(ids: torch.Tensor) -> None:
    @dataclass(frozen=True)
    class Counting(Largest):
        parameters: int = 0

        def bound(self, model: nn.Module) -> Observer:
            return replace(self, parameters=sum(weight.numel() for weight in model.parameters()))

    model = build("llama")
    record = measure(model, ids, [Counting()]).record
    assert record["observers"][0]["parameters"] == record["parameters"]
