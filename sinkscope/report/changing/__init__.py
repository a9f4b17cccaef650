"""Pages of changes to a model: what was chosen, and what it does to texts that had no part in it."""

from sinkscope.report.changing.calibration import calibration_page as calibration_page
