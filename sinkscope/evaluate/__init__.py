"""What a cache, or a quantized one, does to a model: perplexity, recall, throughput, memory, side by side."""

from sinkscope.caches.memory import held_bytes
from sinkscope.evaluate.agreement import agreed, written
from sinkscope.evaluate.arms import FULL, Arm, arm, full, transformers_quantized, with_full
from sinkscope.evaluate.comparing import compare_caches
from sinkscope.evaluate.comparison import CacheComparison
from sinkscope.evaluate.feeding import Feed, feeding
from sinkscope.evaluate.needles import Alphabet, Asked, Needles, noise
from sinkscope.evaluate.perplexity import Scored, scored, stream_nll
from sinkscope.evaluate.recall import Recalled, recalled
from sinkscope.evaluate.throughput import Speed, speeds

__all__ = [
    "FULL",
    "Alphabet",
    "Arm",
    "Asked",
    "CacheComparison",
    "Feed",
    "Needles",
    "Recalled",
    "Scored",
    "Speed",
    "agreed",
    "arm",
    "compare_caches",
    "feeding",
    "full",
    "held_bytes",
    "noise",
    "recalled",
    "scored",
    "speeds",
    "stream_nll",
    "transformers_quantized",
    "with_full",
    "written",
]
