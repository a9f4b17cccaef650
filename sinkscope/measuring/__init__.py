"""Models by name, texts, datasets and loaders, in front of `probes`: what `ss.measure` stands for."""

from sinkscope.measuring.comparing import compare as compare
from sinkscope.measuring.comparing import distinct as distinct
from sinkscope.measuring.comparing import saved as saved
from sinkscope.measuring.evidence import evidence_for as evidence_for
from sinkscope.measuring.evidence import find_tokens as find_tokens
from sinkscope.measuring.evidence import rows_of as rows_of
from sinkscope.measuring.face import measure as measure
from sinkscope.measuring.given import Given as Given
from sinkscope.measuring.given import given as given

__all__ = ["Given", "compare", "distinct", "evidence_for", "find_tokens", "given", "measure", "rows_of", "saved"]
