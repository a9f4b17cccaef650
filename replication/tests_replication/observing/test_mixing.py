"""Shares of the states' lengths, against loops over the stream and on states that are planted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sinkscope.measurement import Mixing, measure
from sinkscope.model import LabForCausalLM
from sinkscope_replication.observing.mixing import RelativeMixing
from tests_replication.observing.test_readings import lab

NAMES = ("relative_spread", "relative_pair_distance")


def stream(*states: float) -> LabForCausalLM:
    """A model whose blocks write nothing, so that at every depth token i is `states[i]` along one axis."""
    model = lab(position="none")
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        rows = model.get_input_embeddings().weight
        rows.zero_()
        rows[: len(states), 0] = torch.tensor(states)
    return model


def read(*states: float) -> list[list[float]]:
    found = measure(stream(*states), torch.arange(len(states))[None], [RelativeMixing()]).data
    return [found[name].values[0].tolist() for name in NAMES]


def test_the_stream_is_read_as_loops_over_it_do() -> None:
    model, ids = lab(position="none"), torch.randint(0, 97, (3, 9), generator=torch.Generator().manual_seed(1))
    seen: list[Tensor] = []
    for module in (model.model.embed_tokens, *model.model.layers):
        module.register_forward_hook(lambda module, args, output: seen.append(output))
    found = measure(model, ids, [RelativeMixing()], batch_size=3).data
    for depth, hidden in enumerate(seen):
        for sample, states in enumerate(hidden.double().numpy()):
            kept = [states[position] for position in range(1, 9)]
            mean = sum(kept) / len(kept)
            spread = math.sqrt(sum(np.sum((state - mean) ** 2) for state in kept) / sum(np.sum(s**2) for s in kept))
            lengths = [math.sqrt(np.sum(state**2)) for state in kept]
            distance = math.sqrt(np.sum((kept[-1] - kept[-2]) ** 2)) / (sum(lengths[-2:]) / 2)
            expected = (spread, distance)
            assert [float(found[name][sample, depth]) for name in NAMES] == pytest.approx(expected, rel=1e-4)
    assert len(seen) == found.sizes["depth"] == 2


def test_padding_is_no_token() -> None:
    ids, padded = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[0, 0, 5, 6, 7, 8]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    alone = measure(lab(), ids, [RelativeMixing()]).data
    beside = measure(lab(), {"input_ids": padded, "attention_mask": mask}, [RelativeMixing()]).data
    for name in NAMES:
        np.testing.assert_allclose(beside[name], alone[name], rtol=1e-4)


@pytest.mark.parametrize("first", [0.0, 3.0, 1000.0])
def test_the_ends_of_the_scales_whatever_the_first_token(first: float) -> None:
    assert read(first, 2.0, 2.0, 2.0, 2.0) == [[0.0, 0.0]] * 2
    assert read(first, 2.0, -2.0, 2.0, -2.0) == [[1.0, 1.0], [2.0, 2.0]]
    assert read(first, 1.0, 3.0)[1] == [1.0, 1.0]


def test_a_longer_stream_is_as_spread_as_a_short_one() -> None:
    model, ids = stream(9.0, 1.0, 2.0, 4.0, 3.0), torch.arange(5)[None]
    measured = []
    for _ in range(2):
        measured.append(measure(model, ids, [RelativeMixing(), Mixing()]).data)
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(1024.0)
    short, long = measured
    for name in NAMES:
        assert np.array_equal(short[name], long[name])
    np.testing.assert_allclose(long["hidden_spread"], 1024 * short["hidden_spread"], rtol=1e-6)


@pytest.mark.parametrize("states", [(4.0, 2.0), (4.0, 0.0, 0.0)])
def test_there_is_nothing_to_say_of_a_single_token_or_of_zeros(states: tuple[float, ...]) -> None:
    assert np.isnan(read(*states)).all()
