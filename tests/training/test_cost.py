from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import RECIPES, Recipe
from sinkscope.training.cost import activation_bytes, flops_per_token, memory, saved_bytes

Make = Callable[..., Recipe]
VOCABULARY = 60


def model_of(recipe: Recipe) -> LabForCausalLM:
    return LabForCausalLM(LabConfig(vocab_size=VOCABULARY, attention=recipe.attention, **recipe.model))


def on_meta(name: str) -> LabForCausalLM:
    recipe = RECIPES[name]
    with torch.device("meta"):
        return LabForCausalLM(LabConfig(max_position_embeddings=recipe.context, **recipe.model))


OPTIMIZERS = {
    "adamw": (),
    "adam": (),
    "sgd": (),
    "sgd with momentum": ("optimizer.momentum=0.9",),
    "rmsprop": (),
    "rmsprop with momentum": ("optimizer.momentum=0.9",),
    "muon": (),
    "orthoadam": (),
    "orthoadam that leaves axes": ("optimizer.largest=20",),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_an_optimizers_state_is_what_it_builds(case: str, tiny: Make) -> None:
    recipe = tiny(f"optimizer.name={case.split()[0]}", *OPTIMIZERS[case])
    model = model_of(recipe)
    optimizer = recipe.optimizer.build(model)
    ids = torch.randint(0, VOCABULARY, (2, 16))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    parts = getattr(optimizer, "parts", [optimizer])
    states = [state for part in parts for state in part.state.values()]
    assert recipe.optimizer.numbers(model) == sum(_numbers(value) for state in states for value in state.values())


def _numbers(value: object) -> int:
    """Of a tensor or a list of them; a step count is none."""
    if isinstance(value, list):
        return sum(_numbers(item) for item in value)
    return value.numel() if isinstance(value, Tensor) and value.ndim > 0 else 0


def saved(model: LabForCausalLM, ids: Tensor, bf16: bool) -> int:
    """Bytes of all storages that the forward keeps for the backward pass, parameters aside."""
    kept: dict[int, torch.UntypedStorage] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", enabled=bf16):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


SIZES = [(4, 4, 128, 336, 2048, 128), (2, 4, 64, 176, 512, 64), (8, 2, 96, 256, 512, 64)]
OPERATIONS = {
    "softmax": (0.95, 1.05),
    "softmax_off_by_one": (0.95, 1.05),
    "sigmoid": (0.95, 1.34),
    "kernel_elu": (0.95, 1.34),
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_a_forward_saves_is_within_the_stated_factor(operation: str, precision: str) -> None:
    low, high = OPERATIONS[operation]
    for layers, heads, width, inner, vocabulary, tokens in SIZES:
        config = LabConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
            max_position_embeddings=tokens,
            attention=operation,
        )
        ids = torch.randint(0, vocabulary, (2, tokens))
        model = LabForCausalLM(config)
        measured = saved(model, ids, precision == "bf16")
        if precision == "bf16":
            measured -= 2 * sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
        assert low <= measured / saved_bytes(config, ids.numel(), precision) <= high


def test_memory_is_the_sum_of_its_parts() -> None:
    recipe, model = RECIPES["1b"], on_meta("1b")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needed = memory(recipe, model)
    assert (needed.weights, needed.gradients, needed.optimizer) == (4 * parameters, 4 * parameters, 8 * parameters)
    assert needed.activations == activation_bytes(model.config, 16 * 2048, "bf16")
    assert needed.casts == 2 * (parameters - 50432 * 2048 - (2 * 22 + 1) * 2048)
    assert needed.total == 16 * parameters + needed.activations + needed.casts


def test_arithmetic_in_closed_form() -> None:
    model = on_meta("60m")
    without_lookup = 136_462_080 - 50432 * 768
    assert flops_per_token(model, model.config, 2048) == 6 * without_lookup + 12 * 10 * 768 * 2048
