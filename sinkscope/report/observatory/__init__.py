"""The page of one measurement: head maps, tokens, depths, and one number or curve per metric."""

from sinkscope.report.observatory.heads import HeadMaps
from sinkscope.report.observatory.page import observatory_page

__all__ = ["HeadMaps", "observatory_page"]
