"""How a lab model knows where a token stands.

`build.py` makes a scheme from a configuration; it stands apart, since a configuration checks itself with what is here.
"""

from sinkscope.model.positions.absolute import LearnedTable, Sinusoidal, check_even_width, sinusoids
from sinkscope.model.positions.relative import Alibi, RelativePaper, RelativeT5, alibi_slopes, bucket
from sinkscope.model.positions.rotary import Rope, Rotary, rotate
from sinkscope.model.positions.scheme import DistanceBias, Rotation, Scheme, TokenPositions, restarted

__all__ = [
    "Alibi",
    "DistanceBias",
    "LearnedTable",
    "RelativePaper",
    "RelativeT5",
    "Rope",
    "Rotary",
    "Rotation",
    "Scheme",
    "Sinusoidal",
    "TokenPositions",
    "alibi_slopes",
    "bucket",
    "check_even_width",
    "restarted",
    "rotate",
    "sinusoids",
]
