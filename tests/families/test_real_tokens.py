"""Real tokens and causality of every stack are those of the mask that its layers were given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.interventions import SetActivations
from sinkscope.measurement import AttentionReceived, HiddenNorms, measure
from tests.families.family import PROJECTIONS

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT = {**SIZES, "vocab_size": 97, "max_position_embeddings": 64}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
SIDES = {"vocab_size": 97, "d_model": 32, "max_position_embeddings": 64, **SPECIAL} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48), ("layerdrop", 0.0))
}
MAPS = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


@dataclass(frozen=True)
class Case:
    """A tiny model, how long its second row is in each stack (the first is whole), and which stacks are causal."""

    model: str
    config: Any
    inputs: str
    tokens: Mapping[str, tuple[int, int]]
    hosts: tuple[str, ...] = ("eager", "sdpa")
    causal: tuple[str, ...] = ("decoder",)
    maps: Mapping[str, str] = field(default_factory=lambda: MAPS)

    def build(self, host: str) -> nn.Module:
        torch.manual_seed(0)
        model = getattr(transformers, self.model)(self.config())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if PROJECTIONS.search(name):
                    parameter.mul_(12)
        model.set_attn_implementation(host)
        return model.eval()


def ids(length: int) -> Tensor:
    return torch.randint(3, 90, (2, length), generator=torch.Generator().manual_seed(length))


def short(length: int, real: int) -> Tensor:
    """A mask that hides what lies behind `real` in the second row."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, real:] = 0
    return mask


def noise(*shape: int) -> Tensor:
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))


def placed(image: Tensor, length: int, mask: Tensor) -> dict[str, Tensor]:
    """Ids with a place for each row of `image` behind the first two tokens, and their mask."""
    given = ids(length)
    for row, count in enumerate(image.tolist()):
        given[row, 2 : 2 + count] = 95
    return {"input_ids": given, "attention_mask": mask}


INPUTS = {
    "pairs": lambda: {"input_ids": ids(12), "attention_mask": short(12, 8), "decoder_input_ids": ids(11)},
    "waves": lambda: {"input_values": noise(800) * short(800, 400), "attention_mask": short(800, 400)},
    "patches": lambda: {
        "pixel_values": noise(16, 48),
        "pixel_attention_mask": short(16, 8),
        "spatial_shapes": torch.tensor([[4, 4], [2, 4]]),
    },
    "frames": lambda: {
        "input_features": noise(48, 8),
        "attention_mask": short(48, 16),
        "decoder_input_ids": ids(10),
    },
    "spectra": lambda: {"input_features": noise(8, 48), "attention_mask": short(48, 16), "decoder_input_ids": ids(10)},
    "heard": lambda: {
        **placed(torch.tensor([12, 6]), 24, short(24, 18)),
        "input_features": noise(8, 48),
        "feature_attention_mask": short(48, 24),
    },
    "queried": lambda: {**placed(torch.tensor([6, 6]), 24, short(24, 16)), "pixel_values": noise(3, 24, 24)},
    # As many tokens as the Q-Former has queries: a length alone tells nothing.
    "queried_short": lambda: {**placed(torch.tensor([6, 6]), 9, short(9, 8)), "pixel_values": noise(3, 24, 24)},
}


def bert_to_bert() -> Any:
    sides = transformers.BertConfig(**BERT), transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
    return transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*sides)


def blip(queries: int) -> Any:
    tower = {**SIZES, "image_size": 24, "patch_size": 4}
    return transformers.Blip2Config(
        vision_config=tower,
        qformer_config={**SIZES, "vocab_size": 97, "encoder_hidden_size": 32, "cross_attention_frequency": 1},
        text_config={**BERT, "model_type": "opt", "ffn_dim": 48, "word_embed_proj_dim": 32},
        num_query_tokens=queries,
        image_token_index=95,
    )


def heard() -> Any:
    sides = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "d_model": 32}
    return transformers.Qwen2AudioConfig(
        audio_config={**sides, "num_mel_bins": 8, "max_source_positions": 24},
        text_config={**BERT, "num_key_value_heads": 2},
        audio_token_index=95,
    )


