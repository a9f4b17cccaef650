"""The paper's questions, a short value each."""

from sinkscope.experiments.question import Question
from sinkscope.experiments.questions import (
    backcopy,
    backcopy_minimal,
    biases,
    blocks,
    data,
    gates,
    grid,
    loss,
    mechanism,
    mixture,
    optimisation,
    reading,
    softmaxes,
    stability,
    trigger,
    tuning,
)

ROOMS = (
    *(reading, optimisation, stability, data, mixture, loss, blocks, grid, biases, softmaxes, gates, mechanism),
    *(backcopy, backcopy_minimal, trigger),
    tuning,
)
QUESTIONS: dict[str, Question] = {question.name: question for room in ROOMS for question in room.QUESTIONS}
