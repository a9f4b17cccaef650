"""Lab models under every position scheme: one function however they run, and the published numbers when measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import sinkscope.attention as zoo
from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, measure
from sinkscope.model import LabConfig, LabForCausalLM, load
from tests.model.position_models import SCHEMES, SIZES, build, in_chunks
from tests.shapes import unchecked

CLOSE: dict[str, float] = {"atol": 3e-5, "rtol": 1e-4}
PACKED = zoo.AttentionSpec(mask=zoo.Causal() & zoo.Document())


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SCHEMES[request.param]


def some(first: int) -> list[Any]:
    """Every third scheme; with each of the others another way to run is looked at, and with all of them most ways."""
    return [pytest.param(name, marks=() if n % 3 == first else pytest.mark.slow) for n, name in enumerate(SCHEMES)]


@pytest.fixture(params=["softmax", "sigmoid"])
def attention(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(1, 53, (2, 13))


@pytest.mark.slow
@torch.no_grad()
def test_cached_decoding_and_chunked_prefill_equal_the_full_forward(scheme, attention, ids):
    model = build(attention=attention, **scheme)
    full = model(ids).logits
    for cuts in ([5, 1, 1, 6], [1, 1, 11]):
        assert_close(in_chunks(model, ids, cuts), full, **CLOSE)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("attention", zoo.CATALOG)
def test_every_operation_takes_biases_and_sink_tokens(attention, ids):
    """But for a feature map, which has no logits to add a bias to."""
    has_logits = not isinstance(zoo.CATALOG[attention].similarity, zoo.Kernel)
    model = build(attention=attention, position="alibi" if has_logits else "learned", sink_tokens=2)
    assert_close(in_chunks(model, ids, [4, 1, 8]), model(ids).logits, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_equal_the_rows_alone(scheme, side, ids):
    model = build(**scheme)
    padded, real = ids.clone(), torch.ones_like(ids)
    kept = slice(4, None) if side == "left" else slice(None, 9)
    padded[0], real[0] = 0, 0
    padded[0, kept], real[0, kept] = ids[0, :9], 1
    logits = model(padded, attention_mask=real).logits
    assert_close(logits[0, kept], model(ids[:1, :9]).logits[0], **CLOSE)
    assert_close(logits[1], model(ids[1:]).logits[0], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", some(0), indirect=True)
@pytest.mark.parametrize("cache", ["dynamic", pytest.param("static", marks=pytest.mark.slow)])
def test_generate_equals_greedy_decoding_by_hand(scheme, cache, ids):
    model, prompt = build(**scheme), ids[:, :6]
    expected = prompt
    with torch.no_grad():
        for _ in range(5):
            expected = torch.cat([expected, model(expected, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), prompt], 1)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
    options |= {"cache_implementation": None if cache == "dynamic" else cache}
    assert torch.equal(model.generate(prompt, attention_mask=torch.ones_like(prompt), **options), expected)
    assert torch.equal(model.generate(padded, attention_mask=(padded > 0).long(), **options)[:, 3:], expected)


@pytest.mark.parametrize("scheme", some(1), indirect=True)
def test_saved_and_loaded(scheme, ids, tmp_path):
    model = build(**scheme)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, LabForCausalLM)
    for name, value in scheme.items():
        assert getattr(loaded.config, name) == value
    assert torch.equal(loaded(ids).logits, model(ids).logits)


@pytest.mark.parametrize("scheme", some(2), indirect=True)
def test_gradient_checkpointing_changes_nothing(scheme, ids):
    model = build(attention="sigmoid", **scheme).train()
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(ids, labels=ids, use_cache=False).loss, parameters)
    newest = hasattr(model, "activation_checkpointing_enable")  # its name since transformers 5.23
    (model.activation_checkpointing_enable if newest else model.gradient_checkpointing_enable)()
    found = torch.autograd.grad(model(ids, labels=ids, use_cache=False).loss, parameters)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


@torch.no_grad()
def test_packed_documents_with_restarted_positions_equal_documents_alone(scheme, ids):
    """In one piece, over a cache, and with padding before them (slides of Gu et al. 2025)."""
    model = build(attention=PACKED, restart_positions=True, **scheme)
    alone = build(**scheme)
    documents = torch.tensor([[3] * 5 + [1] * 8]).expand(2, -1)
    expected = torch.cat([alone(ids[:, :5]).logits, alone(ids[:, 5:]).logits], 1)
    assert_close(model(ids, document_ids=documents).logits, expected, **CLOSE)
    assert_close(in_chunks(model, ids, [3, 1, 4, 5], document_ids=documents), expected, **CLOSE)
    nothing = torch.zeros(2, 2, dtype=torch.long)
    padded = model(
        torch.cat([nothing, ids], 1),
        attention_mask=torch.cat([nothing, torch.ones_like(ids)], 1),
        document_ids=torch.cat([nothing + 3, documents], 1),
    )
    assert_close(padded.logits[:, 2:], expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_without_a_restart_a_second_document_stands_later(position, ids):
    documents = torch.tensor([[0] * 5 + [1] * 8]).expand(2, -1)
    running, restarted = (build(attention=PACKED, position=position, restart_positions=each) for each in (False, True))
    logits = running(ids, document_ids=documents).logits, restarted(ids, document_ids=documents).logits
    assert_close(logits[0][:, :5], logits[1][:, :5], **CLOSE)
    assert (logits[0] - logits[1])[:, 5:].abs().max() > 1e-2
    positions = torch.tensor([[*range(5), *range(8)]])
    given = running(ids, document_ids=documents, position_ids=positions).logits
    assert_close(given, logits[1], **CLOSE)


@torch.no_grad()
def test_every_scheme_but_none_tells_places_apart(scheme):
    """Two tokens that change positions before the last one: without positions, one layer cannot tell."""
    model = build(**scheme, num_hidden_layers=1)
    ids = torch.tensor([[1, 2, 3, 4], [2, 1, 3, 4]])
    first, second = model(ids).logits[:, -1]
    same = torch.allclose(first, second, atol=1e-5)
    assert same == (scheme["position"] == "none")


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "sigmoid", "softmax_off_by_one", "k_bias"])
@pytest.mark.parametrize("position", ["relative_t5", "relative_paper", "alibi"])
def test_query_chunks_equal_the_reference_in_values_and_gradients(attention, position):
    model = build(attention=attention, position=position, max_position_embeddings=400, num_hidden_layers=1).double()
    ids = torch.randint(1, 53, (1, 300))  # more than one chunk of queries
    parameters = [value for name, value in model.named_parameters() if "lm_head" not in name]
    found = {}
    for maps in (False, True):  # attention maps on request are written out by the reference
        logits = model(ids, output_attentions=maps, use_cache=False).logits
        found[maps] = logits, torch.autograd.grad(logits.square().mean(), parameters)
    assert_close(found[False][0], found[True][0])
    for one, other in zip(found[False][1], found[True][1], strict=True):
        assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sigmoid", "k_bias"])
def test_measured_attention_is_that_of_the_maps(scheme, attention, ids):
    model = build(attention=attention, **scheme)
    with torch.no_grad():
        maps = torch.stack(model(ids, output_attentions=True).attentions, 1).double()
    if attention == "sigmoid":
        maps = maps / (maps.sum(-1, keepdim=True) + 1e-8)
    expected = maps.sum(-2) / torch.arange(13, 0, -1)
    for observers in ([AttentionReceived()], [AttentionReceived("first:4")]):
        found = torch.tensor(measure(model, ids, observers).data["attention_received"].values)
        assert_close(found.double(), expected[..., : found.shape[-1]], atol=2e-6, rtol=1e-5)


def repeated(**options: Any) -> Any:
    """alpha (layer, head, position) of a model of eight heads on one token, 64 times."""
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 64}
    found = measure(build(**sizes | options), torch.full((1, 64), 7), [AttentionReceived()])
    return found.data["attention_received"].values[0]


def test_propositions_on_repeated_tokens():
    """Gu et al. 2025, appendix B: what is received is decided by positions alone, whatever the weights."""
    nope = repeated(position="none")[..., [0, 1, 2, 63]]
    assert nope == pytest.approx(nope * 0 + [0.074123, 0.059427, 0.052321, 0.015625], abs=1e-6)
    alibi = repeated(position="alibi")[..., 0]
    assert alibi == pytest.approx(
        alibi * 0 + [0.0283, 0.0360, 0.0447, 0.0540, 0.0620, 0.0675, 0.0707, 0.0724], abs=6e-5
    )
    relative = repeated(position="relative_paper")[..., 0]
    assert relative == pytest.approx(relative * 0 + 0.33396, abs=1e-5)
    learned = repeated(position="learned")
    assert abs(learned[1:, :, 0] - 0.0741).max() > 0.01, "positions in the stream change content"


def test_initial_values():
    """Tables of positions are drawn like embeddings, T5's like T5's."""
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 96, "max_position_embeddings": 500}
    table = LabForCausalLM(LabConfig(**sizes, position="learned")).model.position.table.weight
    assert table.std().item() == pytest.approx((2 / 5 / 96) ** 0.5, rel=0.05)
    table = LabForCausalLM(LabConfig(**sizes, position="relative_t5")).model.position.table
    assert table.std().item() == pytest.approx(96**-0.5, rel=0.2)


def test_tokens_beyond_a_learned_table_are_refused(ids):
    model = build(position="learned", max_position_embeddings=8)
    with pytest.raises(InputError, match="position 12"):
        model(ids)
    with pytest.raises(InputError, match="position 8"):
        model.generate(ids[:, :6], max_new_tokens=5, pad_token_id=0)
    assert build(position="sinusoidal", max_position_embeddings=8)(ids).logits.isfinite().all()


def test_only_whole_rotary_heads_are_a_llama(ids):
    model = build(position="rotary", rope_theta=500.0, rope_scale=SCHEMES["rotary, yarn"]["rope_scale"])
    assert_close(model.to_llama()(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    for options, word in (
        ({"position": "alibi"}, "alibi"),
        ({"position": "none"}, "none"),
        ({"rope_fraction": 0.5}, "0.5"),
        ({"sink_tokens": 1}, "sink tokens"),
        ({"is_causal": False}, "bidirectional"),
    ):
        with pytest.raises(InputError, match=word):
            build(**options).to_llama()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"position": "relativ_t5"}, "did you mean 'relative_t5'"),
        ({"position": "sinusoidal", "hidden_size": 21, "num_attention_heads": 3}, "even hidden_size"),
        ({"hidden_size": 42}, "head width of 7"),
        ({"rope_fraction": 0.3}, "rope_fraction"),
        ({"rope_scale": {"rope_type": "dynamic", "factor": 2.0}}, "cached keys"),
        ({"position": "alibi", "rope_fraction": 0.5}, "belong to rotary positions"),
        ({"position": "alibi", "attention": "kernel_elu"}, "add to logits"),
        ({"position": "none", "rope_scale": {"rope_type": "linear", "factor": 2.0}}, "belong to rotary positions"),
        ({"attention": zoo.AttentionSpec(mask=zoo.Causal() | zoo.VisiblePrefix(33))}, "prefix of 33 tokens"),
    ],
)
def test_bad_configurations(fields, words):
    with pytest.raises(InputError, match=words):
        LabConfig(**SIZES | fields)
    assert LabConfig(**SIZES | {"position": "alibi", "hidden_size": 42}).head_dim == 7


@pytest.mark.release
@unchecked
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("scheme", ["relative_t5", "relative_paper", "rotary, yarn", "alibi"], indirect=True)
def test_a_scheme_is_traced_as_one_graph(scheme: dict[str, Any]) -> None:
    ids = torch.randint(0, 53, (2, 13))
    model = build(sink_tokens=1, **scheme).model
    torch._dynamo.reset()
    traced = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        found, expected = (each(ids, use_cache=False).last_hidden_state for each in (traced, model))
    assert_close(found, expected)
