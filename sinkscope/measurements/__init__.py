"""What was measured: labeled statistics with their file and selection; rates, tables, definitions, figures of them.

`Measurement` is the value that people hold; its methods call the functions of this room, which take its dataset.
"""

from sinkscope.measurements.comparison import Comparison, compare
from sinkscope.measurements.definitions import DEFINITIONS, Definition
from sinkscope.measurements.head_metrics import HEAD_METRICS, HeadMetric, HeadView
from sinkscope.measurements.heads import applicable, head_table, head_values
from sinkscope.measurements.measurement import Measurement
from sinkscope.measurements.rates import (
    comparable_rates,
    rate_at,
    rates_by_position,
    received,
    stack_rates,
    stacks_apart,
    strongest_position,
)
from sinkscope.measurements.selection import (
    CAUSAL,
    PER_HEAD,
    TokenView,
    at,
    column_of,
    depth_labels,
    has_position,
    layer_labels,
    layers_of,
    need,
    sample_lengths,
)
from sinkscope.measurements.tables import hidden_norm_table, received_table, value_norm_table
from sinkscope.metrics import Interval

__all__ = [
    "CAUSAL",
    "DEFINITIONS",
    "HEAD_METRICS",
    "PER_HEAD",
    "Comparison",
    "Definition",
    "HeadMetric",
    "HeadView",
    "Interval",
    "Measurement",
    "TokenView",
    "applicable",
    "at",
    "column_of",
    "comparable_rates",
    "compare",
    "depth_labels",
    "has_position",
    "head_table",
    "head_values",
    "hidden_norm_table",
    "layer_labels",
    "layers_of",
    "need",
    "rate_at",
    "rates_by_position",
    "received",
    "received_table",
    "sample_lengths",
    "stack_rates",
    "stacks_apart",
    "strongest_position",
    "value_norm_table",
]
