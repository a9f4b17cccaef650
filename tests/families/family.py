"""A model family of transformers as a tiny random model whose attention is far from uniform."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import PreTrainedModel

from tests.families.inputs import INPUTS

Host = Literal["eager", "sdpa"]

PROJECTIONS = re.compile(
    r"(q_proj|k_proj|[qk]_proj\.linear|query|key|query_proj|key_proj|qkv|qkv_proj|query_key_value|c_attn|q_b_proj|"
    r"kv_b_proj|Wqkv|W[qk]|[qk]_lin|[._][qk]|wq_du|wr_du|q_head|k_head|self\.in_proj)\.(weight|bias)$|rel_attn\.[qk]$"
)
NORMS = re.compile(r"(q_norm|k_norm|q_layernorm|k_layernorm|kv_norm)\.weight$")


@dataclass(frozen=True)
class Family:
    """A model family of transformers by its configuration class and a tiny configuration.

    `kind`: what it reads, a name of `INPUTS`. `hosts`: attention implementations that it has. `sharpness`: factor on
    queries and keys that takes attention far from uniform. `eager_omits_sink`: its returned eager weights ignore the
    learned sink, though its output does not. `maps`: which of the maps it returns belong to attention layers (None:
    all), and `calls` how often a layer attends with one map. `towers`: its sub-models by the stack they are measured
    as, where a model is made of several. `faults`: since which version of transformers a host agrees with the family's
    own eager attention.
    """

    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    auto: str = "AutoModelForCausalLM"
    kind: str = "tokens"
    hosts: tuple[Host, ...] = ("eager", "sdpa")
    sharpness: float = 12.0
    eager_omits_sink: bool = False
    maps: tuple[int, ...] | None = None
    calls: int = 1
    towers: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[Host, str] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """False where the installed transformers is older than the family."""
        return hasattr(transformers, self.config)

    def obstacle(self, host: Host) -> str | None:
        """Why this host cannot be checked with the installed transformers; None where it can."""
        if not self.exists:
            return f"the installed transformers has no {self.config}"
        since = self.faults.get(host)
        if since is None or Version(transformers.__version__) >= Version(since):
            return None
        return f"before transformers {since} its own logits under {host} differ from those under eager"

    def build(self, host: Host = "eager", dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
        """A random model in eval mode; its attention is far from uniform."""
        torch.manual_seed(seed)
        config = getattr(transformers, self.config)(**{"pad_token_id": 0, **self.options})
        model = getattr(transformers, self.auto).from_config(config, attn_implementation=host, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if PROJECTIONS.search(name):
                    parameter.mul_(self.sharpness)
                if NORMS.search(name):  # gains are stored as g or as g - 1
                    parameter.add_(self.sharpness - 1)
                if name.endswith("sinks"):
                    parameter.normal_()
        return model.to(dtype).eval()

    def inputs(self, samples: int = 3, tokens: int = 24, seed: int = 1) -> dict[str, Tensor]:
        """Random inputs of the family's kind."""
        return INPUTS[self.kind](samples, tokens, torch.Generator().manual_seed(seed))
