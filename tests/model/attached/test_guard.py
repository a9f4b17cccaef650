"""Any family takes an operation if it is itself with softmax attached; the guard notices what would be lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sinkscope as ss
from sinkscope.errors import UnsupportedModelError
from sinkscope.model.attached import attaching
from sinkscope.model.attached import layer as attached_layer
from tests.families.sweep import attaching as swept
from tests.families.sweep.build import build
from tests.model.attached.hosts import output

LISTED = swept.committed()[1]


def test_families_that_a_user_may_bring_are_attached() -> None:
    asked = ("granite", "cohere", "olmo3", "smollm3", "glm4", "phi", "qwen3_5_text", "deepseek_v3", "jamba")
    assert {kind: LISTED[kind][0] for kind in asked} == dict.fromkeys(asked, "attached")
    assert sum(result == "attached" for result, _ in LISTED.values()) > 110


@pytest.mark.parametrize("kind", ["granite", "glm4", "phi", "deepseek_v3"])
def test_a_family_without_tests_of_its_own_is_itself(kind: str) -> None:
    """deepseek_v3 has values of another width, granite a multiplier instead of 1 / √d, phi parallel blocks."""
    model, ids = build(kind, "sdpa"), torch.randint(3, 90, (2, 11), generator=torch.Generator().manual_seed(0))
    attached = ss.attach(model, "sink_logit")
    assert attached.changes == ()
    wanted = output(build(kind, "eager"), {"input_ids": ids})
    ss.detach(model)
    ss.attach(model, "softmax")
    torch.testing.assert_close(output(model, {"input_ids": ids}), wanted, atol=1e-5, rtol=0)


def test_such_a_family_is_saved_and_loaded(tmp_path: Path) -> None:
    model, ids = build("granite", "sdpa"), torch.arange(3, 12)[None]
    ss.attach(model, "gated_head", start="as_is")
    wanted = output(model, {"input_ids": ids})
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(output(ss.load(str(tmp_path)).eval(), {"input_ids": ids}), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("lost", ["mask", "scaling", "cache", "group"])
def test_what_an_operation_would_lose_is_noticed(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants of the layer's function, each on a host that has what is lost."""
    if lost == "mask":
        seen = attached_layer.visibility_of
        monkeypatch.setattr(attached_layer, "visibility_of", lambda mask, own, _, *rest: seen(None, own, True, *rest))
    elif lost == "scaling":
        run = attached_layer.attached_attention
        monkeypatch.setattr(
            attached_layer, "attached_attention", lambda *args, **kwargs: run(*args, **kwargs | {"scaling": 0.9})
        )
    elif lost == "cache":
        monkeypatch.setattr(attached_layer, "_seen", lambda cache, module: 0)
    else:
        sizes = attaching.sizes_of
        monkeypatch.setattr(attaching, "sizes_of", lambda *args: sizes(*args).__class__(4, 2, 8, 32))
    attached_layer.register()
    model = build("granite", "sdpa")
    kinds = [type(module) for module in model.modules()]
    try:
        with pytest.raises(UnsupportedModelError, match="attached softmax is not the model's own attention") as caught:
            ss.attach(model, "softmax")
    finally:
        monkeypatch.undo()
        attached_layer.register()
    assert "\n" not in str(caught.value)
    assert [type(module) for module in model.modules()] == kinds
    assert not any(hasattr(module, "operation") for module in model.modules())


def test_half_precision_is_judged_by_the_median_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("granite", "eager").to(torch.bfloat16)
    assert ss.attach(model, "softmax").name == "softmax"
    ss.detach(model)
    seen = attached_layer.visibility_of
    monkeypatch.setattr(attached_layer, "visibility_of", lambda mask, own, _, *rest: seen(None, own, False, *rest))
    with pytest.raises(UnsupportedModelError, match="standard deviations"):
        ss.attach(model, "softmax")
