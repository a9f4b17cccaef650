"""Token ids as models take them, and the models that take none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sinkscope.data import Inputs, corpus_of, fed, reading, start_token, vocabulary_of
from sinkscope.errors import UnsupportedModelError
from sinkscope.names import SHIPPED
from tests.families.registry import FAMILIES

IDS = torch.arange(5, 53).reshape(2, 24)


@pytest.mark.parametrize("name", ["bart", "t5", "mbart", "pegasus", "marian"])
def test_the_decoder_reads_what_it_would_make_of_labels(name: str) -> None:
    model = FAMILIES[name].build()
    given = fed(model, IDS)
    with torch.no_grad():
        assert torch.equal(model(**given).logits, model(input_ids=IDS, labels=IDS).logits)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_a_model_without_a_head_reads_the_same(name: str) -> None:
    model = FAMILIES[name].build()
    assert torch.equal(fed(model.base_model, IDS)["decoder_input_ids"], fed(model, IDS)["decoder_input_ids"])
    assert fed(model.base_model, IDS)["decoder_input_ids"][0, 0] == start_token(model)


def test_a_decoder_without_a_start_token_is_refused_in_one_line() -> None:
    model = FAMILIES["t5"].build()
    model.config.decoder_start_token_id = None
    with pytest.raises(UnsupportedModelError, match=r"give decoder_start_token_id in its config\.json"):
        fed(model, IDS)
    del model.config.decoder_start_token_id
    with pytest.raises(UnsupportedModelError, match=r"give decoder_start_token_id in its config\.json"):
        fed(model, IDS)


def test_a_reading_says_what_stands_first_on_both_sides() -> None:
    given = Inputs(IDS, "a random token", "2 rows")
    assert reading(FAMILIES["llama"].build(), given).first == "a random token"
    both = reading(FAMILIES["t5"].build(), given)
    assert both.first == "a random token; of the decoder its start token"
    assert both.description == "2 rows; the decoder reads the same tokens after its start token"
    assert both.one(7)["decoder_input_ids"].shape == (1, 7)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vit", "the model reads pixel_values, not tokens: sinkscope measure and sinkscope check take --images DIR"),
        (
            "wav2vec2",
            "the model reads input_values, not tokens: sinkscope measure and sinkscope check take --audio DIR",
        ),
        (
            "whisper",
            "the model reads input_features, not tokens: sinkscope measure and sinkscope check take --audio DIR",
        ),
        (
            "clip",
            "CLIPModel reads pixel_values besides its tokens: sinkscope measure and sinkscope check take --images DIR",
        ),
    ],
)
def test_a_model_that_does_not_run_on_tokens_alone_is_refused_in_a_line(name: str, said: str) -> None:
    model = FAMILIES[name].build()
    with pytest.raises(UnsupportedModelError) as raised:
        reading(model, Inputs(IDS, "", ""))
    assert str(raised.value).startswith(said)
    if name != "clip":
        with pytest.raises(UnsupportedModelError):
            vocabulary_of(model)


def test_text_alone_will_do_where_images_are_optional() -> None:
    model = FAMILIES["llava"].build()
    assert set(reading(model, Inputs(IDS, "", "")).parts[0]) == {"input_ids"}


def test_what_was_trained_here_reads_code_and_others_prose():
    def of(model_type: str, name: object) -> str:
        return corpus_of(SimpleNamespace(model_type=model_type, name_or_path=str(name)))

    assert of("sinkscope_lab", "runs/mine") == "python"
    assert of("jamba", SHIPPED["nano-hybrid"]) == "python"
    assert of("jamba", "nano-hybrid") == "python"
    assert of("jamba", "somebody/nano-hybrid") == "prose"
    assert of("llama", "meta-llama/Llama-3.1-8B") == "prose"