WAVES = {
    **SIZES,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "layerdrop": 0,
}
SPEECH = {**SIDES, "input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 64}
SEAMLESS = {
    **{name: value for name, value in SIDES.items() if name != "d_model"},
    "hidden_size": 32,
    "t2u_vocab_size": 50,
    "speech_encoder_layers": 1,
    "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 48,
    "t2u_encoder_layers": 1,
    "t2u_decoder_layers": 1,
    "t2u_encoder_attention_heads": 4,
    "t2u_decoder_attention_heads": 4,
    "t2u_encoder_ffn_dim": 48,
    "t2u_decoder_ffn_dim": 48,
    "feature_projection_input_dim": 16,
}
TEXT = {"encoder": (12, 8), "decoder": (11, 11), "cross": (12, 8)}

CASES = {
    "wav2vec2": Case(
        "Wav2Vec2Model",
        lambda: transformers.Wav2Vec2Config(**WAVES),
        "waves",
        {"encoder": (79, 39)},
        maps={"encoder": "attentions"},
    ),
    "siglip2": Case(
        "Siglip2VisionModel",
        lambda: transformers.Siglip2VisionConfig(**SIZES, patch_size=4, num_patches=16),
        "patches",
        {"vision": (16, 8)},
        maps={"vision": "attentions"},
    ),
    "speech_to_text": Case(
        "Speech2TextForConditionalGeneration",
        lambda: transformers.Speech2TextConfig(**SPEECH),
        "frames",
        {"encoder": (12, 4), "decoder": (10, 10), "cross": (12, 4)},
        hosts=("eager",),
    ),
    "whisper": Case(  # it computes no mask from that of its features, and so attends to all of its frames
        "WhisperForConditionalGeneration",
        lambda: transformers.WhisperConfig(**SIDES, num_mel_bins=8, max_source_positions=24, max_target_positions=32),
        "spectra",
        {"encoder": (24, 24), "decoder": (10, 10), "cross": (24, 24)},
    ),
    "bert_to_bert": Case("EncoderDecoderModel", bert_to_bert, "pairs", TEXT),
    "seamless": Case("SeamlessM4TForTextToText", lambda: transformers.SeamlessM4TConfig(**SEAMLESS), "pairs", TEXT),
    "nllb_moe": Case(  # its modules say that nothing is causal, as do those of the next three
        "NllbMoeForConditionalGeneration",
        lambda: transformers.NllbMoeConfig(**SIDES, num_experts=2, expert_capacity=24),
        "pairs",
        TEXT,
        hosts=("eager",),
    ),
    "pegasus_x": Case(
        "PegasusXForConditionalGeneration",
        lambda: transformers.PegasusXConfig(**SIDES, num_global_tokens=4, block_size=4),
        "pairs",
        {"decoder": (11, 11), "cross": (12, 8)},
        hosts=("eager",),
    ),
    "bigbird_pegasus": Case(
        "BigBirdPegasusForConditionalGeneration",
        lambda: transformers.BigBirdPegasusConfig(**SIDES, attention_type="original_full"),
        "pairs",
        {"decoder": (11, 11), "cross": (12, 8)},
        hosts=("eager",),
    ),
    "qwen2_audio": Case(
        "Qwen2AudioForConditionalGeneration", heard, "heard", {"audio": (24, 12), "decoder": (24, 18)}, maps={}
    ),
    "blip2": Case(
        "Blip2ForConditionalGeneration",
        lambda: blip(6),
        "queried",
        {"vision": (37, 37), "queries": (6, 6), "queries_cross": (37, 37), "decoder": (24, 16)},
        maps={},
    ),
    "blip2_as_many_tokens": Case(
        "Blip2ForConditionalGeneration",
        lambda: blip(9),
        "queried_short",
        {"vision": (37, 37), "queries": (9, 9), "queries_cross": (37, 37), "decoder": (9, 8)},
        maps={},
    ),
}
BOTH = [(name, host) for name, case in CASES.items() for host in case.hosts]


def naive(weights: Tensor, queries: tuple[int, int], keys: tuple[int, int], causal: bool) -> Tensor:
    """alpha_k of maps (batch, heads, query, key) from the real lengths of their rows, NaN behind a row's keys."""
    found = torch.full((*weights.shape[:2], weights.shape[3]), torch.nan)
    for row, (asking, asked) in enumerate(zip(queries, keys, strict=True)):
        counts = torch.arange(asking, 0, -1) if causal else torch.full((asked,), asking)
        found[row, :, :asked] = weights[row, :, :asking, :asked].sum(1) / counts
    return found


WARNED = pytest.mark.filterwarnings("ignore:a mask with padding was given, but .*:UserWarning")


@pytest.mark.slow
@WARNED
@pytest.mark.parametrize(("name", "host"), BOTH)
def test_each_stack_has_the_tokens_that_its_layers_attend_to(name: str, host: str) -> None:
    case = CASES[name]
    data = measure(case.build(host), INPUTS[case.inputs](), [AttentionReceived()]).data
    stacks = data["stack"].values.tolist()
    assert list(dict.fromkeys(stacks)) == list(case.tokens)
    for layer, stack in enumerate(stacks):
        assert tuple(data["tokens"].values[:, layer].tolist()) == case.tokens[stack], stack


@pytest.mark.slow
@WARNED
@pytest.mark.parametrize(("name", "host"), [(name, host) for name, host in BOTH if CASES[name].maps])
def test_attention_received_is_that_of_the_models_own_maps(name: str, host: str) -> None:
    case, inputs = CASES[name], INPUTS[CASES[name].inputs]()
    with torch.no_grad():
        output = case.build("eager")(**inputs, output_attentions=True)
    data = measure(case.build(host), inputs, [AttentionReceived()]).data
    checked = 0
    for stack, key in case.maps.items():
        layers = [layer for layer, own in enumerate(data["stack"].values) if own == stack]
        for layer, weights in zip(layers, output[key] if layers else (), strict=True):
            queries = case.tokens["decoder" if stack == "cross" else stack]
            wanted = naive(weights, queries, case.tokens[stack], stack in case.causal)
            found = torch.from_numpy(data["attention_received"].values[:, layer, :, : wanted.shape[2]])
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0, equal_nan=True)
            checked += 1
    assert checked == len(data["stack"])


