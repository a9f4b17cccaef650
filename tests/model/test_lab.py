"""The lab model: the same function however it is run, and a Llama where it is one."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

import sinkscope.attention as zoo
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM, load

SIZES = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
VARIANTS: dict[str, str | zoo.AttentionSpec] = {name: name for name in zoo.CATALOG} | {
    "window": zoo.AttentionSpec(mask=zoo.Causal() & zoo.Window(4)),
    "prefix": zoo.AttentionSpec(mask=zoo.Causal() | zoo.Prefix(3)),
}


def build(attention: str | zoo.AttentionSpec, **sizes: int) -> LabForCausalLM:
    """A model whose attention is far from uniform and whose learned slots are far from their start."""
    model = LabForCausalLM(LabConfig(**SIZES | sizes, attention=attention)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter *= 3
            if "operation" in name:
                parameter.normal_()
    return model


@pytest.fixture(params=list(VARIANTS))
def model(request: pytest.FixtureRequest) -> LabForCausalLM:
    return build(VARIANTS[request.param])


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(1, 53, (2, 13))


@torch.no_grad()
def test_cached_decoding_and_chunked_prefill_equal_the_full_forward(model, ids):
    full = model(ids).logits
    for cuts in ([5, 1, 1, 1, 5], [1] * 13, [12, 1]):
        cache, logits, start = None, [], 0
        for size in cuts:
            step = model(ids[:, start : start + size], past_key_values=cache, use_cache=True)
            cache, start = step.past_key_values, start + size
            logits.append(step.logits)
        if model.config.spec.mask == VARIANTS["prefix"].mask and cuts[0] < 3:
            continue  # a prefix is seen by its own tokens only when it arrives in one piece
        torch.testing.assert_close(torch.cat(logits, 1), full, atol=2e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_equal_the_rows_alone(model, ids, side):
    alone = [model(ids[:1, :9]).logits[0], model(ids[1:]).logits[0]]
    padded, real = ids.clone(), torch.ones_like(ids)
    kept = slice(4, None) if side == "left" else slice(None, 9)
    padded[0], real[0] = 0, 0
    padded[0, kept], real[0, kept] = ids[0, :9], 1
    logits = model(padded, attention_mask=real).logits
    torch.testing.assert_close(logits[0, kept], alone[0], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(logits[1], alone[1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_equals_greedy_decoding_by_hand(model, ids, cache):
    expected = ids[:, :6]
    with torch.no_grad():
        for _ in range(6):
            expected = torch.cat([expected, model(expected, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    found = model.generate(
        ids[:, :6],
        attention_mask=torch.ones(2, 6, dtype=torch.long),
        max_new_tokens=6,
        do_sample=False,
        pad_token_id=0,
        cache_implementation=None if cache == "dynamic" else cache,
        disable_compile=True,
    )
    assert torch.equal(found, expected)


def test_left_padded_generation_equals_the_row_alone(model, ids):
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids[:1, :6]], 1)
    real = (padded > 0).long()
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    found = model.generate(padded, attention_mask=real, **options)[:, 3:]
    assert torch.equal(found, model.generate(ids[:1, :6], attention_mask=real[:, 3:], **options))


def test_saved_and_loaded(model, ids, tmp_path):
    model.save_pretrained(tmp_path)
    for loaded in (AutoModelForCausalLM.from_pretrained(tmp_path), load(tmp_path)):
        assert isinstance(loaded, LabForCausalLM)
        assert loaded.config.spec == model.config.spec
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert AutoConfig.from_pretrained(tmp_path).attention == model.config.attention


def test_embeddings_in_place_of_ids(model, ids):
    embedded = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, model(ids).logits)
    with pytest.raises(InputError, match="exactly one"):
        model(ids, inputs_embeds=embedded)


def test_gradient_checkpointing_changes_nothing(model, ids):
    model.train()
    expected = torch.autograd.grad(model(ids, labels=ids, use_cache=False).loss, list(model.parameters()))
    newest = hasattr(model, "activation_checkpointing_enable")  # its name since transformers 5.23
    (model.activation_checkpointing_enable if newest else model.gradient_checkpointing_enable)()
    found = torch.autograd.grad(model(ids, labels=ids, use_cache=False).loss, list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_attentions_and_hidden_states_on_request(model, ids):
    out = model(ids, output_attentions=True, output_hidden_states=True)
    assert [tuple(a.shape) for a in out.attentions] == [(2, 4, 13, 13)] * 2
    assert len(out.hidden_states) == 3
    torch.testing.assert_close(out.logits, model(ids).logits, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_packed_documents_equal_documents_alone(ids):
    model = build(zoo.AttentionSpec(mask=zoo.Causal() & zoo.Document()))
    documents = torch.tensor([[0] * 5 + [1] * 8] * 2)
    positions = torch.tensor([[*range(5), *range(8)]])
    packed = model(ids, document_ids=documents, position_ids=positions).logits
    alone = build(zoo.AttentionSpec())
    alone.load_state_dict(model.state_dict())
    expected = torch.cat([alone(ids[:, :5]).logits, alone(ids[:, 5:]).logits], 1)
    torch.testing.assert_close(packed, expected, atol=2e-5, rtol=1e-4)
    shifted = model(ids, document_ids=documents).logits  # rotary positions are relative: a restart changes nothing
    torch.testing.assert_close(shifted, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_softmax_is_a_llama(ids, tied):
    model = build("softmax", tie_word_embeddings=tied, rope_theta=500.0)
    llama = model.to_llama()
    assert isinstance(llama, LlamaForCausalLM)
    torch.testing.assert_close(llama(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(llama(ids, labels=ids).loss, model(ids, labels=ids).loss)
    assert sum(p.numel() for p in llama.parameters()) == sum(p.numel() for p in model.parameters())


def test_other_operations_are_no_llama():
    with pytest.raises(InputError, match="'sigmoid'"):
        build("sigmoid").to_llama()
    with pytest.raises(InputError, match="'custom'"):
        build(VARIANTS["window"]).to_llama()


def test_other_attention_implementations_are_refused():
    """Otherwise transformers would run softmax on a sigmoid model."""
    for name in ("sdpa", "flash_attention_2", "flex_attention"):
        with pytest.raises((ValueError, ImportError)):
            LabForCausalLM._from_config(LabConfig(**SIZES, attention="sigmoid"), attn_implementation=name)


def test_initialisation_is_the_papers():
    """Linear maps and embeddings sqrt(2 / (5 fan_in)), a SwiGLU's output 1 / (L sqrt(width)) (catalogue section 8)."""
    torch.manual_seed(0)
    config = LabConfig(vocab_size=500, hidden_size=128, num_hidden_layers=3, intermediate_size=256, attention="k_bias")
    for name, parameter in LabForCausalLM(config).named_parameters():
        if "norm" in name:
            assert (parameter == 1).all()
            continue
        expected = 256**-0.5 / 3 if "down_proj" in name else (2 / (5 * parameter.shape[1])) ** 0.5
        if "operation" in name:
            expected = 0.02
        assert parameter.std().item() == pytest.approx(expected, rel=0.2), name


def test_published_parameter_counts():
    """tinyllama_60M: 58,998,528 without embeddings, 136,462,080 in all (catalogue section 8)."""
    config = LabConfig(
        vocab_size=50432, hidden_size=768, num_hidden_layers=10, num_attention_heads=8, intermediate_size=1536
    )
    with torch.device("meta"):
        model = LabForCausalLM(config)
    assert sum(p.numel() for p in model.parameters()) == 136_462_080
    assert sum(p.numel() for n, p in model.named_parameters() if "embed" not in n and "lm_head" not in n) == 58_998_528


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hiden_size": 3}, "did you mean 'hidden_size'"),
        ({"attention": "sofmax"}, "did you mean 'softmax'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"hidden_size": 25}, "hidden_size = 25"),
        ({"position": "rotry"}, "did you mean 'rotary'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    ],
)
def test_bad_configurations(fields, words):
    with pytest.raises(InputError, match=words):
        LabConfig(**SIZES | fields)


def test_a_written_mask_is_refused(ids):
    with pytest.raises(InputError, match="attention_mask"):
        build("softmax")(ids, attention_mask=torch.ones(2, 1, 13, 13))
