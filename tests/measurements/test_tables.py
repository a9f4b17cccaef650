import numpy as np
import pytest

from sinkscope.measurements import hidden_norm_table, received_table, value_norm_table


def test_attention_received_per_layer_and_head(dataset):
    table = received_table(dataset)
    assert list(table.columns) == ["layer", "head 0", "head 1"]
    assert table["head 1"].iloc[2] == pytest.approx(0.75)


def test_the_ratio_sets_the_position_against_the_others(dataset):
    table = hidden_norm_table(dataset)
    np.testing.assert_allclose(table["ratio"], table["position 0"] / table["others"], rtol=1e-5)
    assert table["ratio"].iloc[3] > 25
    assert value_norm_table(dataset)["ratio"].iloc[2] == pytest.approx(0.1, abs=0.01)
