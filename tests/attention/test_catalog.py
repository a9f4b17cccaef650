"""Options of a line, names of what lines make, and what is said of options that are wrong."""

from __future__ import annotations

import json

import pytest
import torch

from sinkscope import attention as zoo
from sinkscope.attention.catalog import ENTRIES
from sinkscope.errors import InputError
from sinkscope.model import LabConfig

NAMED = [
    ("softmax_scaled(alpha=0.2)", {"name": "softmax_scaled", "alpha": 0.2}),
    ("k_bias_fixed_v(direction=uniform, norm=5.0)", {"name": "k_bias_fixed_v", "direction": "uniform", "norm": 5.0}),
    ("stable_mask(context=128, gamma=0.1)", {"name": "stable_mask", "context": 128, "gamma": 0.1}),
    ("clipped_softmax(alpha=12.0)", {"name": "clipped_softmax", "alpha": 12.0}),
    ("relu(over_n=False)", {"name": "relu", "over_n": False}),
    ("differential(lambda_init=0.5)", {"name": "differential", "lambda_init": 0.5}),
    ("sigmoid_bias", {"name": "sigmoid_bias", "bias": 0}),
]
NAMELESS = [
    zoo.AttentionSpec(slots=(zoo.KeySlot(value="learned", d_a=3),)),
    zoo.AttentionSpec(mask=zoo.Causal() & zoo.Window(3)),
    zoo.AttentionSpec(normalizer=zoo.ScaledSoftmax(alpha=0.2), slots=(zoo.ZeroSlot(),)),
    zoo.AttentionSpec(output=(zoo.HeadGate(relative=True),)),  # a field of the piece that is no option of its line
]
WRONG = [
    ("softmax", {"alpha": 3}, "has no options, got 'alpha'"),
    ("softmax_scaled", {"alpah": 1}, "did you mean 'alpha'?"),
    ("softmax_scaled", {"alpha": 0}, "field 'alpha' = 0: input should be greater than 0"),
    ("softmax_power", {"p": -1}, "field 'p' = -1: input should be greater than 0"),
    ("clipped_softmax", {"gamma": 0.1}, "field 'gamma' = 0.1: input should be less than or equal to 0"),
    ("k_bias_fixed_v", {"direction": "frist"}, "'direction' 'frist': did you mean 'first'?"),
    ("k_bias_lowrank", {"d_a": 0}, "field 'd_a' = 0: input should be greater than or equal to 1"),
    ("stable_mask", {"gamma": "x"}, "field 'gamma' = 'x': input should be a valid number"),
    ("gated_head", {"openness": 1}, "field 'openness' = 1: input should be less than 1"),
]


@pytest.mark.parametrize("name", ENTRIES)
def test_defaults_are_what_the_line_makes(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.make(**entry.options) == entry.spec == zoo.resolve({"name": name, **entry.options})
    assert zoo.named(entry.spec) == {"name": name}


@pytest.mark.parametrize(("name", "options"), NAMED)
def test_options_are_part_of_the_name(name: str, options: dict) -> None:
    spec = zoo.resolve(options)
    assert zoo.name_of(spec) == name
    assert zoo.resolve(zoo.named(spec)) == spec


@pytest.mark.parametrize("spec", NAMELESS)
def test_what_no_line_makes_is_custom(spec: zoo.AttentionSpec) -> None:
    assert zoo.named(spec) is None
    assert zoo.name_of(spec) == "custom"


@pytest.mark.parametrize(("name", "options", "words"), WRONG)
def test_wrong_options_are_said_in_one_line(name: str, options: dict, words: str) -> None:
    with pytest.raises(InputError) as caught:
        zoo.resolve({"name": name, **options})
    assert words in str(caught.value)
    assert f"'{name}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [3, None, ["softmax"], 0.5])
def test_what_is_no_operation_at_all(wrong: object) -> None:
    with pytest.raises(InputError, match="expected a name such as 'sigmoid'"):
        zoo.resolve(wrong)


def test_a_lab_configuration_stores_a_plain_spec(tmp_path) -> None:
    config = LabConfig(attention={"name": "softmax_scaled", "alpha": 0.2})
    assert config.attention == zoo.AttentionSpec(normalizer=zoo.ScaledSoftmax(alpha=0.2)).to_dict()
    assert config.attention_name == "softmax_scaled(alpha=0.2)"
    config.save_pretrained(tmp_path)
    assert "name" not in json.loads((tmp_path / "config.json").read_text())["attention"]
    assert LabConfig.from_pretrained(tmp_path).spec == config.spec
    with pytest.raises(InputError, match="unknown option of 'softmax_scaled' 'alfa': did you mean 'alpha'"):
        LabConfig(attention={"name": "softmax_scaled", "alfa": 0.2})


def test_the_explicit_bias_of_sun_is_the_key_value_bias_of_gu_behind_the_keys_instead_of_before() -> None:
    assert zoo.resolve("explicit_attention_bias") == zoo.CATALOG["kv_bias"]
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 7, 4, dtype=torch.float64) for _ in range(3))
    own, carried = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    keys, values = (
        torch.cat([tokens, slot.expand(2, 3, 4)[:, :, None]], 2) for tokens, slot in ((key, own), (value, carried))
    )
    allowed = torch.cat([torch.ones(7, 7).tril(), torch.ones(7, 1)], 1).bool()
    theirs = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=allowed)
    operation = zoo.resolve("explicit_attention_bias").build(heads=3, kv_heads=3, head_dim=4, hidden_size=12)
    parameters = dict(zip(operation.state_dict(), (own, carried), strict=True))
    ours = zoo.attend(query, key, value, "explicit_attention_bias", parameters=parameters)
    torch.testing.assert_close(ours.output, theirs, atol=1e-12, rtol=1e-12)
