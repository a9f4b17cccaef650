import pytest

from sinkscope.errors import InputError
from sinkscope.report.curves import training_curves, training_table
from sinkscope.report.runs import StoredRun


def test_each_run_has_its_sink_rate_above_and_its_losses_below(runs):
    figure = training_curves(runs)
    sink = [trace for trace in figure.data if trace.yaxis is None]
    losses = [trace for trace in figure.data if trace.yaxis == "y2"]
    assert [trace.name for trace in sink] == ["softmax", "sigmoid"]
    assert [list(trace.x) for trace in sink] == [[50, 100, 150, 200]] * 2
    assert sink[0].y[-1] == pytest.approx(6.4)
    assert len(losses) == 4
    assert all(trace.legendgroup in ("softmax", "sigmoid") and trace.showlegend is False for trace in losses)


def test_axes_carry_units(runs):
    layout = training_curves(runs).layout
    assert layout.xaxis.title.text == "training step"
    assert "%" in layout.yaxis.title.text
    assert "nats" in layout.yaxis2.title.text


def test_runs_differ_in_more_than_colour(runs):
    lines = [trace.line.dash for trace in training_curves(runs).data if trace.yaxis is None]
    assert len(set(lines)) == 2


def test_a_runs_name_is_text_not_markup():
    figure = training_curves([StoredRun("<script>x</script>", ({"step": 1, "loss": 1.0},))])
    assert figure.data[0].name == "&lt;script&gt;x&lt;/script&gt;"


def test_nothing_to_draw_is_an_error():
    with pytest.raises(InputError, match="no runs"):
        training_curves([])


def test_a_row_per_evaluation_and_columns_per_run(runs):
    table = training_table(runs)
    assert list(table["step"]) == [50, 100, 150, 200]
    assert table["softmax: sink rate (%)"].iloc[-1] == pytest.approx(6.4)
    assert table["sigmoid: sink rate (%)"].iloc[-1] == 0.0
    assert table["softmax: hidden norm ratio"].iloc[-1] == pytest.approx(3.0)
