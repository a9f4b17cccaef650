"""A logit on the first key: a sink that is a token, in rows, documents and windows of both directions."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.functional import DenseVisibility
from sinkscope.errors import InputError, UnsupportedModelError

from .problems import HEADS, assert_close, assert_paths_agree, documents, problem

FIRST = zoo.CATALOG["first_key_logit"]
PATHS = ["reference", "fast", "chunked"]
WINDOW = zoo.Full() & zoo.Window(5)  # what a patch of a vision encoder sees: four on either side


def expected(case, allowed: torch.Tensor, first: torch.Tensor, sink: torch.Tensor | None = None) -> torch.Tensor:
    """Dense float64 attention: a bias on first keys, or a further column without a value."""
    scores = (case.query @ case.key.repeat_interleave(2, 1).mT).double() / case.query.shape[-1] ** 0.5
    if sink is None:
        scores = scores + case.parameters["first_key.logit"].double()[:, None, None] * first[:, None, None]
    scores = scores.masked_fill(~allowed, -torch.inf)
    if sink is None:
        weights = torch.softmax(scores, -1)
    else:
        column = sink.double()[:, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    return (weights @ case.value.repeat_interleave(2, 1).double()).float()


def at(tokens: int, *places: int) -> torch.Tensor:
    return torch.isin(torch.arange(tokens), torch.tensor(places))[None]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tokens", [1, 9, 300])
def test_a_causal_row(path, tokens):
    case = problem(FIRST, tokens=tokens)
    wanted = expected(case, torch.ones(tokens, tokens, dtype=torch.bool).tril(), at(tokens, 0))
    assert_close(case.attend(path=path).output, wanted)


@pytest.mark.parametrize("path", PATHS)
def test_patches_that_do_not_see_the_first_have_no_sink(path):
    """Windows in both directions: the bias is there for the first four queries' neighbors alone."""
    case = problem(FIRST, tokens=11)
    distance = (torch.arange(11)[:, None] - torch.arange(11)).abs()
    found = case.attend(mask=WINDOW, path=path).output
    assert_close(found, expected(case, distance < 5, at(11, 0)))
    without = zoo.attend(case.query, case.key, case.value, "softmax", mask=WINDOW).output
    assert_close(found[:, :, 5:], without[:, :, 5:])
    assert (found - without)[:, :, :5].abs().amax((1, 3)).min() > 1e-3


@pytest.mark.parametrize("path", PATHS)
def test_the_other_sink_of_patches_is_a_column(path):
    """The same parameters as a sink logit: every query has the sink, and its mass is lost."""
    case = problem(zoo.CATALOG["sink_logit"], tokens=11)
    distance = (torch.arange(11)[:, None] - torch.arange(11)).abs()
    sink = case.parameters["slot_modules.0.logit"]
    found = case.attend(mask=WINDOW, path=path).output
    assert_close(found, expected(case, distance < 5, at(11, 0), sink))


@pytest.mark.parametrize("path", PATHS)
def test_each_document_has_a_first_key(path):
    case, numbers = problem(FIRST, tokens=9), documents(9)
    bound = zoo.Visibility.of(zoo.Causal() & zoo.Document(), 9, 9, documents=numbers)
    first = torch.cat([at(9, 0, 2, 5), at(9, 0, 1, 6)])
    wanted = expected(case, bound.dense(), first)
    assert_close(case.attend(mask=bound, path=path).output, wanted)


@pytest.mark.parametrize("name", ["first_key_logit", "forgetting_gate", "stable_mask"])
@pytest.mark.parametrize(
    ("mask", "apart"),
    [
        ((zoo.Causal() & zoo.Document()) | zoo.VisiblePrefix(2), False),
        ((zoo.Causal() & zoo.Document()) | (zoo.Window(2) & zoo.Document() & zoo.Causal()), True),
    ],
    ids=["prefix", "both parts"],
)
def test_documents_are_apart_where_no_query_sees_another_one(name, mask, apart):
    """A prefix that every document sees makes one row of them; then numbers of documents only hide keys."""
    case, numbers = problem(zoo.CATALOG[name], tokens=9), documents(9)
    by_document = zoo.Visibility.of(mask, 9, 9, documents=numbers)
    rule = zoo.Visibility.of(zoo.Causal() & zoo.Document() if apart else zoo.Causal(), 9, 9, documents=numbers)
    written = DenseVisibility(zoo.Full(), rule.query, rule.key, by_document.dense(), rule)
    assert_close(case.attend(mask=by_document).output, case.attend(mask=written).output)


def test_the_first_real_token_of_a_padded_row():
    case = problem(FIRST, tokens=6)
    real = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    bound = zoo.Visibility.of(zoo.Causal(), 6, 6, attention_mask=real)
    for path in PATHS:
        found = case.attend(mask=bound, path=path).output
        assert_close(found[:1, :, 2:], case.part(slice(2, None), slice(0, 1)).attend().output)
        assert_close(found[1:, :, :5], case.part(slice(0, 5), slice(1, 2)).attend().output)


def test_a_large_logit_gives_everything_to_the_first_value():
    """It moves mass, and does not take it away: at b = 1e4 the output is the first value, in fp32."""
    case = problem(FIRST, tokens=7)
    case.parameters["first_key.logit"].data.fill_(1e4)
    for path in PATHS:
        wanted = case.value[:, :, :1].repeat_interleave(2, 1).expand(-1, -1, 7, -1)
        assert_close(case.attend(path=path).output, wanted)


@pytest.mark.parametrize(
    "further",
    [
        {"slots": (zoo.KeySlot(value="learned", initial_logit=0.5), zoo.ZeroSlot())},
        {"normalizer": zoo.Sigmoid()},
        {"normalizer": zoo.Softpick()},
        {"decay": zoo.ForgettingGate()},
        {"temperature": zoo.LogLength()},
    ],
    ids=lambda further: "+".join(further),
)
def test_it_composes(further):
    spec = zoo.AttentionSpec(first_key=zoo.FirstKeyLogit(), **further)
    for tokens in (11, 130):
        assert_paths_agree(problem(spec, tokens=tokens), ["fast", "chunked"])


def test_a_temperature_does_not_scale_it():
    """It is added after scaling, as other logits are."""
    spec = zoo.AttentionSpec(first_key=zoo.FirstKeyLogit(), temperature=zoo.LogLength())
    case = problem(spec, tokens=5)
    case.parameters["temperature.scale"].data.fill_(0.0)
    first = case.attend(path="reference").weights[0, :, -1, 0]
    gain = case.parameters["first_key.logit"].exp()
    assert_close(first, gain / (gain + 4))


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ({"normalizer": zoo.Linear(divisor="abs_sum")}, "linear weights have none"),
        ({"difference": zoo.Difference()}, "a first key has one logit"),
        ({"similarity": zoo.Kernel(feature="elu"), "normalizer": zoo.Linear()}, "linear weights have none"),
    ],
)
def test_what_has_no_logits_is_refused(pieces, words):
    with pytest.raises(InputError, match=words):
        zoo.AttentionSpec(first_key=zoo.FirstKeyLogit(), **pieces)


def test_no_host_says_where_rows_begin():
    from transformers import LlamaConfig, LlamaForCausalLM

    from sinkscope.model import attach

    sizes = {"hidden_size": 32, "num_attention_heads": HEADS, "num_hidden_layers": 1, "intermediate_size": 32}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=31, **sizes))
    with pytest.raises(UnsupportedModelError, match="where rows begin"):
        attach(model, "first_key_logit")
