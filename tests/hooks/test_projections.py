"""Places in models, checked against what the models do there: the keys that arrive at attention, the heads' output."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
import transformers
from torch import Tensor, nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.dispatch import Invocation, watching
from sinkscope.hooks.modules import attention_layers, family, position_embedding, position_limit, unembedding
from sinkscope.hooks.projections import head_count, key_projection, output_projection
from tests.families.registry import COLLECTED, FAMILIES
from tests.measurement.conftest import build

WITHOUT_KEYS = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "minicpm3", "mistral4")
WITHOUT_KEYS = (*WITHOUT_KEYS, "longcat_flash", "axk2", "hy_v4", "inkling2", "ctrl")  # latent, or of their own
BETWEEN = (
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "afmoe",
    "laguna",
    "hy_v4",
    "inkling2",
    "axk2",
    "bitnet",
    "diffllama",
)
WITHOUT_OUTPUT = tuple(name for name in ("jetmoe", "deepseek_v4_sliding") if name in FAMILIES)
STRETCHED = ("gpt_oss", "openai_privacy_filter")  # YaRN stretches all keys by the same factor
GROUPED = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4} | {
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
OTHERS = {
    "phi3": ("Phi3", GROUPED),
    "stablelm with normed keys": ("StableLm", {**GROUPED, "qk_layernorm": True}),
    "cohere with normed keys": ("Cohere", {**GROUPED, "use_qk_norm": True}),
}
TABLES = {
    "gpt2": ("wpe", 0),
    "gpt_bigcode": ("wpe", 0),
    "opt": ("embed_positions", 2),
    "bert": ("position_embeddings", 0),
    "roberta": ("position_embeddings", 1),
    "clip_text": ("position_embedding", 0),
    "vit": ("position_embeddings", 0),
}


@dataclass
class Seen:
    """What the first attention layer was given, and what its output projection was."""

    first: nn.Module
    hidden: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    projected: list[Tensor] = field(default_factory=list)

    def watches(self, module: nn.Module) -> bool:
        return module is self.first

    def attended(self, invocation: Invocation) -> None:
        self.keys.append(invocation.arguments["key"])
        self.outputs.append(invocation.output)


def model_of(name: str) -> nn.Module:
    if name in OTHERS:
        kind, options = OTHERS[name]
        config = getattr(transformers, f"{kind}Config")(**options)
        return getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    return build(name, "eager")


def run(model: nn.Module, name: str) -> Seen:
    layers = attention_layers(model)
    decoding = [module for module, layer in layers.items() if layer.stack == "decoder"]
    seen = Seen((decoding or list(layers))[0])
    seen.first.register_forward_pre_hook(
        lambda module, args, kwargs: seen.hidden.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    output_projection(model, seen.first).register_forward_pre_hook(lambda module, args: seen.projected.append(args[0]))
    with torch.no_grad(), watching(seen):
        model(**(FAMILIES[name] if name in FAMILIES else FAMILIES["llama"]).inputs())
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*(name for name in FAMILIES if name not in WITHOUT_OUTPUT), *OTHERS, "lab:softmax", "lab:sigmoid"]
)
def test_the_sites_are_where_the_model_uses_them(name):
    model = model_of(name)
    seen = run(model, name)
    heads, keys = head_count(model, seen.first), seen.keys[0]
    assert heads == seen.outputs[0].shape[2]
    assert seen.projected[0].shape[-1] == seen.outputs[0].shape[2] * seen.outputs[0].shape[3]
    if name not in BETWEEN:
        head_after_head = seen.outputs[0].flatten(2)
        torch.testing.assert_close(seen.projected[0], head_after_head)
    if name in WITHOUT_KEYS:
        with pytest.raises(UnsupportedModelError, match=f"family '{family(model)}'.*(head|key)"):
            key_projection(model, seen.first)
        return
    found = key_projection(model, seen.first)(seen.hidden[0])
    assert found.shape == keys.shape
    # A rotation turns keys and keeps their length.
    lengths, stretched = found.norm(dim=-1), keys.norm(dim=-1)
    stretch = (stretched.sum() / lengths.sum()).item()
    assert name in STRETCHED or stretch == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(stretch * lengths, stretched, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(stretch * found[:, :, 0], keys[:, :, 0], rtol=1e-4, atol=1e-5)  # rotated by nothing


@pytest.mark.parametrize("name", TABLES)
def test_position_tables(name):
    model = model_of(name)
    table = position_embedding(model)
    assert (table.path.rpartition(".")[2], table.offset) == TABLES[name]
    inputs = FAMILIES[name].inputs()
    with torch.no_grad():
        before = model(**inputs, output_hidden_states=True).hidden_states[0].clone()
        table.rows[3, 0] += 1.0
        after = model(**inputs, output_hidden_states=True).hidden_states[0]
    moved = (after - before).abs().amax((0, 2)) > 1e-4
    assert moved.nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("llama", "family 'llama' has no table of absolute positions.*rotary"),
        ("t5", "family 't5' has no table of absolute positions"),
        ("bart", "several position tables: model.encoder.embed_positions, model.decoder.embed_positions"),
    ],
)
def test_models_without_one_table_are_refused(name, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        position_embedding(model_of(name))


def test_the_unembedding_gives_the_logits():
    model = model_of("gpt2")
    inputs = FAMILIES["gpt2"].inputs()
    with torch.no_grad():
        last = model.transformer(**inputs).last_hidden_state
        torch.testing.assert_close(last @ unembedding(model).mT, model(**inputs).logits)


@pytest.mark.parametrize("name", ["llama", "opt", "gpt2", "mpt", "bart", "roberta", "esm", "markuplm"])
def test_a_model_reads_as_many_tokens_as_it_has_positions_for_and_no_more(name: str) -> None:
    family = (FAMILIES | COLLECTED)[name]
    model = family.build()
    limit = position_limit(model)
    assert limit is not None
    with torch.no_grad():
        model(**family.inputs(samples=1, tokens=limit))
        if model.config.model_type != "llama":  # rotations have no last position
            with pytest.raises((IndexError, RuntimeError)):
                model(**family.inputs(samples=1, tokens=limit + 1))


def test_missing_sites_name_family_and_site():
    with pytest.raises(UnsupportedModelError, match="family 'vit', ViTModel: no unembedding"):
        unembedding(model_of("vit"))
    with pytest.raises(UnsupportedModelError, match=r"family 'Linear'.*no output projection"):
        output_projection(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(UnsupportedModelError, match=r"family 'Linear'.*how wide a head"):
        key_projection(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(UnsupportedModelError, match=r"how many heads"):
        head_count(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.parametrize("name", WITHOUT_OUTPUT)
def test_layers_without_one_output_projection_are_refused(name):
    model = model_of(name)
    with pytest.raises(UnsupportedModelError, match="no output projection"):
        output_projection(model, next(iter(attention_layers(model))))
