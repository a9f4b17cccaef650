"""An attention call that was watched can be run once more, with other arguments in the place of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Invocation, watching
from tests.families.registry import FAMILIES
from tests.measurement.conftest import lab_model


class Again:
    """Runs each call again, as it was and with values of another size, and keeps what came back."""

    def __init__(self) -> None:
        self.calls: list[tuple[Invocation, Tensor, Tensor]] = []

    def watches(self, module: nn.Module) -> bool:
        return True

    def attended(self, invocation: Invocation) -> None:
        value = invocation.arguments["value"]
        self.calls.append((invocation, invocation.again(), invocation.again(value=2 * value)))


@pytest.mark.parametrize(
    ("name", "host"), [("llama", "sdpa"), ("llama", "eager"), ("gpt_oss", "eager"), ("gpt2", "sdpa")]
)
def test_it_runs_the_same_function(name, host):
    model, inputs, seen = FAMILIES[name].build(host), FAMILIES[name].inputs(), Again()
    with torch.no_grad():
        before = model(**inputs).logits
        with watching(seen):
            after = model(**inputs).logits
    assert torch.equal(before, after)
    assert seen.calls
    for invocation, same, doubled in seen.calls:
        assert torch.equal(same, invocation.output)
        torch.testing.assert_close(doubled, 2 * same)


def test_nobody_is_shown_it_and_a_lab_layer_has_it_too():
    model, seen, other = lab_model("softmax"), Again(), Again()
    with watching(seen), watching(other), torch.no_grad():
        model(torch.randint(3, 90, (2, 9)))
    assert len(seen.calls) == len(other.calls) == model.config.num_hidden_layers
    assert all(torch.equal(same, invocation.output) for invocation, same, _ in seen.calls)


def test_a_call_that_was_read_off_elsewhere_cannot_be_run():
    nothing = torch.zeros(1, 1, 1, 1)
    with pytest.raises(UnsupportedModelError, match="not at hand"):
        Invocation(nn.Linear(1, 1), None, {}, nothing, None).again(value=nothing)
