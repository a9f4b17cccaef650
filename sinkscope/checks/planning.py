"""What a report card would take, before its model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sinkscope.checks.section import CheckSection
from sinkscope.checks.subject import TEXTS, TOKENS
from sinkscope.measurement.planning import plan as measuring_plan
from sinkscope.model import blueprint

SCORING = 1000  # operations that softmax, KL and the likeliest token of an entry take as long as: memory bounds them


@dataclass(frozen=True)
class CheckPlan:
    """Seconds of one reading of the texts and of each section, memory in bytes; estimates but for the parameters."""

    model: str
    parameters: int
    dtype: str
    device: str
    weights: int
    beside: int
    download: int
    reading: float
    sections: tuple[tuple[str, str, float], ...]

    @property
    def seconds(self) -> float:
        """All sections together."""
        return sum(seconds for *_, seconds in self.sections)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "seconds": self.seconds}


def plan(
    name: str,
    sections: Sequence[CheckSection],
    *,
    full: bool = False,
    count: int = TEXTS,
    batch_size: int = 8,
    dtype: str = "auto",
    device: str = "cpu",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> CheckPlan:
    """Memory and seconds by section, from the model's configuration and what matrix products just took here.

    Raises `InputError` as `load` does.
    """
    more: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    found = measuring_plan(
        name, tokens=TOKENS, samples=count, batch_size=batch_size, dtype=dtype, device=device, **more
    )
    config = blueprint(name, **more).config.get_text_config()
    vocabulary = int(getattr(config, "vocab_size", 0) or 0)
    reading = found.seconds[0] + SCORING * count * TOKENS * vocabulary / found.rate
    logits = 2 * 4 * batch_size * TOKENS * vocabulary  # those of the reference, and those compared with it
    sets = 2 if full else 1
    passes = [one.once + one.passes * (sets if one.every else 1) for one in sections]
    seconds = [(one.name, one.title, count * reading) for one, count in zip(sections, passes, strict=True)]
    return CheckPlan(
        model=name,
        parameters=found.parameters,
        dtype=found.dtype,
        device=device,
        weights=found.weights,
        beside=found.beside + logits,
        download=found.download,
        reading=reading,
        sections=tuple(seconds),
    )
