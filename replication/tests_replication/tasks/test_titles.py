"""What tasks call their metrics."""

import torch

from sinkscope.report.experiments.names import title
from sinkscope.training import LAB
from sinkscope_replication.tasks import backcopy_minimal
from sinkscope_replication.tasks.backcopy import Backcopy
from sinkscope_replication.tasks.backcopy_law import Sequences, tokenizer_of
from sinkscope_replication.tasks.conditional import Examples, OneLayer, TriggerConditional, model_metrics


def test_a_task_may_mean_something_else_by_a_name():
    assert title("slot", TriggerConditional.titles) == "mean weight on slots, elsewhere"
    assert title("loss", TriggerConditional.titles) == title("validation_loss", TriggerConditional.titles)
    assert "nats" not in title("loss", TriggerConditional.titles)
    assert title("loss", Backcopy.titles) == title("loss") == "validation loss (nats)"
    assert title("excess_triggers/zero_head", Backcopy.titles).endswith("at triggers (nats), head zeroed")
    assert title("task/logit_gap", Backcopy.titles) == title("logit_gap", Backcopy.titles)
    assert title("slot") == title("slot", Backcopy.titles) == "sink rate of the slot (%)"


def test_what_the_task_reads_has_a_title():
    job = TriggerConditional()
    own = {*model_metrics(OneLayer(job), Examples(job, 4, "test")), "validation_loss"}
    assert set(TriggerConditional.titles) == own
    nano = Backcopy.at_scale("nano", {})
    model = LAB.model(nano.recipe, tokenizer_of(nano.law))
    named = {name.partition("/")[0] for name in nano.reading().all(model)}
    assert {name.partition("/")[0] for name in Backcopy.titles} == named
    law = nano.law
    few = torch.stack([Sequences(law, 8, 12, "test", 0)[item]["input_ids"] for item in range(8)])
    read_off = backcopy_minimal.Reading(law, few).read(backcopy_minimal.MinimalModel(law, torch.ones(law.tokens)))
    assert {*backcopy_minimal.Minimal.titles, "loss"} == {*read_off}
