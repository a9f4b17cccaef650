"""What must hold for every family that streams: its logits are those of its own modules on the tokens that are kept."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope import hooks
from sinkscope.caches import LayerRotation, Rotation, StreamingCache
from sinkscope.errors import UnsupportedModelError
from tests.caches.families import EVERY, EXACT, REFUSALS, STREAMS
from tests.caches.oracle import oracle
from tests.families.registry import Host

TOLERANCE = 1e-5  # of the largest logit
SINKS, WINDOW = 2, 6
PROMPT, TOKENS = 5, 24
HEAD = "| family | what is rotated | layers that stream |"


@dataclass(frozen=True)
class Row:
    """Largest errors of a logit over the largest one: in a loop, and of what `generate` writes."""

    loop: float
    generated: float

    @property
    def holds(self) -> bool:
        """Whether both agree."""
        return max(self.loop, self.generated) <= TOLERANCE


def check(name: str, host: Host) -> Row:
    """Compare a family's tiny model with the oracle."""
    model = built(name, host)
    return Row(
        loop=error(*(looped(model, ids(), use) for use in (False, True))),
        generated=error(*(generated(model, ids()[:, :PROMPT], use) for use in (False, True))),
    )


def built(name: str, host: Host) -> Any:
    """The family's tiny model, in fp64 where fp32 says nothing."""
    return STREAMS[name].build(host, dtype=torch.float64 if name in EXACT else torch.float32)


def ids(rows: int = 1, tokens: int = PROMPT + TOKENS) -> Tensor:
    """Random tokens."""
    return torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def looped(model: Any, tokens: Tensor, use: bool, sinks: int = SINKS, window: int = WINDOW) -> Tensor:
    """Logits after each token behind the prompt, read one by one; those of the oracle where it is used."""
    cache = StreamingCache(model, sinks, window)
    with oracle(model, cache, sinks, window) if use else nullcontext():
        model(input_ids=tokens[:, :PROMPT], past_key_values=cache, use_cache=True)
        steps = range(PROMPT, tokens.shape[1])
        found = [model(input_ids=tokens[:, t : t + 1], past_key_values=cache, use_cache=True)[0][:, -1] for t in steps]
    return torch.stack(found, 1)


def generated(model: Any, prompt: Tensor, use: bool) -> Tensor:
    """Logits of what `generate` writes; those of the oracle where it is used."""
    if not hasattr(model, "generate") or model.get_output_embeddings() is None:
        return torch.ones(1)
    cache = StreamingCache(model, SINKS, WINDOW)
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False, "use_cache": True, "eos_token_id": None}
    model.generation_config.eos_token_id = None
    with oracle(model, cache, SINKS, WINDOW) if use else nullcontext():
        out = model.generate(
            prompt, past_key_values=cache, output_logits=True, return_dict_in_generate=True, pad_token_id=0, **options
        )
    return torch.stack(out.logits, 1)


def error(found: Tensor, wanted: Tensor) -> float:
    """The largest error of a logit over the largest one."""
    return float((found - wanted).abs().max() / wanted.abs().max())


def turned(model: nn.Module, rotations: list[LayerRotation]) -> str:
    """What is turned of the layers that stream, in words."""
    kinds = dict.fromkeys(
        f"{part}: {described(rotation)}"
        for each in rotations
        for part, rotation in (("keys", each.keys), ("values", each.values))
        if rotation is not None
    )
    if not kinds:
        return "nothing (ALiBi)" if hooks.family(model) in ("bloom", "mpt") else "nothing (no positions)"
    return ", ".join(kinds)


def described(rotation: Rotation) -> str:
    """Layout, channels, and the way round."""
    first, last = rotation.start, rotation.start + rotation.width - 1
    return f"{rotation.layout}, {first} to {last}" + (", the other way" if rotation.frequencies[0] < 0 else "")


def refusal(name: str) -> str:
    """Why a family is refused. Raises `AssertionError` where it is not."""
    family = EVERY[name]
    try:
        StreamingCache(family.build(family.hosts[0]))
    except UnsupportedModelError as error:
        return str(error)
    raise AssertionError(f"{name} streams")


def table() -> str:
    """What is rotated in each family that streams, as a Markdown table; what is refused comes last."""
    lines = [HEAD, "|---|---|---|"]
    for name, family in STREAMS.items():
        hosts = [host for host in family.hosts if family.obstacle(host) is None]
        if hosts:
            model = built(name, hosts[-1])
            cache = StreamingCache(model, SINKS, WINDOW)
            rotations = [layer.rotation for layer in cache.followed]
            layers = len(rotations) + len(cache.left_alone)
            lines.append(f"| {name} | {turned(model, rotations)} | {len(rotations)} / {layers} |")
    lines += [f"| {name} | refused: {refusal(name)} | |" for name in REFUSALS if EVERY[name].exists]
    return "\n".join(lines)
