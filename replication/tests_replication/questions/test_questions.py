"""The questions as values: complete, valid at every scale, and claims that runs can support and refute."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from sinkscope_replication.questions.variations import relative, training

from sinkscope.errors import InputError
from sinkscope.experiments import SCALES, Question
from sinkscope.experiments.jobs.lab import STARTS
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import load_recipe
from sinkscope_replication import questions
from sinkscope_replication.observing.readings import readings
from sinkscope_replication.observing.streamed import streamed
from sinkscope_replication.questions import QUESTIONS, TOPICS, biases, blocks, grid, row_sums, softmaxes
from tests.planted.factory import planted_ids, planted_model
from tests.planted.plant import Plant
from tests_replication.planted_runs import outcome, reads, runs_where

ASKED = {  # by source: the questions that ask about it
    "Gu et al. 2025, Figure 3": "metric",
    "Gu et al. 2025, Figure 4": "emergence rotary-without-bos",
    "Gu et al. 2025, sections 3 and 7, Figure 2": "sink-head",
    "our question": "micro-pilot",
    "Gu et al. 2025, Table 1": "inputs",
    "Gu et al. 2025, base and chat models": "tuning",
    "Gu et al. 2025, Table 2": "weight-decay weight-decays",
    "Gu et al. 2025, Table 3": "positions",
    "Gu et al. 2025, Table 4": "sink-token biases biases-without-bos off-by-one-without-bos",
    "Gu et al. 2025, Tables 4 and 12": "key-value-biases",
    "Gu et al. 2025, Table 5": "fixed-values",
    "Gu et al. 2025, Table 6": "normalisation sigmoid-settings sigmoid-at-equal-loss",
    "Gu et al. 2025, Tables 6 and 15": "unnormalised normalised-kernel failing",
    "Gu et al. 2025, Table 7": "moved-positions",
    "Gu et al. 2025, Table 9": "learning-rate learning-rates equal-product",
    "Gu et al. 2025, Table 10": "batch-size fixed-token fixed-positions",
    "Gu et al. 2025, Table 11": "feed-forward",
    "Gu et al. 2025, Table 12": "heads",
    "Gu et al. 2025, Table 13": "low-rank-key",
    "Gu et al. 2025, Table 14": "scaled",
    "Gu et al. 2025, appendix": "domains",
    "Gu et al. 2025, section 5": "data-amount random-tokens random-tokens-longer",
    "Gu et al. 2025, section 6": "prefix prefix-longer window windows",
    "Gu et al. 2025, section 7": "no-op post-norm powers",
    "slides of Gu et al. 2025": "packing packing-without-bos document-bos",
    "Barbero et al. 2025": "over-mixing collapse context",
    "Bondarenko et al. 2023": "clipped gated",
    "Dehghani et al. 2023; Wortsman et al. 2023a": "logit-growth",
    "Guo et al. 2024a": (
        "backcopy backcopy-dynamics backcopy-depth backcopy-norms backcopy-feed-forward backcopy-optimiser "
        "backcopy-relu backcopy-minimal"
    ),
    "He et al. 2024": "outlier-protected",
    "Kaul et al. 2024": "optimisers off-by-one-and-orthoadam",
    "Dial 2025": "gated-truncated",
    "Zhai 2026": "exclusive",
    "Miller 2023": "off-by-one off-by-one-without-bos",
    "Qiu et al. 2025": "gated-by-channel",
    "Ran-Milo 2026": "trigger-conditional",
    "Yin et al. 2024": "stable-mask",
    "Zhai et al. 2023": "entropy-collapse sigma-reparam",
    "Zuhri et al. 2025": "softpick",
}
OPERATIONS = (*biases.QUESTIONS, *blocks.QUESTIONS, *grid.QUESTIONS, *row_sums.QUESTIONS, *softmaxes.QUESTIONS)
# Where these claims fail, others of the question are refused.
PRESUPPOSED = {
    "document-bos": ("a BOS of documents, by mass", "a BOS of documents"),
    "moved-positions": tuple(
        f"{start}on one repeated token{end}" for start in ("", "with a BOS: ") for end in (", by mass", "")
    ),
    "sigmoid-at-equal-loss": ("sigmoid, bias, twice: as good", "sigmoid, bias, twice, lr x 2.5: as good"),
}
NOT_COMPARED = {  # about convergence; about one operation; about slots where nothing else is a sink
    "failing",
    "sigmoid-settings",
    "powers",
    *("biases-without-bos", "key-value-biases", "fixed-values", "low-rank-key", "off-by-one-without-bos"),
}
WRITTEN = ("resting/on_sink", "resting/controls")  # of heads that are on and off their sink
OF_HEADS = ("top_head/alpha", "top_head/cosine_gap", "top_head/key_ratio", "top_head/value_ratio")
OF_MODELS = [question for name, question in QUESTIONS.items() if not name.startswith(("backcopy", "trigger"))]
OF_RECIPES = [question for question in QUESTIONS.values() if question.base in (training, relative)]


@pytest.fixture(scope="module")
def known_metrics() -> set[str]:
    """Names of everything that is observed of runs of recipes."""
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    lab = LabForCausalLM(LabConfig(**sizes, position="learned", attention="k_bias")).eval()
    with_sink_heads = planted_model(Plant(heads=((1, 0), (2, 3))))
    ids = planted_ids(samples=4, tokens=128)
    measured = {name for model in (lab, with_sink_heads) for name, _ in readings(model, ids)}
    kinds, texts = ("sink_0", "sink_mass", "loss"), ("with_bos", "plain_text", "as_chat")
    of_texts = {f"{metric}/{text}" for metric in kinds for text in texts}
    in_streams = {name for name, _ in streamed(with_sink_heads, ids[:1, :8], 5)}
    return measured | of_texts | in_streams | {"loss", "train_loss", "gap", *STARTS, *WRITTEN, *OF_HEADS}


def without_domains(metrics: Iterable[str]) -> set[str]:
    """Domains are named after what a corpus holds."""
    return {metric for metric in metrics if "/domain=" not in metric}


@pytest.fixture(params=QUESTIONS.values(), ids=QUESTIONS)
def question(request: pytest.FixtureRequest) -> Question:
    return request.param


def test_every_source_that_training_can_answer_is_asked_about():
    for source, names in ASKED.items():
        for name in names.split():
            assert source in QUESTIONS[name].source, name


def test_names_are_unique():
    assert sum(len(import_module(f"{questions.__name__}.{topic}").QUESTIONS) for topic in TOPICS) == len(QUESTIONS)
    for question in QUESTIONS.values():
        names = [assertion.claim.name for assertion in question.assertions]
        assert len(names) == len(set(names)), question.name


def test_names_can_stand_in_a_command():
    assert [name for name in QUESTIONS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)] == []


@pytest.mark.slow_except("metric", "window", "clipped", "prefix-longer")
def test_recipes_are_valid_at_every_scale_at_which_it_can_be_asked(question):
    for scale in SCALES:
        if scale in question.not_at:
            with pytest.raises(InputError, match="is not run at scale"):
                question.recipes(scale, 1)
            continue
        made = question.recipes(scale, 1)
        assert len({job.model_dump_json() for job in made.values()}) == len(question.variations)


@pytest.mark.slow_except("metric", "window", "clipped", "prefix-longer")
def test_jobs_that_are_made_together_are_those_that_are_made_one_by_one(question):
    """Not only equal: their names, with the hash of all that decides their numbers, and what a worker is sent."""
    for scale in SCALES:
        for (label, seed), made in question.recipes(scale, 2).items() if scale not in question.not_at else ():
            alone = question.job(label, seed, scale)
            assert type(made) is type(alone)
            assert made == alone
            assert made.model_dump_json() == alone.model_dump_json()
            assert made.folder({"text": "digest"}) == alone.folder({"text": "digest"})
            assert made.reads == alone.reads


def test_a_base_may_let_a_seed_change_what_it_likes():
    def drawn(scale, changes):
        return training(scale, {**changes, "data.split_seed": 7 + changes["seed"]})

    asked = replace(QUESTIONS["fixed-token"], base=drawn)
    jobs = asked.recipes("nano", 3)
    assert {seed: job.data.split_seed for (_, seed), job in jobs.items()} == {0: 7, 1: 8, 2: 9}
    assert {seed: job.seed for (_, seed), job in jobs.items()} == {0: 0, 1: 1, 2: 2}


@pytest.mark.slow
def test_published_numbers_are_numbers_that_are_observed(known_metrics):
    for question in QUESTIONS.values():
        for variation in question.variations:
            for metric, value in variation.published.items():
                assert math.isfinite(value)
                assert question not in OF_RECIPES or metric in known_metrics


@pytest.mark.slow
def test_claims_read_what_is_observed(known_metrics):
    for asked in OF_RECIPES:
        read = {name for one in asked.assertions for names in reads(one, asked)[0].values() for name in names}
        assert without_domains(read) <= known_metrics, asked.name


@pytest.mark.slow_except("metric", "windows", "gated", "tuning")
def test_runs_can_support_a_claim_and_refute_it(question):
    for assertion in question.assertions:
        for wanted in ("supported", "refuted"):
            runs = runs_where(question, (assertion,), wanted)
            assert runs is not None, assertion.claim.name
            assert outcome(assertion, runs) == wanted, assertion.claim.name


@pytest.mark.slow_except("metric", "trigger-conditional")
def test_all_claims_can_hold_together_and_all_can_fail(question):
    """But for those that others presuppose, which are refused where these fail."""
    presupposed = PRESUPPOSED.get(question.name, ())
    failing = tuple(one for one in question.assertions if one.claim.name not in presupposed)
    assert len(failing) == len(question.assertions) - len(presupposed)
    for wanted, claims in (("supported", question.assertions), ("refuted", failing)):
        assert any(runs_where(question, claims, wanted, seed) is not None for seed in range(3))


def test_operations_are_compared_at_equal_loss_too():
    """Whatever a claim compares the sink rate of at equal steps stands in one at equal loss as well."""
    for asked in OPERATIONS:
        at_steps, at_loss = set(), set()
        for assertion in asked.assertions:
            metrics, curves = reads(assertion, asked)
            compared = {label for label, names in metrics.items() if "sink_0" in names}
            at_steps |= compared if len(compared) > 1 else set()
            at_loss |= set(curves)
        if asked.name not in NOT_COMPARED:
            assert at_steps <= at_loss, asked.name
            assert at_loss, asked.name


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
    page = (Path(__file__).parents[2] / "docs" / "reproduce_a_table_of_the_paper.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9-]+)`", "".join(re.findall(r"^\|.*$", page, re.MULTILINE))))
    assert named == set(QUESTIONS)


def test_what_is_withdrawn_says_why_and_is_judged_no_more():
    gone = {(asked.name, each.name): each for asked in QUESTIONS.values() for each in asked.withdrawn}
    assert {name for name, _ in gone} >= {"inputs", "emergence", "fixed-token", "learning-rate", "no-op", "collapse"}
    for (name, claim), each in gone.items():
        assert len(each.reason) > 40
        assert each.statement
        assert claim not in {one.claim.name for one in QUESTIONS[name].assertions}
        assert each.statement not in {one.claim.statement for one in QUESTIONS[name].assertions}


def as_mass(name: str) -> str:
    """The mass of which a metric, or a curve, is the rate."""
    name = re.sub(r"/epsilon=[0-9.]+$", "", name)
    name = re.sub(r"^sink_0(?=/|$)", "sink_mass", name)
    named = {"slot": "slot_mass", "strongest": "sink_mass/strongest", "sink/position_0": "sink/mass"}
    return re.sub(r"^sink_(?=\d)", "sink_mass_", named.get(name, name))


def asked_of(assertion, asked: Question) -> set[tuple[str, str]]:
    """Labels and names of what decides a claim."""
    return {(label, name) for each in reads(assertion, asked) for label, names in each.items() for name in names}


def test_the_mass_decides_wherever_a_rate_is_asked():
    """The first claim reads no rate, and beside each claim by a rate stands one that reads the masses in its place.

    But for where a sink stands, and for norms at equal loss, of which the control's rate says whether they count.
    """
    for asked in OF_MODELS:
        each = [asked_of(assertion, asked) for assertion in asked.assertions]
        for position, read in enumerate(each):
            names = {name for _, name in read}
            # Rates that are read beside masses say whether there is a sink at all.
            by_mass = any("mass" in name for name in names)
            if by_mass or all(as_mass(name) == name for name in names) or "sink/hidden_norm_ratio" in names:
                continue
            if any(name.startswith("strongest_position") for name in names):
                continue
            assert position > 0, asked.name
            wanted = {(label, as_mass(name)) for label, name in read}
            masses = [{(label, as_mass(name)) for label, name in other} for other in each if other != read]
            assert any(wanted <= other for other in masses), (asked.name, asked.assertions[position].claim.name)


def test_masses_are_judged_on_seeds_that_nobody_had_seen():
    for asked in OF_MODELS:
        for assertion in asked.assertions:
            metrics, curves = reads(assertion, asked)
            names = {name for each in (*metrics.values(), *curves.values()) for name in each}
            of_mass = any(re.match(r"(sink|slot|self)_mass|sink/mass|top_head|key_angle", name) for name in names)
            assert assertion.from_seed == (3 if of_mass else 0), (asked.name, assertion.claim.name)


def test_margins_at_equal_loss_are_those_at_equal_steps():
    for asked in QUESTIONS.values():
        margins = {one.claim.name: one.claim.rule.asked for one in asked.assertions}
        for name, margin in margins.items():
            if (twin := name.removesuffix(" at equal loss")) != name and twin in margins:
                assert margins[twin] == margin, (asked.name, name)
