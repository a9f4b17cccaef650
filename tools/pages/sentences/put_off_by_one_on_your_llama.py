"""What training with an attached operation does to the sinks and outliers of SmolLM2 and nano."""

from __future__ import annotations

from tools.pages.stored import read, span

PAGE = "docs/put_off_by_one_on_your_llama.md"
SMOLLM2, NANO = "real/removing_a_sink", "real/removing_a_sink_nano"
START, EARLY, LATE = "0", "100", "300"
PLAIN, SIGMOID, GATE, OPEN = (f"{each}, " for each in ("softmax", "sigmoid", "gated_elementwise", "sink_logit, b = 0"))
CLOSED = "sink_logit, closed, b alone"
TUNED = ("all weights", "LoRA")


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_closed_slot(), *_open_slot(), *_gate(), *_sigmoid(), *_int8(), *_run()]


def _closed_slot() -> list[str]:
    early, late = (100 * _after(step, CLOSED, "slots") for step in (EARLY, LATE))
    of_nano = 100 * _after(LATE, CLOSED, "slots", NANO)
    rates = [_after(step, CLOSED, "sink_rate") for step in (START, LATE)]
    weights = 100 * _after(LATE, CLOSED.replace("b alone", "all weights"), "slots")
    return [
        f"If b alone learns, SmolLM2's slot receives {early:.0f} % after {EARLY} steps and {late:.0f} % after {LATE}, "
        f"and the sink rate falls from {rates[0]:.1f} to {rates[1]:.1f} %; on `nano` the slot receives {of_nano:.0f} % "
        f"after {LATE} steps.",
        f"If all weights learn, it stays closed ({weights:.1f} % after {LATE} steps),",
    ]


def _open_slot() -> list[str]:
    weights, lora = (f"{OPEN}{tuned}" for tuned in TUNED)
    stages = (EARLY, weights), (LATE, weights), (LATE, lora)
    start, rate, norm = (
        [_after(START, arm, what) for arm in (f"{PLAIN}all weights", weights)]
        for what in ("nll", "sink_rate", "norm_ratio")
    )
    rates = [f"{_after(*stage, 'sink_rate'):.0f}" for stage in stages]
    norms = [f"{_after(*stage, 'norm_ratio'):.0f}" for stage in stages]
    return [
        f"SmolLM2's sink rate falls from {rate[0]:.1f} to {rate[1]:.1f} % before the first step, at a cost of "
        f"{start[1] - start[0]:.2f} nats, and the norm of the first token from {norm[0]:.0f} to {norm[1]:.0f} times "
        f"that of the others. After {EARLY} steps of all weights it is {rates[0]} %, after {LATE} {rates[1]} %, after "
        f"{LATE} of LoRA {rates[2]} %, and the norm {norms[0]}, {norms[1]} and {norms[2]} times.",
    ]


def _gate() -> list[str]:
    rates = [_after(LATE, f"{GATE}{tuned}", "sink_rate") for tuned in TUNED]
    before = _after(START, f"{GATE}all weights", "norm_ratio")
    gated, plain = ([_after(LATE, f"{arm}{tuned}", "norm_ratio") for tuned in TUNED] for arm in (GATE, PLAIN))
    return [
        f"{rates[0]:.0f} % after {LATE} steps of all weights on SmolLM2 (LoRA: {rates[1]:.0f} %), "
        f"{_after(LATE, f'{GATE}all weights', 'sink_rate', NANO):.1f} % on `nano`. The norm falls from {before:.0f} to "
        f"{gated[0]:.0f} times ({gated[1]:.0f}), with plain softmax to {plain[0]:.0f} ({plain[1]:.0f}).",
    ]


def _sigmoid() -> list[str]:
    weights, lora = (f"{SIGMOID}{tuned}" for tuned in TUNED)
    stages = (START, weights), (LATE, weights), (LATE, lora)
    losses, of_nano = ([f"{_after(*stage, 'nll', of):.1f}" for stage in stages] for of in (SMOLLM2, NANO))
    plain = [f"{_after(START, f'{PLAIN}all weights', 'nll', of):.1f}" for of in (SMOLLM2, NANO)]
    largest = [f"{_after(*stage, 'max_median'):.0f}" for stage in stages]
    return [
        f"SmolLM2 goes from {losses[0]} to {losses[1]} nats in {LATE} steps of all weights (LoRA: {losses[2]}), `nano` "
        f"from {of_nano[0]} to {of_nano[1]} ({of_nano[2]}); the original models have {plain[0]} and {plain[1]}. The "
        f"outliers go too, from {largest[0]} times the median to {largest[1]} (LoRA: {largest[2]}), but",
        f"In `nano` under LoRA the sink returns ({_after(LATE, lora, 'sink_rate', NANO):.0f} %).",
    ]


def _int8() -> list[str]:
    before = _after(START, f"{PLAIN}all weights", "a8-tensor")
    opened = _after(START, f"{OPEN}all weights", "a8-tensor")
    early, late, lora = (
        [f"{_after(steps, f'{arm}{tuned}', 'a8-tensor'):.2f}" for arm in (GATE, OPEN, PLAIN)]
        for steps, tuned in ((EARLY, "all weights"), (LATE, "all weights"), (LATE, "LoRA"))
    )
    starts = (before, opened, before)
    off = [1 - float(cost) / start for cost, start in zip(early, starts, strict=True)]
    largest = [
        stage["max_median"]
        for arm, stages in read(SMOLLM2)["arms"].items()
        for steps, stage in stages.items()
        if steps != START and "max_median" in stage and not arm.startswith(SIGMOID)
    ]
    return [
        f"{EARLY} steps of all weights take {span(off, 0, 100)} % off what a shared range costs: from a KL of "
        f"{before:.2f} to {early[0]} with a gate and to {early[2]} with plain softmax, from {opened:.2f} to {early[1]} "
        f"with a slot that starts open; the intervals overlap. {LATE} "
        f"steps take it to {late[0]} with a gate, {late[1]} with a slot and {late[2]} without either, {LATE} of LoRA "
        f"to {lora[0]}, {lora[1]} and {lora[2]}, whose intervals",
        f"In SmolLM2 the largest entries stay {round(min(largest), -1):,.0f} to {round(max(largest), -1):,.0f} times "
        "the median",
    ]


def _run() -> list[str]:
    found = read(SMOLLM2)
    seconds = [
        stage["seconds_a_step"]
        for stages in found["arms"].values()
        for steps, stage in stages.items()
        if steps != START
    ]
    return [
        f"A step of SmolLM2 took {min(seconds):.0f} to {max(seconds):.0f} s on",
        f"Each step reads {found['rows']} docstrings of {found['tokens']} tokens",
        f"for {found['held_out']} held-out docstrings",
        f"the sink rate is at ε = {found['epsilon']},",
    ]


def _after(steps: str, arm: str, what: str, of: str = SMOLLM2) -> float:
    """What was measured of an arm after so many steps, without its interval."""
    measured = read(of)["arms"][arm][steps][what]
    return float(measured[0] if isinstance(measured, list) else measured)
