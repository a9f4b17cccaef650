"""The questions as values: complete, valid at every scale, each in a file that its hash covers."""

from __future__ import annotations

import ast
import hashlib
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import (
    SCALES,
    Findings,
    FromRecipe,
    Observed,
    Question,
    standing_of,
    verdicts,
    with_rows,
)
from sinkscope.experiments.jobs import STARTS
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.report.experiments import entry
from sinkscope.training import load_recipe
from sinkscope_replication.observing.readings import readings
from sinkscope_replication.observing.streamed import streamed
from sinkscope_replication.questions import NAMES, QUESTIONS
from tests.planted.factory import planted_ids, planted_model
from tests.planted.plant import Plant

ASKED = {  # by source: the questions that ask about it
    "Gu et al. 2025, Figure 3": "metric",
    "Gu et al. 2025, Figure 4": "emergence",
    "Gu et al. 2025, Table 3 and Figure 4": "rotary-without-bos",
    "Gu et al. 2025, sections 3 and 7, Figure 2": "sink-head",
    "our question": "micro-pilot",
    "Gu et al. 2025, Table 1": "inputs",
    "Gu et al. 2025, Table 1, base and chat models": "tuning",
    "Gu et al. 2025, Table 2": "weight-decay weight-decays",
    "Gu et al. 2025, Table 3": "positions",
    "Gu et al. 2025, Table 4": "sink-token biases biases-without-bos off-by-one-without-bos",
    "Gu et al. 2025, Table 5": "fixed-values",
    "Gu et al. 2025, Table 6": "normalisation sigmoid-settings sigmoid-at-equal-loss",
    "Gu et al. 2025, Tables 6 and 15": "unnormalised normalised-kernel failing",
    "Gu et al. 2025, Table 7": "moved-positions",
    "Gu et al. 2025, Table 9": "learning-rate learning-rates equal-product",
    "Gu et al. 2025, Table 10": "batch-size fixed-token fixed-positions",
    "Gu et al. 2025, Table 11": "feed-forward",
    "Gu et al. 2025, Table 12": "heads key-value-biases",
    "Gu et al. 2025, Table 13": "low-rank-key",
    "Gu et al. 2025, Table 14": "scaled",
    "Gu et al. 2025, appendix": "domains",
    "Gu et al. 2025, section 5": "data-amount random-tokens random-tokens-longer",
    "Gu et al. 2025, section 6": "prefix prefix-longer prefix-after-random window windows",
    "Gu et al. 2025, section 7": "no-op post-norm powers",
    "slides of Gu et al. 2025": "short-documents",
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
    "2603.17771": "remedies",
    "Yin et al. 2024": "stable-mask",
    "Zhai et al. 2023": "entropy-collapse sigma-reparam",
    "Zuhri et al. 2025": "softpick",
}
WRITTEN = ("resting/on_sink", "resting/controls")  # of heads that are on and off their sink
OF_HEADS = ("top_head/alpha", "top_head/cosine_gap", "top_head/key_ratio", "top_head/value_ratio")
OF_RECIPES = [question for question in QUESTIONS.values() if question.base == FromRecipe(job="replication")]


@pytest.fixture(scope="module")
def known_metrics() -> set[str]:
    """Names of everything that is observed of runs of recipes."""
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    lab = LabForCausalLM(LabConfig(**sizes, position="learned", attention="k_bias")).eval()
    with_sink_heads = planted_model(Plant(heads=((1, 0), (2, 3))))
    ids = planted_ids(samples=4, tokens=128)
    measured = {name for model in (lab, with_sink_heads) for name, _ in readings(model, ids)}
    texts = ("with_bos", "plain_text", "as_chat", "training", "document", "document_after_bos")
    kinds = ("sink_0", "sink_mass", "loss")
    of_texts = {f"{metric}/{text}" for metric in kinds for text in texts}
    in_streams = {name for name, _ in streamed(with_sink_heads, ids[:1, :8], 5)}
    return measured | of_texts | in_streams | {"loss", "train_loss", "gap", *STARTS, *WRITTEN, *OF_HEADS}


def metrics_of(assertion, asked: Question) -> list[tuple[str, ...]]:
    """The metrics that a claim reads, seen on runs that have none."""
    runs = {label: {0: Observed(label, "finished", 0)} for label in asked.labels}
    shown = entry(replace(asked, assertions=(assertion,), seeds=1), Findings(asked.name, "nano", 1, runs))
    return list(shown.claims[0].reads.values())


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
    assert len(set(NAMES)) == len(NAMES)
    assert tuple(QUESTIONS) == NAMES
    for question in QUESTIONS.values():
        names = [assertion.claim.name for assertion in question.assertions]
        assert len(names) == len(set(names)), question.name


def test_names_can_stand_in_a_command():
    assert [name for name in QUESTIONS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)] == []


