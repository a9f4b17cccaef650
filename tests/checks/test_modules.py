"""The ranking of linear maps by what 8 bits cost, against rounding each of them alone."""

from __future__ import annotations

import numpy as np
import torch

import sinkscope as ss
from sinkscope.checks.modules import GRID, module_costs
from sinkscope.grids import EXACT, Grid
from sinkscope.quantization import QuantizeLinear


def test_the_estimate_is_what_rounding_a_map_alone_costs() -> None:
    model = ss.load("nano")
    ids = torch.randint(3, 2000, (8, 48), generator=torch.Generator().manual_seed(0))
    trained = [parameter.requires_grad for parameter in model.parameters()]
    costs = module_costs(model, ids, batch_size=3)
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    assert all(parameter.grad is None for parameter in model.parameters())
    assert list(costs.values()) == sorted(costs.values(), reverse=True)
    paths = [*list(costs)[:4], *list(costs)[-4:]]
    exact = []
    with torch.no_grad():
        full = model(input_ids=ids).logits.log_softmax(-1)
        for path in paths:
            others = tuple(name for name in costs if name != path)
            with QuantizeLinear(Grid(EXACT), GRID, skip=("lm_head", *others)).applied(model):
                alone = model(input_ids=ids).logits.log_softmax(-1)
            exact.append(float((full.exp() * (full - alone)).sum(-1).mean()))
    ratio = np.array([costs[path] for path in paths]) / np.array(exact)
    assert ((ratio > 0.5) & (ratio < 2)).all()
