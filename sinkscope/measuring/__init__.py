"""Models by name, texts, datasets and loaders, in front of `probes`: what `ss.measure` stands for."""

from sinkscope.measuring.face import measure as measure
from sinkscope.measuring.given import Given as Given
from sinkscope.measuring.given import given as given

__all__ = ["Given", "given", "measure"]
