"""What a recipe can train besides the lab model, by the same session: an encoder and a hybrid of transformers' own."""

from sinkscope.training.kinds.encoder import ENCODER
from sinkscope.training.kinds.hybrid import HYBRID
from sinkscope.training.kinds.kind import LAB, Kind, fingerprint

__all__ = ["ENCODER", "HYBRID", "LAB", "Kind", "fingerprint"]
