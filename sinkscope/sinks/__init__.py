"""Which tokens are sinks: one rule on arrays, choices of tokens as values, and the tokens chosen in given texts.

Nothing here runs a model. `find_tokens` measures what a choice needs, and resolves it.
"""

from sinkscope.sinks.choice import DOWN as DOWN
from sinkscope.sinks.choice import Choice as Choice
from sinkscope.sinks.choice import Evidence as Evidence
from sinkscope.sinks.choice import First as First
from sinkscope.sinks.choice import Last as Last
from sinkscope.sinks.choice import Measured as Measured
from sinkscope.sinks.choice import NothingChosenError as NothingChosenError
from sinkscope.sinks.choice import Online as Online
from sinkscope.sinks.choice import Outliers as Outliers
from sinkscope.sinks.choice import Positions as Positions
from sinkscope.sinks.choice import ReceivedAttention as ReceivedAttention
from sinkscope.sinks.choice import Spikes as Spikes
from sinkscope.sinks.choice import Sum as Sum
from sinkscope.sinks.choice import TokenIds as TokenIds
from sinkscope.sinks.choice import parts_of as parts_of
from sinkscope.sinks.rule import EPSILON as EPSILON
from sinkscope.sinks.rule import FEWEST as FEWEST
from sinkscope.sinks.rule import LIFT as LIFT
from sinkscope.sinks.rule import by_id as by_id
from sinkscope.sinks.rule import by_position as by_position
from sinkscope.sinks.rule import by_row as by_row
from sinkscope.sinks.rule import check_epsilon as check_epsilon
from sinkscope.sinks.rule import chosen as chosen
from sinkscope.sinks.rule import counted as counted
from sinkscope.sinks.rule import exceeds as exceeds
from sinkscope.sinks.tokens import Rows as Rows
from sinkscope.sinks.tokens import Tokens as Tokens
from sinkscope.sinks.words import WORDS as WORDS
from sinkscope.sinks.words import parse as parse
