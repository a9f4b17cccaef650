"""What SmolLM2 and nano lose when their sink becomes constants: by form, tuning, layers and heads, and in a stream."""

from __future__ import annotations

import math
from statistics import correlation, median, quantiles
from typing import Any

from tools.pages.stored import in_words, number, read, span

PAGE = "docs/fold.md"
SMOLLM2, NANO = "real/fold_smollm2", "real/fold_nano"
LARGE = 0.002  # nats of a head
AFTER = "{}; {} to {}"  # a value and its interval, where brackets are around both


def sentences() -> list[str]:
    """The page's sentences, in its order."""
    return [*_seconds(), *_forms(), *_tuning(), *_nano(), *_layers(), *_heads(), *_stream(), *_written()]


def _seconds() -> list[str]:
    figures = read("benchmarks/changing_SmolLM2-135M-Instruct.Q4_1.gguf")["figures"]
    ratios = {row["what"].removesuffix(" / forward"): row["ratio"] for row in figures}
    short, long = dict.fromkeys(what.partition(":")[0].removeprefix("T = ") for what in ratios if what.startswith("T"))
    folded = {
        tokens: span((ratio for what, ratio in ratios.items() if what.startswith(f"T = {tokens}: fold")), 2)
        for tokens in (short, long)
    }
    constants = [number(ratios[f"T = {tokens}: constants"], 2) for tokens in (short, long)]
    return [
        f"A folded pass takes {folded[short]} times as long as a plain one on texts of {short} tokens and "
        f"{folded[long]} times on {long}, measuring the constants {' and '.join(constants)} times"
    ]


def _forms() -> list[str]:
    stored, arms = read(SMOLLM2), _arms(SMOLLM2, "forms")
    logit, both, key = arms["fold-logit"], arms["fold-sink"], arms["fold-key"]
    return [
        f"Docstrings of {stored['tokens']} tokens, constants from {stored['constants_from']} others, "
        f"{in_words(logit['controls'])} control.",
        f"without its value a constant logit costs {number(logit['nats'][0], 2)} nats, "
        f"{number(logit['more_than_controls'][0], 2)} more than another token folded the same way. With its value it "
        f"costs {number(both['nats'][0], 3)}, which {stored['parts']['forms']['texts']} texts tell from",
        f"(KL is {number(both['kl'][0], 2)}:",
        f"it costs no nats and a KL of {number(key['kl'][0], 3)}",
    ]


def _tuning() -> list[str]:
    stored, nano = read("real/fold_tuning_smollm2"), read("real/fold_tuning_nano")
    steps = max(map(int, stored["arms"]["logit, all weights"]))
    before, after = (stored["arms"]["logit, all weights"][str(step)]["against_no_fold"] for step in (0, steps))
    alone = stored["arms"]["logit, b alone"][str(steps)]["nats"][0]
    kept = [number(nano["arms"]["logit, all weights"][str(step)]["against_no_fold"][0], 3) for step in (steps, 0)]
    logits = len(read(SMOLLM2)["parts"]["heads"]["heads"])
    return [
        f"was trained for {steps} steps of {stored['rows']} × {stored['tokens']} tokens",
        f"by one run and {stored['scored']} held-out texts: ten steps give back three quarters of the "
        f"{number(before[0], 2)} nats, a hundred leave {_interval(after)}, still falling",
        f"a hundred steps come within {_bound(after[0], 2)} nats",
        f"Training the {logits} logits alone gives back half ({number(alone, 3)} left,",
        f"keeps {kept[0]} of its {kept[1]} ({nano['scored']} texts)",
    ]


def _nano() -> list[str]:
    arms = _arms(NANO, "forms")
    logit, both = (_interval(arms[arm]["kl"], AFTER) for arm in ("fold-logit", "fold-sink"))
    return [f"a little more KL ({logit}, against {both}):"]


