"""What is read while a model runs: each observer turns calls and block outputs into small sums.

All are imported with this package, so that "all" means all of them, in one order: those that run by default come first.
"""

from sinkscope.measurement.observers import norms as norms
from sinkscope.measurement.observers import received as received

# isort: split
from sinkscope.measurement.observers import bands as bands
from sinkscope.measurement.observers import diagonal as diagonal
from sinkscope.measurement.observers import entropy as entropy
from sinkscope.measurement.observers import experts as experts
from sinkscope.measurement.observers import geometry as geometry
from sinkscope.measurement.observers import incoming as incoming
from sinkscope.measurement.observers import kept as kept
from sinkscope.measurement.observers import lengths as lengths
from sinkscope.measurement.observers import logits as logits
from sinkscope.measurement.observers import massive as massive
from sinkscope.measurement.observers import outliers as outliers
from sinkscope.measurement.observers import outputs as outputs
from sinkscope.measurement.observers import spikes as spikes
from sinkscope.measurement.observers import update as update
