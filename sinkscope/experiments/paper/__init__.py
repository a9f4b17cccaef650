"""What Gu et al. 2025 say, statement by statement, and which claims answer it."""

from sinkscope.experiments.paper.said import NOT_RUN, Answer, Part, Said, answer, answers, cites, unanswered
from sinkscope.experiments.paper.statements import STATEMENTS

__all__ = ["NOT_RUN", "STATEMENTS", "Answer", "Part", "Said", "answer", "answers", "cites", "unanswered"]
