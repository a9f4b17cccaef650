"""Variations of one number: in its order, and with the one that has it without saying so."""

from __future__ import annotations

import pytest
import torch

from sinkscope.attention import attend
from sinkscope.attention.catalog import resolve
from sinkscope.experiments import Variation
from sinkscope.report.experiments import entry
from sinkscope.report.experiments.doses import SAME_AS, by_dose, doses, grouped
from tests.report.experiments.conftest import question

SOFTMAX = Variation("softmax", {"attention": "softmax"})


def asked(*variations):
    return entry(question(variations=variations), None)


def power(p, operation="softmax_power"):
    return Variation(f"p = {p:g}", {"attention": {"name": operation, "p": p}})


def test_an_operation_stands_at_the_dose_at_which_another_is_it():
    [series] = doses(asked(SOFTMAX, power(0.25), power(0.5), power(2.0)))
    assert series.labels == ("p = 0.25", "p = 0.5", "softmax", "p = 2")
    assert (series.values, series.without) == ((0.25, 0.5, 1.0, 2.0), ("softmax",))
    [falling] = doses(asked(power(4.0), power(2.0), power(0.5), SOFTMAX))
    assert falling.labels == ("p = 4", "p = 2", "softmax", "p = 0.5")


def test_an_operation_stands_apart_where_it_is_none_of_the_doses():
    fewer = asked(SOFTMAX, *(power(p, "sigmoid_power") for p in (2.0, 3.0, 4.0)))
    [series] = doses(fewer)
    assert series.without == ()
    labels = [variation.label for variation in fewer.variations]
    assert grouped(labels, doses(fewer)) == [("softmax",), ("p = 2", "p = 3", "p = 4")]
    with_prefix = Variation("softmax", {"attention": "softmax", "steps": 3000})
    assert doses(asked(with_prefix, power(0.25), power(0.5), power(2.0)))[0].without == ()


def test_a_recipe_stands_where_its_own_value_belongs():
    decays = [Variation(f"{decay:g}", {"optimizer.weight_decay": decay}) for decay in (0.0, 0.5, 1.0)]
    made = asked(Variation("as it is"), *decays)
    [series] = doses(made)
    assert series[:2] == ("optimizer.weight_decay", ("0", "as it is", "0.5", "1"))
    assert series.values[1] == made.base["optimizer"]["weight_decay"] == 0.1
    rates = [Variation(f"times {factor}", {"optimizer.lr": f"times {factor}"}) for factor in (0.25, 2.5)]
    both = asked(Variation("as it is"), *rates, *decays)
    assert [each.labels for each in doses(both)] == [
        ("times 0.25", "as it is", "times 2.5"),
        ("0", "as it is", "0.5", "1"),
    ]
    labels = [variation.label for variation in both.variations]
    assert grouped(labels, doses(both)) == [each.labels for each in doses(both)]
    assert by_dose(labels, doses(both)) == ["times 0.25", "as it is", "times 2.5", "0", "0.5", "1"]


@pytest.mark.parametrize(("operation", "option"), SAME_AS)
def test_operations_that_are_said_to_be_another_are(operation, option):
    other, dose = SAME_AS[operation, option]
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 7, 4)
    outputs = []
    for spec in (resolve(other), resolve({"name": operation, option: dose})):
        built = spec.build(heads=2, kv_heads=2, head_dim=4, hidden_size=8)
        learned = {name: torch.full_like(each, 0.3) for name, each in built.state_dict().items()}
        outputs.append(attend(query, key, value, spec, learned).output)
    torch.testing.assert_close(*outputs)