def test_a_padded_sound_is_measured_as_it_is_alone() -> None:
    case = CASES["wav2vec2"]
    model, inputs = case.build("sdpa"), INPUTS["waves"]()
    both = measure(model, inputs).data.isel(sample=1)
    alone = measure(model, {"input_values": inputs["input_values"][1:, :400]}).data.isel(sample=0)
    assert {"attention_received", "hidden_norm", "value_norm"} <= set(both)
    for name in ("attention_received", "hidden_norm", "value_norm", "key_norm"):
        padded = torch.from_numpy(both[name].values)
        torch.testing.assert_close(padded[..., :39], torch.from_numpy(alone[name].values), atol=1e-4, rtol=1e-4)
        assert bool(padded[..., 39:].isnan().all()), name


def test_a_mask_that_no_layer_uses_is_named_in_the_record() -> None:
    case = CASES["whisper"]
    with pytest.warns(UserWarning, match="but cross:"), pytest.warns(UserWarning, match=r"but encoder: .* all 24"):
        record = measure(case.build("sdpa"), INPUTS["spectra"](), [AttentionReceived()]).record
    assert set(record["unmasked"]) == {"encoder", "cross"}
    assert "all 24" in record["unmasked"]["encoder"]
    unpadded = {name: value for name, value in INPUTS["spectra"]().items() if name != "attention_mask"}
    assert "unmasked" not in measure(case.build("sdpa"), unpadded, [AttentionReceived()]).record


def test_positions_of_padded_sounds_cannot_be_named_in_interventions() -> None:
    case = CASES["wav2vec2"]
    model, inputs = case.build("sdpa"), INPUTS["waves"]()
    change = SetActivations([(1, 0, 0)])
    with pytest.raises(UnsupportedModelError, match="is not over the 79 tokens"), change.applied(model):
        model(**inputs)


def test_a_layer_that_attends_to_what_the_models_mask_hides_is_refused() -> None:
    model = transformers.BertModel(transformers.BertConfig(**BERT)).eval()
    for layer in model.encoder.layer:
        layer.register_forward_pre_hook(
            lambda module, args, kwargs: ((args[0], None, *args[2:]), kwargs), with_kwargs=True
        )
    with pytest.raises(UnsupportedModelError, match=r"attends to tokens that the attention mask .* hides"):
        measure(model, {"input_ids": ids(12), "attention_mask": short(12, 8)}, [AttentionReceived(), HiddenNorms()])
