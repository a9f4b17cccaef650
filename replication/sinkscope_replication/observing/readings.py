"""What the study reads of a trained model: all that `sinkscope.experiments.readings` reads, and what only it asks for.

On the same windows: `relative_spread`, `relative_pair_distance` (`mixing.RelativeMixing`); `sink_heads`,
`output_norm/sink_heads`, `output_norm/other_heads`, `zeroing/sink_heads`, `zeroing/other_heads`
(`ablations.sink_heads_zeroed`); `perturbation`, `perturbation/without_first` (`ablations.spread_of_a_change`);
`resting/heads`, `resting/on_sink`, `resting/controls` (`no_op.written_on_the_sink`); `key_angle`, `key_angle/others`
(`keys.keys_apart`); on one repeated token with exchanged position embeddings: `ablations.moved_positions`.
"""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.experiments import Metrics
from sinkscope.experiments.readings import (
    BATCH,
    EPSILON,
    SINKS,
    STATES,
    TOKENS,
    Windows,
    by_name,
    columns,
    long_enough,
    on_lengths,
    on_other_inputs,
    other_inputs,
    sink_metrics,
    state_metrics,
    strongest,
    strongest_metrics,
)
from sinkscope.measurement import HeadOutputs, measure
from sinkscope_replication.observing.ablations import moved_positions, sink_heads_zeroed, spread_of_a_change
from sinkscope_replication.observing.keys import keys_apart
from sinkscope_replication.observing.mixing import RelativeMixing
from sinkscope_replication.observing.no_op import written_on_the_sink


def readings(model: PreTrainedModel, windows: Tensor | Windows) -> Metrics:
    """The metrics that come from a model and validation windows.

    `windows`: ids (sample, token), or model inputs by name, all of that shape. With `document_ids` the windows' own
    text is read under the masks and positions that the model has for documents; other inputs are one document a row.
    """
    windows = by_name(windows)
    text = columns(windows, slice(TOKENS))
    observers = (*SINKS, *STATES, RelativeMixing(), HeadOutputs())
    measured = measure(model, text, observers, batch_size=BATCH, apart=False)
    yield from sink_metrics(measured)
    yield from strongest_metrics(measured)
    yield from state_metrics(measured)
    if long_enough(measured):
        yield from sink_heads_zeroed(model, text, measured, EPSILON, BATCH)
    position, _ = strongest(measured)
    yield from written_on_the_sink(model, text, position, BATCH)
    yield from keys_apart(model, text, measured, position, BATCH)
    yield from on_lengths(model, windows)
    yield from on_other_inputs(model, windows)
    others = other_inputs(windows, model.config.vocab_size)
    yield from moved_positions(model, others["repeated"]["input_ids"], EPSILON, BATCH)
    yield from spread_of_a_change(model, text, others["without_first"], BATCH)