@pytest.mark.slow
def test_recipes_are_valid_at_every_scale_at_which_it_can_be_asked(question):
    for scale in SCALES:
        if scale in question.not_at:
            with pytest.raises(InputError, match="is not run at scale"):
                question.recipes(scale, [0])
            continue
        made = question.recipes(scale, [0])
        assert len({job.model_dump_json() for job in made.values()}) == len(question.variations)


@pytest.mark.slow
def test_jobs_that_are_made_together_are_those_that_are_made_one_by_one(question):
    """Not only equal: their names, with the hash of all that decides their numbers, and what a worker is sent."""
    for scale in SCALES:
        for (label, seed), made in question.recipes(scale, [0, 1]).items() if scale not in question.not_at else ():
            alone = question.job(label, seed, scale)
            assert type(made) is type(alone)
            assert made == alone
            assert made.model_dump_json() == alone.model_dump_json()
            assert made.folder({"text": "digest"}) == alone.folder({"text": "digest"})
            assert made.reads == alone.reads


def test_a_base_may_let_a_seed_change_what_it_likes():
    def drawn(scale, changes):
        return FromRecipe(job="replication")(scale, {**changes, "data.split_seed": 7 + changes["seed"]})

    asked = replace(QUESTIONS["fixed-token"], base=drawn)
    jobs = asked.recipes("nano", range(3))
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
        read = {name for one in asked.assertions for names in metrics_of(one, asked) for name in names}
        assert without_domains(read) <= known_metrics, asked.name


def test_multiples_are_of_the_scale_s_own_recipe():
    asked = QUESTIONS["batch-size"]
    for scale, name in (("nano", "nano"), ("mini", "mini"), ("paper", "60m")):
        own, made = load_recipe(name), asked.recipes(scale, [0])
        assert made["a quarter", 0].batch_size * 4 == own.batch_size
        assert made["a quarter", 0].steps == own.steps * 4
        assert made["twice", 0].steps * 2 == own.steps
    rates = QUESTIONS["learning-rates"].recipes("paper", [0])
    assert [rates[label, 0].optimizer.lr for label in ("lr / 4", "lr", "lr x 2")] == [1e-4, 4e-4, 8e-4]


def test_questions_share_their_baseline():
    """One softmax run per seed serves them all: nothing that says the same is spelled as another recipe."""
    plain = load_recipe("nano", ["seed=0"]).decisive()
    assert (
        sum(
            any(job.decisive() == plain for job in asked.recipes("nano", [0]).values())
            for asked in OF_RECIPES
            if "nano" not in asked.not_at
        )
        > len(OF_RECIPES) / 2
    )


def test_the_page_of_the_paper_s_tables_names_the_experiments_that_there_are():
    page = (Path(__file__).parents[2] / "docs" / "reproduce_a_table_of_the_paper.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9-]+)`", "".join(re.findall(r"^\|.*$", page, re.MULTILINE))))
    assert named == set(QUESTIONS)


def test_a_question_s_file_imports_nothing_that_its_hash_does_not_cover():
    """The standard library, and public names of sinkscope that only build values."""
    files = {question.registration.path for question in QUESTIONS.values() if question.registration is not None}
    assert len(files) == len(NAMES)  # no two in one
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        outside = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
        assert outside == {"sinkscope.experiments"}, file.name


def test_every_question_is_registered_by_the_bytes_of_its_file():
    for question in QUESTIONS.values():
        assert question.registration is not None
        digest = hashlib.sha256(question.registration.path.read_bytes()).hexdigest()
        assert question.registration.sha256 == digest


def test_runs_of_before_make_no_claim_confirmed():
    for name in ("fixed-token", "inputs", "normalisation"):
        question = QUESTIONS[name]
        findings = with_rows(question, "nano", None)
        grades = {verdict.grade for verdict in verdicts(question, findings)}
        assert "seen" in grades
        assert "confirmed" not in grades
        assert "started without this file" in standing_of(question, findings).words


@pytest.mark.parametrize(
    ("muon", "grades"), [(300, ["confirmed", "open"]), (900, ["open", "open"]), (1500, ["open", "confirmed"])]
)
def test_an_optimizer_may_bring_the_sink_earlier_or_later(muon: int, grades: list[str]) -> None:
    """AdamW has it at step 900 of 1,500; at the end all models have one."""
    question = QUESTIONS["faster-learning"]
    steps = (0, 300, 600, 900, 1125, 1500)

    def run(label: str, seed: int) -> Observed:
        first = muon if label == "Muon" else 900
        curve = {"sink/position_0": tuple(4.0 if step >= first else 0.0 for step in steps)}
        mark = {question.name: {"sha256": question.registration.sha256}}
        metrics = {"sink_0": 8.0, "loss": 3.1}
        return Observed(f"{label}-{seed}", "finished", seed, metrics, steps=steps, curves=curve, registered=mark)

    cells = {label: {seed: run(label, seed) for seed in question.seeds_of(label)} for label in question.labels}
    found = verdicts(question, Findings(question.name, "nano", 12, cells))
    assert [verdict.grade for verdict in found[:2]] == grades
