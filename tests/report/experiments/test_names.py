from sinkscope.report.experiments.names import cost, counted, effect, number, said, title


def test_metrics_in_words():
    assert title("sink_2") == "sink rate at position 2 (%)"
    assert title("sink_0/epsilon=0.2") == "sink rate at position 0 (%), ε = 0.2"
    assert title("sink_0/tokens=16") == "sink rate at position 0 (%), 16 tokens"
    assert title("loss/without_first") == "validation loss (nats), without the first token"
    assert title("sink/position_0") == title("sink_0")
    assert title("something/else") == "something, else"


def test_numbers_and_effects():
    assert number(12.3456) == "12.3"
    assert number(-0.5) == "−0.5"
    assert number(-0.0) == "0"
    assert number(None) == number(float("nan")) == "–"
    assert effect(4.2, 0.61) == "4.2 ± 0.61"
    assert effect(0.0, 0.0) == "0"


def test_costs():
    assert [cost(seconds) for seconds in (0.4, 59, 61, 3599, 5400)] == ["0 s", "59 s", "1 min", "60 min", "1.5 h"]


def test_values_of_recipes():
    window = {"mask": {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": 16}}}
    assert said(window) == "and(causal, window(size = 16))"
    assert said([{"kind": "fixed_token", "position": 2}]) == "fixed_token(position = 2)"
    assert said([]) == "none"
    assert said(0.0005) == "0.0005"
    assert said({"name": "softmax_scaled", "alpha": 0.2}) == "softmax_scaled(alpha = 0.2)"


def test_counts():
    assert [counted(number, "run") for number in (0, 1, 1000)] == ["0 runs", "1 run", "1,000 runs"]
