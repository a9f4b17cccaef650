"""The questions as values: complete, valid at every scale, and claims that runs can support and refute."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import QUESTIONS, Question, questions
from sinkscope.experiments.jobs.lab import STARTS
from sinkscope.experiments.observing.readings import readings
from sinkscope.experiments.question import SCALES, recipe
from sinkscope.experiments.questions import TOPICS, biases, blocks, grid, softmaxes
from sinkscope.experiments.questions.variations import relative
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import load_recipe
from tests.experiments.planted_runs import outcome, reads, runs_where
from tests.planted.factory import planted_ids, planted_model
from tests.planted.plant import Plant

ASKED = (
    *(
        "C1",
        "C7",
        "C8",
        "C10",
        "C11",
        "P5",
        "O1",
        "O2",
        "O3",
        "D1",
        "D2",
        "D3",
        "D4",
        "L1",
        "L2",
        "L3",
        "K2",
        "K3",
        "K4",
    ),
    *(f"A{number}" for number in (*range(1, 22), 24, 25)),
    *(f"X{number}" for number in (1, 2, 3, 17, 18, 20, 21, 22, 23, 26)),
)
OPERATIONS = (*biases.QUESTIONS, *blocks.QUESTIONS, *grid.QUESTIONS, *softmaxes.QUESTIONS)
NOT_COMPARED = {"failing", "sigmoid-settings"}  # about convergence; about one operation
OF_RECIPES = [question for question in QUESTIONS.values() if question.base in (recipe, relative)]
CLAIMS = [
    pytest.param(question, assertion, id=f"{question.name}: {assertion.claim.name}")
    for question in QUESTIONS.values()
    for assertion in question.assertions
]


@pytest.fixture(scope="module")
def known_metrics() -> set[str]:
    """Names of everything that is observed of runs of recipes."""
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    lab = LabForCausalLM(LabConfig(**sizes, position="learned", attention="k_bias")).eval()
    with_sink_heads = planted_model(Plant(heads=((1, 0), (2, 3))))
    ids = planted_ids(samples=4, tokens=128)
    measured = {name for model in (lab, with_sink_heads) for name, _ in readings(model, ids)}
    of_texts = {f"{metric}/{text}" for metric in ("sink_0", "loss") for text in ("with_bos", "plain_text", "as_chat")}
    return measured | of_texts | {"loss", "train_loss", "gap", *STARTS}


def without_domains(metrics: Iterable[str]) -> set[str]:
    """Domains are named after what a corpus holds."""
    return {metric for metric in metrics if not metric.startswith("sink_0/domain=")}


@pytest.fixture(params=QUESTIONS.values(), ids=QUESTIONS)
def question(request: pytest.FixtureRequest) -> Question:
    return request.param


@pytest.mark.parametrize("row", ASKED)
def test_every_row_of_the_catalogue_that_training_can_answer_is_asked(row):
    assert any(row in question.rows for question in QUESTIONS.values())


def test_names_are_unique():
    assert sum(len(import_module(f"{questions.__name__}.{topic}").QUESTIONS) for topic in TOPICS) == len(QUESTIONS)


def test_claims_of_a_question_have_names_of_their_own(question):
    names = [assertion.claim.name for assertion in question.assertions]
    assert len(names) == len(set(names))


def test_its_names_can_stand_in_a_command(question):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", question.name)


@pytest.mark.parametrize("scale", SCALES)
def test_recipes_are_valid_at_every_scale_at_which_it_can_be_asked(question, scale):
    if scale in question.not_at:
        with pytest.raises(InputError, match="is not run at scale"):
            question.recipes(scale, 1)
        return
    made = question.recipes(scale, 1)
    assert len({job.model_dump_json() for job in made.values()}) == len(question.variations)


def test_published_numbers_are_numbers_that_are_observed(question, known_metrics):
    for variation in question.variations:
        for metric, value in variation.published.items():
            assert math.isfinite(value)
            assert question not in OF_RECIPES or metric in known_metrics


@pytest.mark.parametrize("asked", OF_RECIPES, ids=lambda asked: asked.name)
def test_claims_read_what_is_observed(asked, known_metrics):
    read = {name for one in asked.assertions for names in reads(one, asked)[0].values() for name in names}
    assert without_domains(read) <= known_metrics


@pytest.mark.parametrize(("asked", "assertion"), CLAIMS)
def test_runs_can_support_a_claim_and_refute_it(asked, assertion):
    for wanted in ("supported", "refuted"):
        runs = runs_where(asked, (assertion,), wanted)
        assert runs is not None
        assert outcome(assertion, runs) == wanted


def test_all_claims_can_hold_together_and_all_can_fail(question):
    for wanted in ("supported", "refuted"):
        assert any(runs_where(question, question.assertions, wanted, seed) is not None for seed in range(3))


@pytest.mark.parametrize("asked", OPERATIONS, ids=lambda asked: asked.name)
def test_operations_are_compared_at_equal_loss_too(asked):
    """Whatever a claim compares the sink rate of at equal steps stands in one at equal loss as well."""
    at_steps, at_loss = set(), set()
    for assertion in asked.assertions:
        metrics, curves = reads(assertion, asked)
        compared = {label for label, names in metrics.items() if "sink_0" in names}
        at_steps |= compared if len(compared) > 1 else set()
        at_loss |= set(curves)
    if asked.name not in NOT_COMPARED:
        assert at_steps <= at_loss
        assert at_loss


def test_multiples_are_of_the_scale_s_own_recipe():
    asked = QUESTIONS["batch-size"]
    for scale, name in (("nano", "nano"), ("mini", "mini"), ("paper", "60m")):
        own, made = load_recipe(name), asked.recipes(scale, 1)
        assert made["a quarter", 0].batch_size * 4 == own.batch_size
        assert made["a quarter", 0].steps == own.steps * 4
        assert made["twice", 0].steps * 2 == own.steps
    rates = QUESTIONS["learning-rates"].recipes("paper", 1)
    assert [rates[label, 0].optimizer.lr for label in ("lr / 4", "lr", "lr x 2")] == [1e-4, 4e-4, 8e-4]


def test_questions_share_their_baseline():
    """One softmax run per seed serves them all: nothing that says the same is spelled as another recipe."""
    plain = load_recipe("nano", ["seed=0"]).decisive()
    assert (
        sum(
            any(job.decisive() == plain for job in asked.recipes("nano", 1).values())
            for asked in OF_RECIPES
            if "nano" not in asked.not_at
        )
        > len(OF_RECIPES) / 2
    )


def test_the_page_of_the_paper_s_tables_names_the_experiments_that_there_are():
    page = (Path(__file__).parents[3] / "docs" / "reproduce_a_table_of_the_paper.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9-]+)`", "".join(re.findall(r"^\|.*$", page, re.MULTILINE))))
    assert named == set(QUESTIONS)
