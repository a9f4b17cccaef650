"""What figures show, in words: what each of them draws, and not another metric."""

from __future__ import annotations

from sinkscope.experiments import Findings, Observed, Question, Variation, above, level
from sinkscope.experiments.effects import half_way, metric_gap
from sinkscope.report.experiments import entry
from sinkscope.report.experiments.names import title
from sinkscope_replication.page.told import told
from tests_replication.page.test_findings_shapes import made, run


def test_of_curves_the_ends_are_told():
    asked = made(lambda runs: half_way(runs["one"], "sink/position_0"), Variation("one"), sink_0=99.0)
    assert told(asked) == (
        "sink rate at position 0 (%) over training, mean over seeds at the first and the last step: one 0 to 8. "
        "validation loss (nats) over training, mean over seeds at the first and the last step: one 5 to 3."
    )


def test_what_was_published_beside_lines_is_told_too():
    variations = (Variation("one", {}, {"sink_0": 18.2}), Variation("two"))
    asked = made(lambda runs: half_way(runs["one"], "sink/position_0"), *variations)
    assert told(asked).endswith(" Published: sink rate at position 0 (%): one 18.2.")
    rates = {f"sink_{position}": 1.0 for position in range(17)}
    moved = made(level("sink_2", "one"), Variation("one", {}, {"sink_0": 0.1, "sink_2": 69.6}), **rates)
    assert told(moved).endswith(" Published: sink rate (%), the largest: one 69.6 at 2.")


def test_of_positions_the_strongest_is_told_of_the_runs_that_have_it():
    rates = {f"sink_{position}": 10.0 * (position == 2) for position in range(17)}
    asked = made(level("sink_2", "one"), Variation("one"), **rates)
    assert told(asked) == "sink rate (%) by position, the largest mean over seeds: one 10 at 2."
    masses = {"sink_mass": 1.0, **{f"sink_mass_{position}": 4.0 * (position == 5) for position in range(1, 17)}}
    runs = {"one": {0: run(0, **rates, **masses), 1: run(1, **rates)}}
    claim = above(0.0, level("sink_2", "one"), "claim", "it is so", "Table 4")
    older = entry(Question("q", "Is it?", "Table 4", (Variation("one"),), (claim,)), Findings("q", "nano", 2, runs))
    assert told(older) == "sink mass (%) by position, the largest mean over seeds: one 4 at 5."


def test_of_readings_each_is_told():
    asked = made(metric_gap("one", "lift/a", "lift/b"), Variation("one"), **{"lift/a": 2.0, "lift/b": 1.0})
    assert told(asked) == f"{title('lift')}, mean over seeds: one a 2; b 1."


def test_of_two_losses_of_one_run_their_difference_is_told_first():
    asked = made(metric_gap("one", "loss/a", "loss/b"), Variation("one"), **{"loss/a": 2.04, "loss/b": 2.0})
    assert told(asked).startswith("validation loss (nats), a minus b, mean over seeds: one 0.04. validation loss")


def test_of_dots_both_panels_are_told_and_of_doses_the_one_that_is_drawn():
    dots = made(
        level("sink_0", "one"), Variation("one", {}, {"sink_0": 18.2, "norm_ratio": 9.0}), sink_0=8.0, norm_ratio=5.0
    )
    sink = "sink rate at position 0 (%), mean over seeds: one 8. Published: one 18.2."
    assert told(dots) == f"{sink} hidden-norm ratio, mean over seeds: one 5. Published: one 9."
    doses = [Variation(str(dose), {"optimizer.weight_decay": dose}) for dose in (0.0, 0.5, 2.0)]
    assert told(made(level("sink_0", "2.0"), *doses, sink_0=8.0, norm_ratio=5.0)).count("mean over seeds") == 1


def test_what_has_failed_is_not_told():
    variation = Variation("one")
    claim = above(0.0, lambda runs: half_way(runs["one"], "m"), "claim", "it is so", "Table 4")
    lost = Observed("run-1", "diverged", 1, {}, (1, 2), {"m": (9.0, 9.0)})
    kept = Observed("run-0", "finished", 0, {}, (1, 2), {"m": (1.0, 2.0)})
    asked = entry(
        Question("q", "Is it?", "Table 4", (variation,), (claim,)),
        Findings("q", "nano", 2, {"one": {0: kept, 1: lost}}),
    )
    assert "one 1 to 2." in told(asked)
