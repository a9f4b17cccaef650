"""Means and their intervals; claims and grades in `claims`, rank correlation in `ranks`, spectra in `spectral`."""

from sinkscope.statistics.intervals import FEW as FEW
from sinkscope.statistics.intervals import Interval as Interval
from sinkscope.statistics.intervals import difference_interval as difference_interval
from sinkscope.statistics.intervals import mean_bounds as mean_bounds
from sinkscope.statistics.intervals import mean_interval as mean_interval
from sinkscope.statistics.intervals import nanmean as nanmean
from sinkscope.statistics.intervals import note as note
from sinkscope.statistics.intervals import quiet as quiet
from sinkscope.statistics.intervals import ratio_interval as ratio_interval
from sinkscope.statistics.intervals import share_bounds as share_bounds
from sinkscope.statistics.intervals import share_interval as share_interval
