"""Estimates the time and memory of a report card before its model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sinkscope.checks.section import CheckSection
from sinkscope.checks.subject import TEXTS, TOKENS
from sinkscope.measurement.planning import plan as measuring_plan
from sinkscope.model import blueprint

SCORING = 1000  # operations in the time of softmax, KL and argmax of one logit, which memory bounds


@dataclass(frozen=True)
class CheckPlan:
    """The estimated cost of a report card.

    Args:
        model: The model's name.
        parameters: Their number, which is exact.
        dtype: The dtype in which the model is loaded.
        device: The device.
        weights: Bytes of the weights.
        beside: Bytes of activations and logits.
        download: Bytes to download; 0 if the weights are here.
        reading: Seconds of one pass over the texts.
        sections: Name, title and seconds of each section.
    """

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
        """Seconds of all sections."""
        return sum(seconds for *_, seconds in self.sections)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "seconds": self.seconds}


def plan(
    name: str,
    sections: Sequence[CheckSection],
    *,
    full: bool = False,
    media: bool = False,
    count: int = TEXTS,
    batch_size: int = 8,
    dtype: str = "auto",
    device: str = "cpu",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> CheckPlan:
    """Memory and seconds by section, from the model's configuration and the speed of matrix products on this machine.

    Args:
        name: The model, as `load` takes it.
        sections: The sections to run.
        full: The card has two sets of texts.
        media: It has images or recordings instead, of which attention alone is read.
        count: Scored texts per set.
        batch_size: Texts per pass.
        dtype: As `load` takes it; "auto" is the dtype of the weights.
        device: "cpu", or a device of torch.
        revision: A branch, tag or commit on the hub.
        trust_remote_code: Allow code from the model's repository.

    Raises `InputError` as `load` does.
    """
    source: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    estimate = measuring_plan(
        name, tokens=TOKENS, samples=count, batch_size=batch_size, dtype=dtype, device=device, **source
    )
    config = blueprint(name, **source).config.get_text_config()
    vocabulary = int(getattr(config, "vocab_size", 0) or 0)
    reading = estimate.seconds[0] + SCORING * count * TOKENS * vocabulary / estimate.rate
    logits = 2 * 4 * batch_size * TOKENS * vocabulary  # fp32, of the reference and of an arm
    seconds = []
    sets = 2 if full and not media else 1
    for section in sections:
        passes = section.extra_passes + section.passes * sets if section.media or not media else 0.0
        seconds.append((section.name, section.title, passes * reading))
    return CheckPlan(
        model=name,
        parameters=estimate.parameters,
        dtype=estimate.dtype,
        device=device,
        weights=estimate.weights,
        beside=estimate.beside + logits,
        download=estimate.download,
        reading=reading,
        sections=tuple(seconds),
    )
