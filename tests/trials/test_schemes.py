"""Trials of quantization: planted tokens and channels, held-out calibration, prefixes, batches, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor
from transformers import LlamaForCausalLM

from sinkscope import quantization
from sinkscope.errors import InputError
from sinkscope.files.netcdf import write_netcdf
from sinkscope.quantization import SCHEMES, Grid, Prefix, QuantizeLinear, SmoothQuant, calibrated
from sinkscope.sinks import First, Outliers, Positions, TokenIds
from sinkscope.trials import Texts, Trial, load, needed, scheme_trial, schemes
from sinkscope.trials.schemes import SchemeArms, default_choices, takes
from tests.planted.factory import Plant, planted_ids
from tests.quantization.quantizers import RoundDown, by_channel, by_token
from tests.quantization.quick import quick_searches  # noqa: F401  (fixture)

EIGHT, FOUR = Grid(8, "tensor", symmetric=True), Grid(4, symmetric=True)


def texts(rows: int = 4, tokens: int = 40, seed: int = 0) -> Tensor:
    return torch.randint(5, 97, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def test_protecting_a_planted_token_recovers_its_cost_and_random_tokens_do_not() -> None:
    model, ids = by_token(sinks=(0, 12), rows=8)
    found = scheme_trial(model, ids, RoundDown(), {"both": Positions(0, 12), "first": First(1)}, 3)
    assert found.recovered("both").value > 0.9
    assert found.recovered("first").value < 0.2
    assert found.difference("both").high < 0 < found.difference("both", "first 2").value * -1
    assert max(found.recovered(name).value for name in found.controls("both")) < 0.2
    assert "'both' (2 tokens a text) gives back" in found.verdict
    assert found.verdict.index("'both'") < found.verdict.index("'first'")  # the one that gives back most comes first


def test_protecting_tokens_does_not_recover_a_planted_channel() -> None:
    model, ids = by_channel(rows=8)
    found = scheme_trial(model, ids, RoundDown(4), First(1), 3)
    assert abs(found.recovered("first:1").value) < 0.2
    assert abs(found.difference("first:1").value) < 0.1 * found.mean("RoundDown").value


def test_controls_have_as_many_tokens_per_text_and_no_protected_ones() -> None:
    model, ids = by_token(rows=4)
    ids[1, 20] = ids[0, 5]
    protect = TokenIds(int(ids[0, 5]), int(ids[0, 0]))
    facts = scheme_trial(model, ids, RoundDown(), protect, 2).record["arms"]
    counts = [arm["tokens_per_text"] for arm in facts.values() if "tokens_per_text" in arm]
    assert len(set(counts)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a8-tensor", "llm-int8-0.5", "kv2-token"])
def test_nothing_depends_on_the_batch(tiny_llama: LlamaForCausalLM, scheme: str) -> None:
    """A batch of two, and one that is left over, against texts alone."""
    alone, some = (scheme_trial(tiny_llama, texts(3, 24), scheme, First(1), 1, batch_size=size) for size in (1, 2))
    assert some.arms == alone.arms
    np.testing.assert_allclose(some.data["kl"].values, alone.data["kl"].values, rtol=0.05, atol=1e-7)


def test_calibration_texts_are_not_scored(tiny_llama: LlamaForCausalLM) -> None:
    ids = texts(12)
    held_out = scheme_trial(tiny_llama, ids, "w3-gptq", {})
    assert held_out.texts == 6
    assert held_out.record["calibrated_on"]["texts"] == 6
    assert not held_out.record["calibrated_on"]["in_sample"]
    own = scheme_trial(tiny_llama, ids[6:], "w3-gptq", {}, calibrate_on=ids[:6], calibrated_source="elsewhere")
    np.testing.assert_allclose(own.values("w3-gptq"), held_out.values("w3-gptq"), rtol=1e-5)
    assert own.record["calibrated_on"]["source"] == "elsewhere"
    assert own.record["calibrated_on"]["sha256"] == held_out.record["calibrated_on"]["sha256"]
    inside = scheme_trial(tiny_llama, ids[6:], "w3-gptq", {}, in_sample=True)
    assert inside.mean("w3-gptq").value < held_out.mean("w3-gptq").value  # it was made for these
    assert "flatter" in inside.verdict
    assert "flatter" not in held_out.verdict


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        *(("w8a8-tensor", "chooses"), ("w8a8-static", "fits"), ("w8a8-tensor-smooth", "fits"), ("w4", "nothing")),
        *(("w4-gptq", "fits"), ("w3-slim", "fits"), ("w4a4-token-duquant", "fits"), ("kv3-kvquant", "fits")),
        *(("kv2-kivi", "chooses"), ("w8a8-tensor-rotated", "chooses"), ("llm-int8", "chooses")),
    ],
)
def test_fitting_takes_half_of_the_texts_and_choosing_a_quarter_more(name: str, uses: str) -> None:
    assert takes(SCHEMES[name], None) == uses
    assert needed(40, takes(SCHEMES[name], None)) == {"fits": 80, "chooses": 50, "nothing": 40}[uses]
    assert takes(SCHEMES["w8a8-tensor"], [First(1), Outliers()]) == "nothing"


def test_where_activations_are_rounded_sinks_and_outliers_are_protected() -> None:
    assert list(default_choices(SCHEMES["w8a8-tensor"])) == ["measured+outliers", "measured", "outliers"]
    assert list(default_choices(SCHEMES["kv2-kivi"])) == ["measured"]
    assert not default_choices(SCHEMES["w4-gptq"])


def test_choosing_tokens_on_the_scored_texts_is_reported() -> None:
    model, ids = by_token(rows=6)
    found = scheme_trial(model, ids, RoundDown(), "outliers", 2)
    assert "found in the scored texts themselves" in found.verdict
    assert found.recovered("outliers").value > 0.9


def test_choices_that_share_a_part_look_for_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def counted(model: Any, inputs: Any, choice: Any) -> Any:
        looked.append(str(choice))
        return found(model, inputs, choice)

    found = schemes.find_tokens
    monkeypatch.setattr(schemes, "find_tokens", counted)
    model, ids = by_token(rows=6)
    scheme_trial(model, ids, RoundDown(), {"both": First(1) + Outliers(), "outliers": Outliers()}, 1)
    assert looked.count("outliers") == 1


def test_a_prefix_is_compared_with_the_same_prefix_unrounded() -> None:
    """The planted sink stands in the prefix: as text it sets every range, in the cache none."""
    model, ids = by_token(rows=6)
    sink, rest = int(ids[0, 0]), ids[:, 1:]
    prefix = Prefix.of(model, [sink])
    found = scheme_trial(model, rest, RoundDown(), {"bos": prefix}, 2)
    assert found.arms == ["full", "full after bos", "RoundDown", "bos", "bos, rounded"]
    assert [str(value) for value in found.data["against"].sel(arm=["bos", "bos, rounded"]).values] == 2 * [
        "full after bos"
    ]
    assert found.mean("bos").value < 0.1 * found.mean("bos, rounded").value
    with torch.no_grad():  # what the changed text costs: the model behind the prefix against the model without
        behind = model(ids).logits[:, 1:].log_softmax(-1)
        alone = model(rest).logits.log_softmax(-1)
    kl = (alone.exp() * (alone - behind)).sum(-1)[:, :-1].mean(-1)
    np.testing.assert_allclose(found.values("full after bos"), kl, rtol=1e-3, atol=1e-6)
    with RoundDown().applied(model), torch.no_grad():  # the null: the same tokens, rounded as text
        rounded = model(ids).logits[:, 1:].log_softmax(-1)
    kl = (behind.exp() * (behind - rounded)).sum(-1)[:, :-1].mean(-1)
    np.testing.assert_allclose(found.values("bos, rounded"), kl, rtol=1e-3, atol=1e-6)
    assert "the text that it changes costs" in found.verdict
    assert "it beats the same prefix rounded by" in found.verdict


def test_ranges_behind_a_prefix_are_fitted_behind_it() -> None:
    model, ids = by_token(rows=6)
    sink, rest = int(ids[0, 0]), ids[:, 1:]
    prefix, scheme = Prefix.of(model, [sink]), SCHEMES["w8a8-static"]
    texts = Texts.of(model, {"input_ids": rest})
    built = SchemeArms(model, scheme, texts, texts, 0)
    plain, behind = built.made(None, None), built.made(None, None, prefix)
    with prefix.applied(model):
        expected = scheme.make(model, {"input_ids": rest}, None)
    steps = [{path: float(one.step) for path, one in made.static.steps.items()} for made in (plain, behind, expected)]  # type: ignore[attr-defined]
    assert steps[1] == steps[2] != steps[0]


def test_a_cache_scheme_is_scored_through_its_cache_and_reports_its_bytes(tiny_llama: LlamaForCausalLM) -> None:
    found = scheme_trial(tiny_llama, texts(), "kv2-token", First(1), 2, context=24)
    assert found.record["reading"] == {"read": "through a cache", "context": 24, "chunk": 1}
    held = {name: float(found.data["bytes"].sel(arm=name)) for name in ("full", "kv2-token", "first:1")}
    assert held["kv2-token"] < held["first:1"] < held["full"]
    layers = tiny_llama.config.num_hidden_layers
    assert (found.record["layers_rounded"], found.record["layers"], found.record["bytes_rounded"]) == (
        layers,
        layers,
        1,
    )
    simulated = scheme_trial(tiny_llama, texts(), "kv3-head", First(1), 1, context=24)
    assert np.isnan(simulated.data["bytes"].values[1:]).all()


def test_a_control_holds_its_arms_bytes_where_tokens_are_cached_and_where_they_come_later(
    tiny_llama: LlamaForCausalLM,
) -> None:
    found = scheme_trial(tiny_llama, texts(), "kv2-token", Positions(0, 5, 9, 20), 3, context=16)
    held = dict(zip(found.data["arm"].values, found.data["bytes"].values, strict=True))
    [kept] = {held[name] for name in found.named("arm") if not name.startswith("first")}
    assert {held[name] for name in found.named("control")} == {kept}
    assert held["kv2-token"] < kept


def test_a_model_with_windows_reports_which_layers_are_rounded() -> None:
    from tests.families.registry import FAMILIES

    model = FAMILIES["gemma3"].build("eager")
    kinds = model.config.get_text_config().layer_types
    assert "sliding_attention" in kinds
    found = scheme_trial(model, texts(3, 24), "kv2-token", First(1), 1)
    whole = kinds.count("full_attention")
    assert (found.record["layers_rounded"], found.record["layers"]) == (whole, len(kinds))
    assert 0 < found.record["bytes_rounded"] < 1
    assert f"{whole} of {len(kinds)} layers are rounded" in found.verdict


@pytest.mark.slow
@pytest.mark.usefixtures("quick_searches")
@pytest.mark.parametrize("name", ["w8a8-static", "w8a8-tensor-smooth", "kv3-kvquant", "kv2-kivi", "w3-slim"])
def test_schemes_run_with_protected_tokens(tiny_llama: LlamaForCausalLM, name: str) -> None:
    found = scheme_trial(tiny_llama, texts(6, 72), name, First(1), 2, context=64 if name.startswith("kv") else None)
    assert found.mean(name).value > 0
    assert found.named("arm")[0] == "first:1"


@pytest.mark.slow
def test_calibration_that_differs_from_serving_warns() -> None:
    model, ids = by_token(rows=6)
    sink, weights = Positions(0), Grid(8, symmetric=True)
    smooth = SmoothQuant.of(model, ids, protect=sink)
    with pytest.warns(UserWarning, match="SmoothQuant was calibrated with positions:0 left out, and .* protects no"):
        scheme_trial(model, ids, QuantizeLinear(weights, EIGHT, transform=smooth), sink, 2)
    static = calibrated(model, ids, EIGHT)
    with pytest.warns(UserWarning, match="Static was calibrated with no token left out, and 'positions:0' protects"):
        scheme_trial(model, ids, QuantizeLinear(weights, EIGHT, static=static), sink, 2)
    others = planted_ids(Plant(sinks=(), dimension=7), 6, 32)
    with pytest.warns(UserWarning, match=r"reach \d+ times as far as the calibration texts \(block 1, into down"):
        scheme_trial(model, ids, "w8a8-static", sink, 2, calibrate_on=others)


def test_rounding_nothing_warns(tiny_llama: LlamaForCausalLM) -> None:
    with pytest.warns(UserWarning, match="nothing was rounded"):
        scheme_trial(tiny_llama, texts(2, 24), "kv2-kivi", {})


@pytest.mark.parametrize(
    ("scheme", "protect", "said"),
    [
        ("w4", First(1), "protect a Prefix"),
        ("w8a8-tensor", TokenIds(99), "no token of the texts"),
        ("w8a8-tensor", {"full": First(1)}, "choose another name"),
        ("w8a8-tensor", {"first": 1}, "expected a choice"),
        ("w8a8-tensor", First(39), "no control"),
    ],
)
def test_meaningless_arguments_are_refused(
    tiny_llama: LlamaForCausalLM, scheme: str, protect: object, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        scheme_trial(tiny_llama, texts(), scheme, protect, 2)  # type: ignore[arg-type]


def test_old_names_and_files_are_read(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="scheme_trial"):
        old = quantization.study
    with pytest.warns(DeprecationWarning, match="protect="):
        found = old(tiny_llama, texts(), "w8a8-tensor", spared=First(1), controls=1)
    assert isinstance(found, Trial)
    kl = np.array([[0.0, 0.0, 0.0], [0.4, 0.5, 0.6], [0.1, 0.1, 0.2], [0.4, 0.5, 0.5]])
    data = xr.Dataset(
        {"kl": (("arm", "row"), kl), "spared": (("arm", "row"), np.ones((4, 3))), "scored": (("row",), np.full(3, 9))},
        {
            "arm": ["full", "nothing", "measured", "random 1"],
            "role": ("arm", ["full", "nothing", "spared", "control"]),
            "choice": ("arm", ["", "", "measured", "measured"]),
        },
    )
    write_netcdf(data.assign_attrs(record=json.dumps({"scheme": "w8a8-tensor"})), tmp_path / "study.nc")
    read = load(tmp_path / "study.nc")
    assert read.controls("measured") == ["random 1"]
    assert read.recovered("measured").value == pytest.approx(1 - 0.4 / 1.5)
    assert "gives back 73 %" in read.verdict
