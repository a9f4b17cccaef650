"""What is measured of a run, on models whose answer is known and on a log written by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from sinkscope.experiments.jobs import training_metrics
from sinkscope.experiments.readings import SHAPES
from sinkscope.hooks.modules import position_embedding
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import Run
from sinkscope_replication.observing.readings import readings
from tests.planted.factory import NULL, null_model, planted_ids, planted_model
from tests.planted.plant import MASSIVE, Plant

HEADS = ((1, 0), (2, 3))  # of 4 x 4
SIXTEENTH = 100 / 16
ONLY_ITSELF = {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": 1}}


@pytest.fixture(scope="module")
def planted() -> dict[str, float]:
    plant = Plant(heads=HEADS)
    return dict(readings(planted_model(plant), planted_ids(plant, samples=5, tokens=70)))


@pytest.fixture(scope="module")
def null() -> dict[str, float]:
    return dict(readings(null_model(), planted_ids(NULL, samples=5, tokens=70)))


def test_two_planted_heads_are_found_under_every_reading(planted):
    readings_with_sink = ("sink_0", "strongest", "sink_0/tokens=64", "sink_0/tokens=70", "sink_0/random_after_first")
    assert {planted[name] for name in readings_with_sink} == {2 * SIXTEENTH}
    assert {planted[f"sink_0/epsilon={epsilon}"] for epsilon in (0.2, 0.3, 0.4, 0.5)} == {2 * SIXTEENTH}
    assert {planted[name] for name in planted if name.startswith("strongest_position")} == {0}
    assert {planted[f"sink_{position}"] for position in range(1, 17)} == {0.0}
    assert "sink_17" not in planted


def test_without_its_token_the_sink_is_gone(planted):
    assert planted["sink_0/without_first"] == 0
    assert planted["first_share"] > 2 * SIXTEENTH * 0.98


def test_the_massive_token_is_told_by_every_measure_of_outliers(planted, null):
    assert planted["infinity_norm"] == pytest.approx(MASSIVE, rel=0.01)
    for name in ("norm_ratio", "kurtosis", "kurtosis_neurons", "max_median_ratio", "hidden_spread"):
        assert planted[name] > 5 * null[name]
    assert planted["value_ratio"] < 0.1
    assert planted["matrix_entropy"] < 0.1 < null["matrix_entropy"]


def test_sink_heads_write_nothing_and_are_not_missed(planted):
    assert planted["sink_heads"] == 2
    assert planted["output_norm/sink_heads"] < 0.1 * planted["output_norm/other_heads"]
    assert planted["output_norm/other_heads"] > 0.7  # the first query's would make it 0.64
    assert abs(planted["zeroing/sink_heads"]) < 0.1 * abs(planted["zeroing/other_heads"])


def test_entropy_and_logits_tell_the_sharp_heads(planted, null):
    assert planted["entropy_least"] < 0.2 < null["entropy_least"]
    assert planted["entropy"] < null["entropy"]
    layers = [planted[f"max_logit/layer={layer}"] for layer in range(4)]
    assert planted["max_logit"] == max(layers)
    assert layers.index(max(layers)) in (1, 2)


def test_depths_are_named_and_the_last_has_the_bare_name(planted):
    for name in SHAPES:
        assert planted[name] == planted[f"{name}/depth=4"]
        assert f"{name}/depth=5" not in planted


def test_where_no_head_has_a_sink_none_is_zeroed(null):
    assert null["sink_heads"] == 0
    assert not [name for name in null if name.startswith(("zeroing", "output_norm"))]


def test_a_changed_token_is_followed_in_both_windows(null):
    assert null["perturbation"] > 0
    assert null["perturbation/without_first"] > 0


def lab(**fields) -> LabForCausalLM:
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    return LabForCausalLM(LabConfig(**sizes, **fields)).eval()


def test_positions_are_exchanged_where_there_is_a_table_of_them_and_put_back():
    model = lab(position="learned")
    before = position_embedding(model).rows.clone()
    found = dict(readings(model, planted_ids(tokens=128)))
    assert {name for name in found if name.endswith("=24")} == {
        *("sink_0/replaced=24", "sink_24/replaced=24", "sink_0/swapped=24", "sink_24/swapped=24"),
        *("sink_mass/replaced=24", "sink_mass_24/replaced=24", "sink_mass/swapped=24", "sink_mass_24/swapped=24"),
    }
    assert torch.equal(position_embedding(model).rows, before)


def with_a_sink(**fields) -> LabForCausalLM:
    """Only the first row of the table of positions points where keys read."""
    model = lab(position="learned", **fields)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        rows = position_embedding(model).rows
        rows.zero_()
        model.get_input_embeddings().weight[:] = 0.1
        rows[0, 0] = 5.0
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.zero_()
        attention.k_proj.weight[[0, 8], 0] = 5.0
        attention.q_proj.weight[[0, 8], 1] = 5.0
    return model


def test_the_sink_goes_with_the_position_embedding_that_makes_it():
    """On one repeated token nothing else differs."""
    found = dict(readings(with_a_sink(), planted_ids(tokens=64)))
    assert found["sink_0/repeated"] == 100
    assert (found["sink_0/swapped=9"], found["sink_9/swapped=9"]) == (0, 100)
    assert (found["sink_0/replaced=9"], found["sink_9/replaced=9"]) == (0, 0)


def test_the_same_tokens_are_scored_with_the_first_token_and_without():
    model, ids = lab(), planted_ids(samples=23, tokens=30)  # batches of 20 and 3
    found = dict(readings(model, ids))
    with torch.no_grad():
        for name, logits in (("with", model(ids).logits[:, 1:-1]), ("without", model(ids[:, 1:]).logits[:, :-1])):
            scored = logits.log_softmax(-1).gather(-1, ids[:, 2:, None])
            assert found[f"loss/{name}_first"] == pytest.approx(-float(scored.mean()))
    assert found["loss/with_first"] != pytest.approx(found["loss/without_first"], abs=1e-4)


def test_where_no_token_sees_the_first_one_its_absence_costs_nothing():
    found = dict(readings(lab(attention={"mask": ONLY_ITSELF}, position="none"), planted_ids(tokens=30)))
    assert found["loss/with_first"] == pytest.approx(found["loss/without_first"], abs=1e-5)


@pytest.mark.slow
def test_the_sink_is_read_at_every_length_that_the_context_has():
    lengths = {128: "32 64 128", 150: "32 64 128 150", 70: "32 64 70", 33: "32 33"}
    for context, expected in lengths.items():
        found = dict(readings(with_a_sink(max_position_embeddings=150), planted_ids(tokens=context)))
        for kind in ("sink_0", "strongest_position"):
            assert [name for name in found if name.startswith(f"{kind}/tokens=") and "epsilon" not in name] == [
                f"{kind}/tokens={length}" for length in expected.split()
            ]
        assert {found[f"sink_0/tokens={length}"] for length in expected.split()} == {100.0}


def test_the_strongest_position_of_a_length_is_among_its_own_half():
    """Every token sees itself and token 24: of 32 tokens that is among the last, of 64 among the first."""
    model = with_a_sink()
    with torch.no_grad():
        rows = position_embedding(model).rows
        rows[[0, 24]] = rows[[24, 0]]
    found = dict(readings(model, planted_ids(tokens=70)))
    for epsilon in (0.2, 0.3, 0.4, 0.5):
        assert found[f"sink_0/tokens=64/epsilon={epsilon}"] == found[f"sink_0/epsilon={epsilon}"]
        assert 0 <= found[f"sink_0/tokens=32/epsilon={epsilon}"] <= 100
    assert [found[f"strongest_position/tokens={length}"] for length in (32, 64, 70)] == [0, 24, 24]


def test_positions_that_few_queries_see_are_not_the_strongest():
    """Where every token sees itself alone, alpha_k = 1 / (T − k): the last three exceed 0.3, and mean nothing."""
    found = dict(readings(lab(attention={"mask": ONLY_ITSELF}), planted_ids(tokens=40)))
    assert (found["strongest"], found["strongest_position"]) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sigmoid", "kernel_identity", "softpick", "k_bias", "gated_head", "stable_mask"])
def test_every_kind_of_operation_is_read(attention):
    found = dict(readings(lab(attention=attention), planted_ids(tokens=40)))
    assert found["sink_0/tokens=40"] == found["sink_0"]
    assert found["sink_mass/tokens=40"] == found["sink_mass"]
    assert ("slot" in found) == ("slot_mass" in found) == (attention in ("k_bias", "stable_mask"))
    assert {"entropy", "max_logit", "kurtosis", "norm_ratio"} <= set(found)


def test_no_rate_is_read_on_fewer_than_32_tokens():
    """Each head of this model gives its first token all there is, and its sink is said to be unknown."""
    short, enough = (dict(readings(with_a_sink(), planted_ids(tokens=tokens))) for tokens in (31, 32))
    rates = [name for name in enough if name.startswith(("sink_", "strongest", "slot", "lift")) and "heads" not in name]
    assert {enough[name] for name in ("sink_0", "sink_0/tokens=32", "sink_0/repeated")} == {100.0}
    assert not [name for name in rates if not math.isnan(short.get(name, math.nan))]
    assert short["first_share"] == pytest.approx(enough["first_share"], abs=0.1)
    assert short["norm_ratio"] > 0


def test_the_mass_is_the_rate_over_all_thresholds_from_a_tenth_on(planted):
    """Both planted heads give all but a thousandth to the first token."""
    assert planted["sink_mass"] == pytest.approx(0.9 * 2 * SIXTEENTH, rel=0.02)
    assert planted["sink_mass/strongest"] == planted["sink_mass"] == planted["sink_mass/tokens=64"]
    layers = [planted[f"sink_mass/strongest/layer={layer}"] for layer in range(4)]
    assert sum(layers) / 4 == pytest.approx(planted["sink_mass"])
    assert [mass > 10 for mass in layers] == [False, True, True, False]
    assert planted["sink_mass_3"] < 0.5
    assert planted["sink_mass/without_first"] < 0.5 < planted["sink_mass/random_after_first"]
    assert planted["lift"] == planted["lift/strongest"] > 3
    assert planted["norm_ratio/strongest"] == planted["norm_ratio"]
    assert planted["value_ratio/strongest"] == planted["value_ratio"]


def test_the_losses_and_the_start_come_from_the_log(tmp_path: Path):
    rows = [
        {"step": 0, "sink/position_0": 1.5, "sink/hidden_norm_ratio": 2.0},
        {"step": 90, "loss": 9.0},
        {"step": 92, "loss": 5.0, "validation_loss": 6.0, "sink/position_0": 3.0},
        {"step": 96, "loss": 4.0},
        {"step": 100, "loss": 3.0, "validation_loss": 4.5},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "record.json").write_text(json.dumps({"status": "finished", "results": {"validation_loss": 4.5}}))
    assert dict(training_metrics(Run(tmp_path))) == {
        "loss": 4.5,
        "train_loss": 4.0,
        "gap": 0.5,
        "sink_0/start": 1.5,
        "norm_ratio/start": 2.0,
        "loss/start": 6.0,
    }


def test_a_bidirectional_model_has_no_next_token_loss():
    """It sees the next token, so a loss of copying would be no loss at all; its sinks are measured as ever."""
    torch.manual_seed(0)
    model = LabForCausalLM(LabConfig(num_hidden_layers=2, is_causal=False)).eval()
    found = dict(readings(model, torch.randint(3, 2000, (3, 70))))
    losses = {name for name in found if name.startswith("loss/")} | (found.keys() & {"zeroing/sink_heads"})
    assert {"loss/without_first", "loss/with_first"} <= losses
    assert all(math.isnan(found[name]) for name in losses)
    assert not math.isnan(found["sink_0"])
