"""Hazards by site: planted tokens and channels are told apart, numbers are those of plain quantiles, advice follows."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.quantization import hazards
from sinkscope.quantization.hazard.finding import SiteNumbers
from sinkscope.sinks import First, Measured, Positions
from tests.families.registry import FAMILIES
from tests.planted.factory import null_model
from tests.quantization.quantizers import by_channel, by_token


def test_an_outlying_token_is_found_where_it_was_planted() -> None:
    found = hazards(*by_token(sinks=(0, 12)))
    worst = found.worst(1).iloc[0]
    assert (worst["block"], worst["site"]) == (1, "into down")
    assert worst["bits_lost"] > 3
    assert worst["max_median"] > 30 > 10 > worst["max_median_without"]
    assert worst["set_by_position"] in (0, 12)
    assert worst["set_by_protected"]
    assert sorted(found.tokens["position"]) == [0, 12]
    assert (found.tokens["share"] == 1).all()
    first = found.advice.iloc[0]
    assert "protect the tokens at" in first["what"]
    assert "block 1, into down" in first["where"]
    assert not found.advice["what"].str.contains("smooth").any()


def test_an_outlying_channel_is_told_apart() -> None:
    found = hazards(*by_channel(), First(1))
    down = found.sites[found.sites["site"] == "into down"]
    assert (down["bits_lost"].abs() < 1).all()
    assert (down["channel_ratio"] > 30).all()
    advice = found.advice[found.advice["what"].str.contains("smooth or rotate")]
    assert len(advice) == 1
    assert "protecting tokens does not change that" in advice.iloc[0]["why"]
    assert "gains nothing" in found.advice.iloc[0]["what"]


def test_a_token_that_is_left_is_named() -> None:
    found = hazards(*by_token(sinks=(0, 12)), First(1))
    named = found.advice[found.advice["what"] == "look at other tokens as well"].iloc[0]
    assert "position 12" in named["why"]
    assert "block 1, into down" in named["where"]


def test_no_sink_is_said_and_the_table_stands() -> None:
    _, ids = by_token()
    found = hazards(null_model(), ids, Measured(0.9))
    assert "no sink" in found.advice.iloc[0]["why"]
    assert found.tokens.empty
    assert len(found.sites) > 20
    json.dumps(found.to_json(), allow_nan=False)
    with pytest.raises(InputError, match="different numbers"):
        hazards(null_model(), ids, Positions(0, 0))


def test_the_lines_are_those_of_what_is_given_to_maps() -> None:
    model, ids = by_token()
    found, seen = hazards(model, ids), []
    hook = model.model.layers[1].mlp.down_proj.register_forward_pre_hook(lambda m, args: seen.append(args[0].abs()))
    with torch.no_grad():
        model(ids)
    hook.remove()
    [size] = seen
    row = found.sites[(found.sites["block"] == 1) & (found.sites["site"] == "into down")].iloc[0]
    others = size[:, 1:]
    median = others.amax(-1).flatten().sort().values[(others.shape[0] * others.shape[1] - 1) // 2]
    assert row["max_median"] == pytest.approx(float(size.max() / median), rel=1e-4)
    assert row["max_median_without"] == pytest.approx(float(others.max() / median), rel=1e-4)
    assert row["max_p999"] == pytest.approx(float(size.max() / size.flatten().quantile(0.999)), rel=0.03)
    assert row["max_p999_without"] == pytest.approx(float(others.max() / others.flatten().quantile(0.999)), rel=0.03)
    channels = others.flatten(0, 1).amax(0)
    assert row["channel_ratio"] == pytest.approx(float(channels.max() / channels.median()), rel=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_quantile_is_read_within_a_bin(rows: int) -> None:
    x = torch.randn(3, 40, 50)
    real = torch.ones(3, 40, dtype=torch.bool)
    real[1, 30:] = False
    numbers = SiteNumbers(real, torch.zeros_like(real))
    for start in range(0, 3, rows):
        numbers.read(x[start : start + rows], start)
    plain = x[real].abs().flatten()
    assert numbers.over_quantile(left=False) == pytest.approx(float(plain.max() / plain.quantile(0.999)), rel=0.03)


def test_padding_is_no_token() -> None:
    model, ids = by_token(rows=4)
    given = {
        "input_ids": torch.nn.functional.pad(ids, (5, 0), value=3),
        "attention_mask": torch.nn.functional.pad(torch.ones_like(ids), (5, 0)),
    }
    plain, padded = hazards(model, ids).sites, hazards(model, given).sites
    for name in ("max_median", "max_p999", "bits_lost", "channel_ratio", "set_by_position"):
        assert padded[name].to_numpy() == pytest.approx(plain[name].to_numpy(), rel=1e-2, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert", "gpt_oss", "qwen3_moe", "deepseek_v3", "t5", "vit"])
def test_families_have_their_sites(name: str) -> None:
    if name not in FAMILIES:
        pytest.skip(f"no family '{name}' in the registry")
    family = FAMILIES[name]
    found = hazards(family.build("eager"), _inputs(name), First(1))
    assert len(found.sites)
    assert found.sites["bits_lost"].notna().all()


def _inputs(name: str) -> dict[str, Tensor]:
    return FAMILIES[name].inputs()
