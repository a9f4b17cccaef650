"""What Gu et al. 2025 say, statement by statement, and which claims bear on it."""

from sinkscope_replication.paper.said import NOT_RUN, Part, Said, cites, parts, unanswered
from sinkscope_replication.paper.statements import STATEMENTS

__all__ = ["NOT_RUN", "STATEMENTS", "Part", "Said", "cites", "parts", "unanswered"]
