"""The paper's questions, a short value each."""

from sinkscope.experiments.question import Question
from sinkscope.experiments.questions import data, grid, loss, optimisation, reading

ROOMS = (reading, optimisation, data, loss, grid)
QUESTIONS: dict[str, Question] = {question.name: question for room in ROOMS for question in room.QUESTIONS}
