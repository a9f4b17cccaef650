"""A study finds what was planted, and says no where there is nothing: by token, by channel, two sinks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.quantization import FirstTokens, MeasuredSinks, Positions, Study, Tokens, study
from tests.quantization.studies.quantizers import RoundDown, by_channel, by_token


@pytest.fixture(scope="module")
def sink() -> Study:
    return study(*by_token(), RoundDown(), MeasuredSinks(), controls=4)


def test_sparing_an_outlying_token_gives_the_cost_back(sink: Study) -> None:
    assert sink.recovered("spared").low >= 0.9
    for name in sink.controls("spared"):
        assert abs(sink.recovered(name).value) < 0.05
    assert sink.helps("spared")
    assert "first 1 are the same tokens" in in_kl(sink).verdict


def test_sparing_tokens_does_nothing_for_an_outlying_channel() -> None:
    found = study(*by_channel(), RoundDown(), Positions((0,)), controls=4)
    assert found.cost("nothing").low > 0
    assert abs(found.recovered("spared").value) < 0.05
    assert not found.helps("spared")
    assert "no more than chance" in in_kl(found).verdict


def in_kl(found: Study) -> Study:
    """The study of a model without a loss."""
    return Study(found.data.drop_vars("loss"))


def test_no_share_is_printed_of_a_loss_that_cannot_be_told_from_0(sink: Study) -> None:
    """What is planted changes predictions of random tokens, which get neither worse nor better."""
    from sinkscope.report.changing import arm_rows, quantization_page

    assert sink.cost("nothing", by="loss").low <= 0 < sink.cost("nothing", by="kl").low
    assert not sink.recoverable
    assert sink.given_back("spared") == "nothing to recover"
    assert "there is nothing to recover" in sink.verdict
    assert "%" not in sink.verdict
    page = quantization_page("planted", sink, None)
    assert "nothing to recover" in [card.value for card in page.headlines]
    for row in arm_rows(sink.table(), sink.by)[1:]:
        assert row[-3:] == ("nothing to recover", "", "")
    for arm in sink.to_json()["arms"][1:]:
        assert arm["recovered"] is None
        assert arm["given_back"] == "nothing to recover"
    assert not sink.to_json()["choices"]["spared"]["helps"]
    there = in_kl(sink)
    assert there.recoverable
    assert there.given_back("spared").startswith(f"{100 * there.recovered('spared').value:.0f} % (")
    assert there.to_json()["choices"]["spared"]["helps"]


def test_a_second_sink_is_spared_by_those_who_measured_it() -> None:
    found = study(*by_token(sinks=(0, 12)), RoundDown(), {"measured": MeasuredSinks(), "four": FirstTokens(4)}, 3)
    assert found.recovered("measured").low >= 0.9
    assert found.recovered("four").value < 0.1
    assert found.recovered("first 2").value < 0.1
    assert found.beats("measured", "four").low > 0
    assert found.choices == ["measured", "four"]


def test_arms_have_one_budget_and_predictions_at_spared_tokens_count_nowhere(sink: Study) -> None:
    model, ids = by_token()
    spared = sink.data["spared"]
    assert (spared.sel(arm=["spared", "first 1", *sink.controls("spared")]) == 1).all()
    assert (spared.sel(arm=["full", "nothing"]) == 0).all()
    left = {(row, 0) for row in range(len(ids))}
    from sinkscope.quantization import RandomTokens

    for seed in range(4):
        mask = RandomTokens(Positions((0,)), seed).mask(model, {"input_ids": ids})
        left |= {tuple(place) for place in mask.nonzero().tolist()}
    per_row = [sum(row == one for one, _ in left) for row in range(len(ids))]
    assert sink.data["scored"].values.tolist() == [32 - count for count in per_row]


def test_numbers_are_those_of_an_independent_loop(sink: Study) -> None:
    model, ids = by_token()
    with torch.no_grad():
        full = model(ids[:8]).logits.double().log_softmax(-1)
        with RoundDown().applied(model):
            rounded = model(ids[:8]).logits.double().log_softmax(-1)
    kl = (full.exp() * (full - rounded)).sum(-1)
    nll = -rounded[:, :-1].gather(-1, ids[:8, 1:, None])[..., 0]
    from sinkscope.quantization import RandomTokens

    left = torch.zeros(12, 32, dtype=torch.bool)
    left[:, 0] = True
    for seed in range(4):
        left |= RandomTokens(Positions((0,)), seed).mask(model, {"input_ids": ids})
    for row in range(8):
        keep = ~left[row]
        assert sink.data["kl"].sel(arm="nothing").values[row] == pytest.approx(float(kl[row][keep].mean()), rel=1e-4)
        expected = float(nll[row][keep[:-1]].mean())
        assert sink.data["loss"].sel(arm="nothing").values[row] == pytest.approx(expected, rel=1e-4)


def test_padding_changes_nothing() -> None:
    model, ids = by_token(rows=4)
    plain = study(model, ids, RoundDown(), Positions((0,)), controls=2)
    given = {
        "input_ids": torch.nn.functional.pad(ids, (5, 0), value=3),
        "attention_mask": torch.nn.functional.pad(torch.ones_like(ids), (5, 0)),
    }
    padded = study(model, given, RoundDown(), Positions((0,)), controls=2)
    for name in ("full", "nothing", "spared"):
        assert np.allclose(padded.data["kl"].sel(arm=name), plain.data["kl"].sel(arm=name), rtol=1e-3, atol=1e-7)


def test_a_study_is_stored_and_read_again(sink: Study, tmp_path: Path) -> None:
    sink.save(tmp_path / "study.nc")
    again = Study.load(tmp_path / "study.nc")
    assert again.to_json() == sink.to_json()
    assert again.record["quantizer"] == {"name": "RoundDown", "bits": 8}
    with pytest.raises(InputError, match="cannot read"):
        Study.load(tmp_path / "nowhere.nc")
    figure = sink.plot()
    assert {name for trace in figure.data for name in trace.y} == set(sink.arms) - {"full"}


def test_what_says_nothing_is_refused(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(5, 101, (2, 12))
    with pytest.raises(InputError, match="without a control"):
        study(tiny_llama, ids, RoundDown(), FirstTokens(1), controls=0)
    with pytest.raises(InputError, match="spares no token"):
        study(tiny_llama, ids, RoundDown(), Tokens((3,)))
    with pytest.raises(InputError, match="unknown scheme 'w8a8-tensr'"):
        study(tiny_llama, ids, "w8a8-tensr")
    with pytest.raises(InputError, match="choice of tokens"):
        study(tiny_llama, ids, RoundDown(), {"first": 4})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="is no scheme"):
        study(tiny_llama, ids, 8, FirstTokens(1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="5 controls were asked for, but only 3"):
        study(tiny_llama, ids[:1, :4], RoundDown(), FirstTokens(1), controls=5)


def test_a_quantizer_that_rounds_nothing_is_said(tiny_llama: LlamaForCausalLM) -> None:
    class Still(RoundDown):
        def attach(self, model: object, stack: object) -> None:
            return None

    with pytest.warns(UserWarning, match="nothing was rounded"):
        found = study(tiny_llama, torch.randint(5, 101, (2, 12)), Still(), FirstTokens(1), controls=2)
    assert "nothing to recover" in found.verdict
    assert np.isnan(found.recovered("spared").value)
    assert not found.helps("spared")


def test_weights_weigh_with_their_scales(tiny_llama: LlamaForCausalLM) -> None:
    from sinkscope.quantization import Grid, QuantizeLinear

    ids = torch.randint(5, 101, (2, 12))
    record = study(tiny_llama, ids, QuantizeLinear(Grid(4, group=16), Grid(8)), {}).record
    maps = sum(p.numel() for name, p in tiny_llama.model.layers.named_parameters() if p.ndim == 2)
    others = tiny_llama.model.embed_tokens.weight.numel() + tiny_llama.lm_head.weight.numel()
    assert record["weight_bytes_16"] == 2 * (maps + others)
    assert record["weight_bytes"] == maps * (4 + 2 * 16 / 16) / 8 + 2 * others  # a scale and a lower end for 16 weights
