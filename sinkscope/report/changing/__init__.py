"""Pages of changes to a model: what was chosen, and what it does to texts that had no part in it."""

from sinkscope.report.changing.quantization import COST as COST
from sinkscope.report.changing.quantization import arm_rows as arm_rows
from sinkscope.report.changing.quantization import quantization_page as quantization_page