def _layers() -> list[str]:
    parts, layers = read(SMOLLM2)["parts"], _arms(SMOLLM2, "layers")
    without, kept = ({at: row["nats"] for at, row in _of(layers, form)} for form in ("fold-logit", "fold-sink"))
    worth = {at.partition("-")[0]: without[at][0] - kept[at][0] for at in without}
    losing = [at.partition("-")[0] for at, (_, low, _) in kept.items() if low > 0]
    bands = {at: row["nats"] for at, row in _of(_arms(SMOLLM2, "bands"), "fold-logit")}
    *earlier, fifth, sixth = bands
    first, last = fifth.split("-")
    return [
        f"in one late layer above all, {max(worth, key=lambda at: worth[at])}; with the value only layer "
        f"{' and '.join(losing)} loses anything that {parts['layers']['texts']} texts can tell from",
        f"(Of {len(layers)} intervals at 95 %, {in_words(0.05 * len(layers))} may miss",
        f"the value is worth {number(sum(worth.values()), 2)} nats",
        f"{in_words(int(last) - int(first) + 1).capitalize()} layers at a time ({parts['bands']['texts']} texts) it is "
        f"needed late as well: without it layers {first} to {last} lose +{_interval(bands[fifth])} and "
        f"{' to '.join(sixth.split('-'))} +{_interval(bands[sixth])}, the {in_words(len(earlier))} earlier bands "
        f"{span((bands[at][0] for at in earlier), 3)} each",
    ]


def _heads() -> list[str]:
    part, nano = (read(place)["parts"]["heads"] for place in (SMOLLM2, NANO))
    need, spread = _need(part), [row["logit_std"] for row in part["heads"]]
    follows = correlation(list(need.values()), spread)
    largest, nano_largest = (max(found, key=lambda head: found[head]) for found in (need, _need(nano)))
    low, _, high = (number(each, 2) for each in quantiles(spread, n=4, method="inclusive"))
    both, logit = (_bound(_error(part, form), 3) for form in ("logit+value", "logit"))
    nano_error = _bound(max(_error(nano, form) for form in ("logit+value", "logit")), 3)
    exact = {arm.partition("@")[2] for arm in part["exact"]["arms"]}
    return [
        f"On SmolLM2 ({part['texts']} texts) one head stands out, {largest}, with {number(need[largest], 3)} nats; "
        f"{in_words(sum(each > LARGE for each in need.values()))} of {len(need)} are above {LARGE}, and the sum over "
        f"all is {number(sum(need.values()), 3)}. The {in_words(len(exact))} largest were folded",
        f"In nano one head, also {nano_largest}, makes up for most",
        f"has a standard deviation of {number(median(spread), 2)} over texts and queries in the median head (quartiles "
        f"{low} and {high}), and what a head loses does not follow its spread (a correlation of "
        f"{number(follows, 2)})",
        f"estimates are within {both} of the exact values for `logit+value`, and within {logit} for `logit`, where a "
        f"head loses more; nano's within {nano_error}.",
    ]


def _need(part: dict[str, Any]) -> dict[str, float]:
    """What each head would lose for want of a logit that depends on the query."""
    return {f"{row['layer']}.{row['head']}": row["logit+value"] - row["key+value"] for row in part["heads"]}


def _error(part: dict[str, Any], form: str) -> float:
    """The largest error of an estimate, of the heads that were folded for certain."""
    estimates = {f"{row['layer']}.{row['head']}": row[form] for row in part["heads"]}
    return max(abs(row["nats"][0] - estimates[head]) for head, row in _of(part["exact"]["arms"], form))


def _stream() -> list[str]:
    stored, arms = read(SMOLLM2), _arms(SMOLLM2, "stream")
    back = arms["0 sinks kept"]["nats"][0] - arms["no sink kept, logit+value"]["nats"][0]
    more, nano = (read(place)["parts"]["stream"]["logit+value against 4 sinks"] for place in (SMOLLM2, NANO))
    return [
        f"The constants are those of texts of {stored['tokens']} tokens",
        f"{number(back, 1)} nats come back, and it loses {_interval(more)} more than the stream that keeps four sinks",
        f"four sinks kept cannot be told apart ({_interval(nano, AFTER)})",
    ]


def _written() -> list[str]:
    return [f"the sink measured in texts of {read(SMOLLM2)['tokens']} tokens"]


def _arms(place: str, part: str) -> dict[str, Any]:
    """The arms of a part of a run."""
    arms: dict[str, Any] = read(place)["parts"][part]["arms"]
    return arms


def _of(arms: dict[str, Any], form: str) -> list[tuple[str, Any]]:
    """The layers or heads that were folded in a form, each with its row."""
    return [(arm.partition("@")[2], row) for arm, row in arms.items() if arm.partition("@")[0] == form]


def _interval(values: list[float], form: str = "{} ({} to {})") -> str:
    """A value and its interval."""
    return form.format(*(number(each, 3) for each in values))


def _bound(value: float, digits: int) -> str:
    """A number that `value` does not exceed."""
    return number(math.ceil(value * 10**digits) / 10**digits, digits)
