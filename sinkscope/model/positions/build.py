"""From a configuration to its position scheme."""

from __future__ import annotations

from collections.abc import Callable

from sinkscope.model.config import LabConfig
from sinkscope.model.positions.absolute import LearnedTable, Sinusoidal
from sinkscope.model.positions.relative import Alibi, RelativePaper, RelativeT5
from sinkscope.model.positions.rotary import Rotary
from sinkscope.model.positions.scheme import Scheme

SCHEMES: dict[str, Callable[[LabConfig], Scheme]] = {
    "none": lambda config: Scheme(),
    "learned": lambda config: LearnedTable(config.max_position_embeddings, config.hidden_size),
    "sinusoidal": lambda config: Sinusoidal(config.hidden_size),
    "relative_t5": lambda config: RelativeT5(config.num_attention_heads, config.hidden_size, config.is_causal),
    "relative_paper": lambda config: RelativePaper(config.is_causal),
    "rotary": lambda config: Rotary(config.rope),
    "alibi": lambda config: Alibi(config.num_attention_heads),
}


def scheme_of(config: LabConfig) -> Scheme:
    """The module that `config.position` names; `LabConfig` has checked that it can be built."""
    return SCHEMES[config.position](config)
