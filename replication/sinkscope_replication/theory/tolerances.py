"""How far apart equal numbers may be."""

from sinkscope.statistics.claims import EachWithin

EXACT = EachWithin(0)
ROUNDING = EachWithin(1e-12)  # float64, sums of up to some hundred terms
STORED = EachWithin(1e-6)  # measurements are kept in fp32, and the numbers that they are compared with have six digits
