"""The report card of a model: one question a section, rows with numbers, intervals, words, and what to do.

`check` runs the sections of `SECTIONS`; a new section is one file and one line in `registry`.
"""

from sinkscope.checks.card import FLAGS as FLAGS
from sinkscope.checks.card import Card as Card
from sinkscope.checks.card import Part as Part
from sinkscope.checks.card import check_flags as check_flags
from sinkscope.checks.card import held as held
from sinkscope.checks.exporting import export as export
from sinkscope.checks.registry import SECTIONS as SECTIONS
from sinkscope.checks.registry import check_raisable as check_raisable
from sinkscope.checks.registry import chosen as chosen
from sinkscope.checks.row import Answered as Answered
from sinkscope.checks.row import Row as Row
from sinkscope.checks.running import check as check
from sinkscope.checks.section import CheckSection as CheckSection
from sinkscope.checks.subject import CheckedModel as CheckedModel
from sinkscope.checks.subject import TextSet as TextSet
