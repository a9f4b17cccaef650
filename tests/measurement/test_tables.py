import numpy as np
import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import hidden_norm_table, received_table, value_norm_table
from sinkscope.measurement.figures import hidden_norms, value_norms


def test_attention_received_per_layer_and_head(dataset):
    table = received_table(dataset)
    assert list(table.columns) == ["layer", "head 0", "head 1"]
    assert table["head 1"].iloc[2] == pytest.approx(0.75)


def test_the_ratio_sets_the_position_against_the_others(dataset):
    table = hidden_norm_table(dataset)
    np.testing.assert_allclose(table["ratio"], table["position 0"] / table["others"], rtol=1e-5)
    assert table["ratio"].iloc[3] > 25
    assert value_norm_table(dataset)["ratio"].iloc[2] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("of", [received_table, hidden_norm_table, value_norm_table, hidden_norms, value_norms])
def test_a_position_that_was_not_measured_is_refused_in_one_way(dataset, of):
    with pytest.raises(InputError, match="position 40 was not measured; measured: 0 to 11"):
        of(dataset, 40)
