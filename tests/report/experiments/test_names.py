import math

from sinkscope.report.experiments.names import cost, counted, effect, in_words, number, sizes, title
from sinkscope.statistics.claims import Claim, Size
from sinkscope.statistics.estimates import estimate


def test_metrics_in_words():
    assert title("sink_2") == "sink rate at position 2 (%)"
    assert title("sink_0/epsilon=0.2") == "sink rate at position 0 (%), ε = 0.2"
    assert title("sink_0/tokens=32") == "sink rate at position 0 (%), 32 tokens"
    assert title("sink_0/tokens=32/epsilon=0.5") == "sink rate at position 0 (%), 32 tokens, ε = 0.5"
    assert title("sink_mass") == title("sink/mass") == title("sink_mass_0") == "sink mass at position 0 (%)"
    assert title("sink_mass_2/swapped=2").startswith("sink mass at position 2 (%), ")
    assert title("sink_mass/strongest/layer=1") == "sink mass at the strongest position (%), layer 1"
    assert title("first_share") == "attention on position 0 (%)"
    assert title("loss/without_first") == "validation loss (nats), without the first token"
    assert title("sink/position_0") == title("sink_0")
    assert title("something/else") == "something, else"


def test_a_job_may_mean_something_else_by_a_name():
    titles = {"slot": "mean weight on slots", "loss": "an error"}
    assert title("slot", titles) == "mean weight on slots"
    assert title("slot") == "sink rate of the slot (%)"


def test_numbers_and_effects():
    assert number(12.3456) == "12.3"
    assert number(-0.5) == "−0.5"
    assert number(-0.0) == "0"
    assert number(None) == number(float("nan")) == "–"


def test_effects_have_their_interval_and_ratios_say_so():
    def shown(rule, *values):
        verdict = Claim("c", "s", "t", rule).judge(estimate([(1.0, values)]))
        return effect(verdict), sizes(verdict)

    assert shown(Size(1.0), 1.0, 2.0, 3.0) == ("2 (−2.02 to 6.02)", "3")
    assert shown(Size(1.0), 2.0) == ("2", "1")
    assert shown(Size(1.25, ratio=True), *[math.log(2.0)] * 3) == ("2 times (2 to 2)", "3")
    assert effect(Claim("c", "s", "t", Size(1.0)).open("no")) == "–"


def test_costs():
    assert [cost(seconds) for seconds in (0.4, 59, 61, 3599, 5400)] == ["0 s", "59 s", "1 min", "60 min", "1.5 h"]


def test_values_of_recipes():
    window = {"mask": {"kind": "and", "first": {"kind": "causal"}, "second": {"kind": "window", "size": 16}}}
    assert in_words(window) == "and(causal, window(size = 16))"
    assert in_words([{"kind": "fixed_token", "position": 2}]) == "fixed_token(position = 2)"
    assert in_words([]) == "none"
    assert in_words(0.0005) == "0.0005"
    assert in_words({"name": "softmax_scaled", "alpha": 0.2}) == "softmax_scaled(alpha = 0.2)"


def test_counts():
    assert [counted(number, "run") for number in (0, 1, 1000)] == ["0 runs", "1 run", "1,000 runs"]
