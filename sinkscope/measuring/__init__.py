"""Models by name, texts, datasets and loaders, in front of `probes`: what `ss.measure` stands for."""

from sinkscope.measuring.comparing import compare as compare
from sinkscope.measuring.comparing import distinct as distinct
from sinkscope.measuring.comparing import saved as saved
from sinkscope.measuring.face import measure as measure
from sinkscope.measuring.given import Given as Given
from sinkscope.measuring.given import given as given

__all__ = ["Given", "compare", "distinct", "given", "measure", "saved"]
