"""A calibration that stays: kept, saved, loaded, taken off, and never lost on the way."""

from __future__ import annotations

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.interventions import (
    ACT,
    All,
    ForbidSink,
    Reweigh,
    Temperature,
    VisualRedistribution,
    keep,
    kept,
    load,
    release,
    save_calibrated,
)
from sinkscope.interventions.reweigh.saving import from_json, read_described, to_json
from sinkscope.model import load as load_model
from sinkscope.model import load_tokenizer
from tests.families.registry import FAMILIES
from tests.interventions.conftest import hooks, logits

EVERY = [
    Reweigh(0.5, (0, 3), ((0, 1), (1, 2))),
    ACT(0.3, 0.05, guarded=True),
    Temperature(1.5, ((0, 0),)),
    VisualRedistribution((1, 5), 96, tau=4.0),
    All((Reweigh(0.5, heads=((0, 0),)), Temperature(2.0))),
]


@pytest.mark.parametrize("calibration", EVERY, ids=lambda value: type(value).__name__)
def test_data_and_back(calibration):
    assert from_json(to_json(calibration)) == calibration


def test_it_stays_until_it_is_released():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    plain, count, calibration = logits(model, **inputs), hooks(model), Reweigh(6.0, (0, 2))
    with calibration.applied(model):
        expected = logits(model, **inputs)
    keep(model, calibration)
    assert torch.equal(logits(model, **inputs), expected)
    assert kept(model) == calibration
    with pytest.raises(InputError, match="already"):
        keep(model, calibration)
    release(model)
    assert torch.equal(logits(model, **inputs), plain)
    assert hooks(model) == count
    assert kept(model) is None
    with pytest.raises(InputError, match="no calibration"):
        release(model)


def test_a_saved_model_comes_with_it_and_fails_loudly_elsewhere(tmp_path):
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    keep(model, Reweigh(6.0, (0, 2)))
    expected = logits(model, **inputs)
    model.save_pretrained(tmp_path / "kept")
    release(model)
    again = load(tmp_path / "kept")
    torch.testing.assert_close(logits(again, **inputs), expected)
    assert kept(again) == Reweigh(6.0, (0, 2))
    for opened in (AutoModelForCausalLM, LlamaForCausalLM):
        with pytest.raises((ValueError, OSError, StrictDataclassFieldValidationError)):
            opened.from_pretrained(tmp_path / "kept")
    with pytest.raises(InputError, match=r"load it with sinkscope\.load"):
        load_model(tmp_path / "kept")
    again.save_pretrained(tmp_path / "once_more")
    release(again)
    once_more = load(tmp_path / "once_more")
    torch.testing.assert_close(logits(once_more, **inputs), expected)
    release(once_more)


def test_it_is_saved_without_being_kept_and_with_its_tokenizer(tmp_path):
    model = load("nano")
    save_calibrated(model, Temperature(1.2), tmp_path / "nano", load_tokenizer("nano"))
    assert kept(model) is None
    again = load(tmp_path / "nano")
    assert kept(again) == Temperature(1.2)
    release(again)
    assert load_tokenizer(tmp_path / "nano").get_vocab() == load_tokenizer("nano").get_vocab()


def test_what_is_no_calibration_is_refused(tmp_path):
    model = FAMILIES["llama"].build("sdpa")
    with pytest.raises(InputError, match="cannot be kept"):
        save_calibrated(model, ForbidSink((0,)), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    for described, said in (({"name": "Rewegh"}, "did you mean 'Reweigh'"), ({"name": "ACT", "bta": 1}, "bta")):
        with pytest.raises(InputError, match=said):
            from_json(described)
    (tmp_path / "calibrated.json").write_text('{"version": 9, "calibration": {}}')
    with pytest.raises(InputError, match="version 9"):
        read_described(tmp_path)
    (tmp_path / "calibrated.json").write_text("{")
    with pytest.raises(InputError, match="no calibrated model"):
        read_described(tmp_path)
