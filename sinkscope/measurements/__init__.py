"""What was measured: labeled statistics with their file and selection; rates, tables, definitions, figures of them.

`Measurement` is the value that people hold; its methods call the functions of this room, which take its dataset.
"""

from sinkscope.measurements.comparison import Comparison, Comparisons, compare
from sinkscope.measurements.definition_rules import DEFINITIONS, Definition
from sinkscope.measurements.head_metric import HeadMetric
from sinkscope.measurements.head_metrics import HEAD_METRICS
from sinkscope.measurements.heads import applicable, head_table, head_values
from sinkscope.measurements.measurement import Measurement
from sinkscope.measurements.rates import rate_at, received, stack_rates, stacks_apart
from sinkscope.measurements.selection import (
    PAPER,
    PER_HEAD,
    VISIBLE,
    HeadView,
    TokenView,
    at,
    column_of,
    comparable_places,
    denominator_of,
    depth_labels,
    depth_lengths,
    has_position,
    layer_labels,
    layers_of,
    need,
    query_counts,
    sample_lengths,
    visible_queries,
)
from sinkscope.measurements.slots import SlotMass, slot_mass, slot_mass_by_layer
from sinkscope.measurements.strongest import (
    Strongest,
    comparable_rates,
    rates_by_position,
    strongest_by_layer,
    strongest_position,
)
from sinkscope.measurements.tables import hidden_map_table, hidden_norm_table, received_table, value_norm_table
from sinkscope.measurements.texts import TokenTexts
from sinkscope.metrics import Interval

__all__ = [
    "DEFINITIONS",
    "HEAD_METRICS",
    "PAPER",
    "PER_HEAD",
    "VISIBLE",
    "Comparison",
    "Comparisons",
    "Definition",
    "HeadMetric",
    "HeadView",
    "Interval",
    "Measurement",
    "SlotMass",
    "Strongest",
    "TokenTexts",
    "TokenView",
    "applicable",
    "at",
    "column_of",
    "comparable_places",
    "comparable_rates",
    "compare",
    "denominator_of",
    "depth_labels",
    "depth_lengths",
    "has_position",
    "head_table",
    "head_values",
    "hidden_map_table",
    "hidden_norm_table",
    "layer_labels",
    "layers_of",
    "need",
    "query_counts",
    "rate_at",
    "rates_by_position",
    "received",
    "received_table",
    "sample_lengths",
    "slot_mass",
    "slot_mass_by_layer",
    "stack_rates",
    "stacks_apart",
    "strongest_by_layer",
    "strongest_position",
    "value_norm_table",
    "visible_queries",
]
