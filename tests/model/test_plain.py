"""Models written for transformers alone: equal logits, loaded without sinkscope, and refusals by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GraniteSWAForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import sinkscope as ss
from sinkscope.attention import CATALOG, Window
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import ZeroHeads
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.model.plain import as_plain, zero_heads

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def host(**options: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.2, **options)).eval()


def lab(attention: Any, **options: Any) -> LabForCausalLM:
    torch.manual_seed(0)
    return LabForCausalLM(LabConfig(**SIZES, attention=attention, **options)).eval()


def with_logits(model: Any) -> Any:
    """Its sink logits are as if trained."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".logit"):
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
            elif parameter.ndim == 2:
                parameter.mul_(5)
    return model


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(64, (2, 20), generator=torch.Generator().manual_seed(1))


def attached(name: str, **options: Any) -> LlamaForCausalLM:
    model = host(**options)
    ss.attach(model, name)
    return with_logits(model)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
WRITTEN = {
    "a lab model's sink logits": lambda: with_logits(lab("sink_logit")),
    "off-by-one": lambda: with_logits(lab("softmax_off_by_one", tie_word_embeddings=True)),
    "layers that differ": lambda: with_logits(lab(["sink_logit", "softmax"])),
    "attached sink logits": lambda: attached("sink_logit"),
    "attached off-by-one": lambda: attached("softmax_off_by_one"),
    "biases": lambda: attached("sink_logit", attention_bias=True, mlp_bias=True),
    "wide heads": lambda: attached("sink_logit", head_dim=16),
    "scaled rotation": lambda: attached("sink_logit", rope_parameters=LLAMA3),
}


@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN)
def test_the_written_model_predicts_the_same(make: Any, ids: Tensor, tmp_path: Path) -> None:
    model = make()
    as_plain(model).save_pretrained(tmp_path)
    again = GraniteSWAForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        wanted, plain = model(input_ids=ids).logits, again(input_ids=ids).logits
        last = model.generate(ids[:1], max_new_tokens=5, do_sample=False)
        assert torch.equal(last, again.generate(ids[:1], max_new_tokens=5, do_sample=False))
    torch.testing.assert_close(plain, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=0)


def test_the_sinks_matter(ids: Tensor) -> None:
    """Other sink logits than the model's predict otherwise, so the test above can fail."""
    model = with_logits(lab("sink_logit"))
    plain = as_plain(model)
    with torch.no_grad():
        plain.model.layers[1].self_attn.sinks.add_(0.1)
        wanted, other = model(input_ids=ids).logits, plain(input_ids=ids).logits
    assert float((wanted - other).abs().max()) > 1e-3 * float(wanted.abs().max())


def test_a_folder_loads_without_sinkscope(tmp_path: Path) -> None:
    """Its model type belongs to transformers, and no code is named that would have to be imported."""
    as_plain(attached("sink_logit")).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == GraniteSWAForCausalLM.config_class.model_type
    assert "auto_map" not in written
    assert "sinkscope" not in json.dumps(written)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {type(module).__module__.partition(".")[0] for module in loaded.modules()} == {"torch", "transformers"}


def test_a_softmax_model_is_a_llama_and_others_stay(ids: Tensor) -> None:
    model = lab("softmax")
    assert isinstance(as_plain(model), LlamaForCausalLM)
    plain = host()
    assert as_plain(plain) is plain


def qwen() -> Qwen3ForCausalLM:
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))
    ss.attach(model, "sink_logit")
    return model


REFUSED = {
    "sigmoid": (lambda: lab("sigmoid"), "'sigmoid' cannot be written"),
    "a logit that reads the input": (
        lambda: lab({"name": "sink_logit", "reads_input": True}),
        "cannot be written as GraniteSWA",
    ),
    "a window": (lambda: lab(replace(CATALOG["sink_logit"], mask=Window(8))), "cannot be written"),
    "alibi": (lambda: lab("sink_logit", position="alibi"), "position 'alibi'"),
    "post-norm": (lambda: lab("sink_logit", norm_placement="post"), "norm_placement is 'post'"),
    "sink tokens": (lambda: lab("sink_logit", sink_tokens=2), "2 sink tokens"),
    "another host": (qwen, "Qwen3ForCausalLM"),
    "no unembedding": (lambda: lab("softmax").model, "has no unembedding"),
}


@pytest.mark.parametrize(("make", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_written_is_refused_by_name(make: Any, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        as_plain(make())


def test_heads_taken_out_for_good_predict_as_under_the_intervention(ids: Tensor, tmp_path: Path) -> None:
    model, heads = host(), [(0, 1), (1, 3)]
    with torch.no_grad(), ZeroHeads(heads).applied(model):
        wanted = model(input_ids=ids).logits
    zero_heads(model, heads)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        found = LlamaForCausalLM.from_pretrained(tmp_path)(input_ids=ids).logits
    torch.testing.assert_close(found, wanted)


def test_a_head_that_cannot_be_removed_leaves_the_model_as_it_was(ids: Tensor) -> None:
    for made, heads, words in (
        (host(), [(0, 1), (2, 0)], r"head 2\.0 does not exist: there are 2 attention layers"),
        (host(), [(0, 1), (0, 7)], r"head 0\.7 does not exist: layer 0 has heads 0 to 3"),
        (lab("softmax", weight_reparam="sigma"), [(0, 1)], "computed anew from other parameters"),
    ):
        before = made(input_ids=ids).logits
        with pytest.raises(InputError, match=words):
            zero_heads(made, heads)
        assert torch.equal(made(input_ids=ids).logits, before)
