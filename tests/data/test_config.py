from __future__ import annotations

import pytest
from pydantic import ValidationError

from sinkscope.data import DataConfig, FixedToken, RandomTokens


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"corpus": "pyton"}, "did you mean 'python'"),
        ({"tokenizer": "bep:2048"}, "did you mean 'bpe:2048'"),
        ({"bos": "maybe"}, "'fixed' or 'none'"),
        ({"validation_share": 0.0}, "greater than 0"),
        ({"validation_share": 1.0}, "less than 1"),
        ({"validation_share": float("nan")}, "validation_share"),
        ({"max_characters": 100}, "'python' is read whole"),
        ({"corpse": "python"}, "Extra inputs are not permitted"),
        ({"interventions": [{"kind": "fixed_tokens"}]}, "'fixed_token'"),
        ({"interventions": [{"kind": "random_tokens", "start": 2, "stop": 2}]}, "start 2 is not below stop 2"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, object], reason: str):
    with pytest.raises(ValidationError) as caught:
        DataConfig.model_validate(fields)
    assert reason in str(caught.value)


def test_a_config_is_json_and_back():
    config = DataConfig(
        corpus="hf:a/b:c",
        max_characters=5,
        interventions=(FixedToken(position=1, token=2), RandomTokens(start=0, stop=1)),
    )
    assert DataConfig.model_validate_json(config.model_dump_json()) == config
    assert DataConfig() == DataConfig(corpus="python", tokenizer="bpe:2048", bos="fixed", validation_share=0.02)
