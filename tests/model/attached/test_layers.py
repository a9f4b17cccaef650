"""Operations on chosen layers: the others attend as they did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as ss
from sinkscope.errors import InputError
from tests.model.attached.hosts import HOSTS, TOLERANCE, host, inputs, output, stir


def per_layer(name: str, model: torch.nn.Module) -> list[torch.Tensor]:
    """Outputs of the attention layers."""
    seen: list[torch.Tensor] = []
    layers = [module for module in model.modules() if hasattr(module, "operation")]
    hooks = [layer.register_forward_hook(lambda _, args, out: seen.append(out[0])) for layer in layers]
    output(model, inputs(name))
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_only_the_chosen_layer_is_changed(name: str) -> None:
    """In layer 1 alone: the output of layer 0 is the plain model's, that of layer 1 is of the operation everywhere."""
    plain, one, both = host(name), host(name), host(name)
    for model, layers in ((plain, None), (one, [1]), (both, None)):
        ss.attach(model, "softmax" if model is plain else "gated_elementwise", layers=layers, start="as_is", seed=0)
    stir(one)
    state = {path: value for path, value in one.state_dict().items() if ".operation." in path}
    both.load_state_dict(state, strict=False)
    with torch.no_grad():  # layer 0 of the other one: a gate of one half everywhere, and twice the output map
        first, *_ = [module for module in both.modules() if hasattr(module, "operation")]
        first.operation.output_modules[0].weight.zero_()
        first.operation.output_modules[0].bias.fill_(40.0)  # sigma(40) = 1 in fp32
    torch.testing.assert_close(output(one, inputs(name)), output(both, inputs(name)), atol=1e-5, rtol=0)
    untouched, changed = per_layer(name, one)
    torch.testing.assert_close(untouched, per_layer(name, plain)[0], atol=TOLERANCE, rtol=0)
    assert (changed - per_layer(name, plain)[1]).abs().max() > 1e-4
    assert len({path.split(".operation.")[0] for path in state}) == 1


def test_what_was_chosen_is_said_saved_and_comes_back(tmp_path: Path) -> None:
    model, given = host("llama"), inputs("llama")
    attached = ss.attach(model, "gated_head", layers=(1, 1), start="as_is")
    assert attached.layers == (1,)
    stir(model)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["layers"], written["version"]) == ([1], 4)
    loaded = ss.load(tmp_path)
    assert loaded.config.attachment.layers == (1,)
    assert torch.equal(output(loaded, given), output(model, given))
    assert len(ss.trainable_only(loaded)) == 2
    ss.detach(loaded)
    loaded.set_attn_implementation(host("llama").config._attn_implementation)
    assert torch.equal(output(loaded, given), output(host("llama"), given))


def test_a_file_for_all_layers_names_none(tmp_path: Path) -> None:
    model = host("llama")
    ss.attach(model, "softmax")
    model.config.save_pretrained(tmp_path)
    assert "layers" not in json.loads((tmp_path / "config.json").read_text())


def test_slots_are_measured_in_the_chosen_layers_alone() -> None:
    model = host("llama")
    ss.attach(model, "softmax_off_by_one", layers=[0])
    slots = ss.measure(model, inputs("llama"), observers=[ss.SlotReceived()]).data["slot_received"]
    assert float(slots.isel(layer=0).min()) > 0
    assert bool(slots.isel(layer=1).isnull().all())  # it has no slot


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([2], r"no attention layer 2; the model has 0 to 1"),
        ([-1], "no attention layer -1"),
        ([True], "no attention layer True"),
        (["0"], "no attention layer '0'"),
        ([], "layers: empty, so nothing would be attached"),
    ],
)
def test_layers_that_are_not_there(layers: list[Any], words: str) -> None:
    model = host("llama")
    state = list(model.state_dict())
    with pytest.raises(InputError, match=words):
        ss.attach(model, "softmax", layers=layers)
    assert list(model.state_dict()) == state
