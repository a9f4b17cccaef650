"""Every family: softmax attached is the model itself, and what the host adds to attention stays in force."""

from __future__ import annotations

import pytest
import torch

import sinkscope as ss
from sinkscope.errors import UnsupportedModelError
from sinkscope.model.attached import FAMILIES
from sinkscope.model.attached import layer as attached_layer
from tests.model.attached.hosts import HOSTS, TOLERANCE, host, inputs, output, stir


def test_every_supported_family_is_tested() -> None:
    assert set(HOSTS) == set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_softmax_attached_is_the_host(name: str) -> None:
    """Against the family's own eager attention: windows of Mistral and Gemma, softcap, grouped heads, no causality."""
    model, given = host(name), inputs(name)
    attached = ss.attach(model, "softmax")
    assert attached.changes == ()
    torch.testing.assert_close(output(model, given), output(host(name, "eager"), given), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [name for name in HOSTS if name != "vit"])
def test_padded_rows_are_the_same_alone(name: str) -> None:
    model, ids = host(name), inputs(name)["input_ids"][:1]
    ss.attach(model, "sink_logit", start="as_is")
    stir(model)
    alone = output(model, {"input_ids": ids})
    padding = torch.zeros_like(ids[:, :3])
    mask = torch.cat([padding, torch.ones_like(ids)], 1)
    given = {"input_ids": torch.cat([padding + 5, ids], 1), "attention_mask": mask}
    if name == "bert":  # positions count padding there; it stands at the end
        given = {key: value.roll(-3, 1) for key, value in given.items()}
    else:
        given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    real = given["attention_mask"].bool()
    torch.testing.assert_close(output(model, given)[real][None], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", HOSTS)
def test_taken_off_nothing_is_left(name: str) -> None:
    model, given = host(name), inputs(name)
    before, state = output(model, given), list(model.state_dict())
    kinds = [(type(module), vars(module).keys()) for module in model.modules()]
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    config, text = type(model.config), model.config.to_json_string()
    ss.attach(model, "gated_head", start="as_is")
    assert not torch.equal(output(model, given), before)
    ss.detach(model)
    assert torch.equal(output(model, given), before)
    assert list(model.state_dict()) == state
    assert [(type(module), vars(module).keys()) for module in model.modules()] == kinds
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == hooks
    assert (type(model.config), model.config.to_json_string()) == (config, text)
    ss.attach(model, "softmax")


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3_text", "bert"])
def test_a_lost_mask_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the layer's function gets no mask, so that only "causal" is left of it, or nothing."""
    seen = attached_layer.visibility_of
    causal = name not in ("llama", "bert")
    monkeypatch.setattr(attached_layer, "visibility_of", lambda mask, own, _, *rest: seen(None, own, causal, *rest))
    with pytest.raises(UnsupportedModelError, match="its outputs move by"):
        ss.attach(host(name), "softmax")


def test_a_lost_softcap_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(attached_layer.Softcap):
        def rows(self, rows: slice) -> torch.Tensor:
            return 0 * super().rows(rows)

    monkeypatch.setattr(attached_layer, "Softcap", Nothing)
    with pytest.raises(UnsupportedModelError, match="its outputs move by"):
        ss.attach(host("gemma2"), "softmax")
