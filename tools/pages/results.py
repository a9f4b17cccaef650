"""Blocks that are filled from stored results: `results/benchmarks`, `results/real` and `results/models`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from sinkscope.checks.atlas import read_entries
from sinkscope.checks.atlas import table as models
from sinkscope.trials.origin import MAKES
from tools.pages import foreign, table
from tools.pages.stored import RESULTS, read
from tools.results_real import CHANGES

REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODELS = {REAL_MODEL: "SmolLM2-135M-Instruct", "nano": "`nano`"}
ORIGINS = {"smollm2": "SmolLM2", "nano": "`nano`", "nano_hybrid": "`nano-hybrid`", "nano_encoder": "`nano-encoder`"}
CHUNKS = {"SmolLM2": "joined_chunks", "`nano`": "joined_chunks_nano"}
CORPORA = {"python:prose": "docstrings", "python:code": "code"}
FOLDS = {
    "fold-logit": "`fold-logit`: logit, no value",
    "fold-sink": "`fold-sink`: logit and value",
    "fold-key": "`fold-key`: key and value",
}
EVERYWHERE = {
    "gamma=0 at 0": "sink taken out (γ = 0)",
    "gamma=0.25 at 0": "γ = 0.25 on the sink",
    "gamma=0.5 at 0": "γ = 0.5",
    "gamma=0.8 at 0": "γ = 0.8",
    "gamma=1.25 at 0": "γ = 1.25",
    "gamma=4 at 0": "γ = 4",
    "gamma=0 at 5": "token 5 taken out",
    "gamma=4 at 5": "γ = 4 on token 5",
    "act as published": "ACT as published (β = 0.4, threshold 0.1)",
    "act guarded": "ACT, guarded",
}
KEPT = " [freed memory: kept]"


RATIOS = ("norm_ratio", "max_median")


def atlas() -> str:
    """One row per model, from all submissions."""
    frame = models(read_entries(RESULTS / "models"))
    return table(" | ".join(frame), (map(foreign, row) for row in frame.itertuples(index=False)))


def steps() -> str:
    """A decoded token with each policy against a `DynamicCache` that stores as many keys."""
    ratios = {row["what"].partition(": ")[2]: row["ratio"] for row in _figures(f"eviction_{REAL_MODEL}")}
    rows = []
    for what, ratio in sorted(ratios.items(), key=lambda row: row[1]):
        if what.startswith("a token with "):
            policy = what.removeprefix("a token with ").partition(" /")[0]
            alone = ratios.get(
                what.replace("a token with", "products alone of a token with").replace(" /", " + plain /")
            )
            rows.append((policy, f"{ratio:.2f}", "" if alone is None else f"{alone:.2f}"))
    return table("policy | time × | its matrix products alone", rows)


def eviction() -> str:
    """The same of a random Llama, and what ragged heads cost, each with its bound."""
    rows = (row for row in _figures("eviction") if row["unit"] != "MB" or "ragged" in row["what"])
    return _bounded(row for row in rows if row["what"].endswith(KEPT))


def long() -> str:
    """A step with all keys of a long text against one with a quarter of them."""
    return _bounded(_figures("eviction_long"))


def overhead() -> str:
    """What measuring takes, as multiples of the forward pass, for each batch of texts."""
    batches: dict[str, dict[str, float]] = {}
    for figure in _figures(f"measure_overhead_{REAL_MODEL}"):
        texts, _, side = figure["what"].removeprefix(f"{REAL_MODEL}, ").partition(": ")
        if side.endswith(" / forward"):
            batches.setdefault(texts, {})[side.removesuffix(" / forward")] = figure["ratio"]
    sides = list(dict.fromkeys(side for ratios in batches.values() for side in ratios))
    rows = (
        (texts, *(f"{ratios[side]:.2f}" if side in ratios else "" for side in sides))
        for texts, ratios in batches.items()
    )
    return table(" | ".join(["texts", *sides]), rows)


def _figures(name: str) -> list[dict[str, Any]]:
    return list(_benchmark(name)["figures"])


def _details(name: str) -> dict[str, Any]:
    return dict(_benchmark(name)["details"])


def _benchmark(name: str) -> dict[str, Any]:
    return dict(read(f"benchmarks/{name}"))


def _bounded(figures: Iterable[dict[str, Any]]) -> str:
    rows = []
    for figure in figures:
        bound = "" if figure["bound"] == "none" else figure["bound"] + ("" if figure["reached"] else ", not reached")
        rows.append((figure["what"].removesuffix(KEPT), f"{figure['ratio']:.2f}", bound))
    return table("what | ratio | bound", rows)


def kernels() -> str:
    """How far off the fused kernels were on a GPU, and their time beside FlashAttention and the formulas."""
    found = read("benchmarks/kernel_agreement")
    off: dict[str, float] = {}
    for row in found["rows"]:
        off[row["dtype"]] = max(off.get(row["dtype"], 0.0), *row["errors"].values())
    agree = sum(row["outcome"] == "agrees" for row in found["rows"])
    largest = ", ".join(f"{error:.1g} in {dtype}" for dtype, error in off.items())
    here = found["machine"]
    said = (
        f"On an {here['gpu']} (torch {here['torch']}, triton {here['triton']}) {agree} of {len(found['rows'])} "
        "comparisons agree; the largest difference of values and gradients, relative to the largest entry, is "
        f"{largest}."
    )
    return f"{fill(said, 120)}\n\n{_bounded(_figures('cuda_kernels'))}"


def calibrated_everywhere() -> str:
    """What each calibration of all heads costs `nano`."""
    arms = {arm["arm"]: arm for arm in _arms(_details("calibration")["everywhere"])}
    rows = ((what, _range(arms[arm], "lost", 4)) for arm, what in EVERYWHERE.items())
    return table("in all heads | nats lost (95 %)", rows)


def calibrated_heads() -> str:
    """What each calibration costs `nano` in heads chosen on other texts, and how much less than each control."""
    chosen = _details("calibration")["chosen"].items()
    return table(f"chosen head by head | {CALIBRATED}", ((method, *_calibrated(trial)) for method, trial in chosen))


CALIBRATED = (
    "chosen | nats lost (95 %) | better than the same change elsewhere by | better than as many random heads by"
)


def _calibrated(trial: dict[str, Any]) -> tuple[str, ...]:
    found, arms = trial["calibration"], {arm["arm"]: arm for arm in _arms(trial)}
    chosen = f"`{found['option']}` in {len(found['heads'])} of {found['of_heads']} heads"
    named = ("chosen", "chosen heads")  # the same change, each beside controls of its own
    lost = next(_range(arms[name], "lost", 4) for name in named if name in arms)
    return chosen, lost, *(_range(arms[name], "beats_by", 4) if name in arms else "" for name in named)


def calibrated_in_chat() -> str:
    """The same of SmolLM2 in its chat format, in chosen heads and in all of them."""
    rows = []
    for texts, trial in _trials("calibrate-*"):
        option = trial["calibration"]["option"]
        everywhere = next(arm for arm in _arms(trial) if arm["arm"] == "all heads")
        every = f"`{option}` in all", _range(everywhere, "lost", 4), _range(everywhere, "beats_by", 4), ""
        rows += [(texts, *_calibrated(trial)), (texts, *every)]
    return table(f"texts | {CALIBRATED}", rows)


def sinks() -> str:
    """NLL with each number of sinks at the same number of keys, and its difference from four sinks."""
    rows = []
    stored = _real("streaming_sinks")["models"]
    for model, title in MODELS.items():
        for name, part in stored[model].items():
            corpus, keys = name.removesuffix(" keys").split(", ")
            summary = part["summary"]
            cells = [f"{title}, {CORPORA[corpus]}", keys, str(summary["texts"]), _number(summary["nll full"][0])]
            for number in (0, 1, 2):
                value, low, high = summary[f"nll {number} − 4"]
                difference = f"{_number(value, '+')}: {_number(low)} to {_number(high)}"
                cells.append(f"{_number(summary[f'nll {number}'][0])} ({difference})")
            rows.append((*cells, _number(summary["nll 4"][0])))
    return table("model, text | keys | texts | full cache | 0 sinks | 1 | 2 | 4", rows)


def chunk_sinks() -> str:
    """Sinks per text that each chunk brings, and what they take from later tokens, in percent of all attention."""
    rows = []
    for title, parts in _chunks("sinks"):
        rows.append((title, "sinks, read alone", *(f"{mean[0]:.2f}" for mean in parts["sinks"])))
        for cache, means in parts["sink_mass"].items():
            what = cache.replace("first 1", "first 1 recomputed")
            rows.append(("", f"attention they take, {what}", *(f"{100 * mean[0]:.1f} %" for mean in means)))
    return table("model | | chunk 1 | 2 | 3 | 4", rows)


def chunk_repairs() -> str:
    """What joining costs, and what each repair gives back at equal recomputation."""
    return _repairs("in order")


def chunk_orders() -> str:
    """The same with the chunks of each text in a random order, against reading them at once in that order."""
    return _repairs("shuffled")


def _repairs(part: str) -> str:
    rows = []
    for title, result in _chunks(part):
        for arm in _arms(result):
            tokens = str(result["facts"][arm["arm"]]["tokens_per_text"])
            cells = [arm["arm"], tokens, _range(arm, "kl", 3), _range(arm, "lost", 3), _recovered(arm), _beats(arm)]
            rows.append((f"{title}, {result['texts']} texts", *cells))
    head = "model | arm | tokens recomputed per text | KL | loss | KL given back | better than random by"
    return table(head, rows)


def chunk_needles() -> str:
    """Facts of the chunks that are answered right in a chat."""
    rows = []
    for title, result in _chunks("needles"):
        for arm in result["arms"]:
            more = "" if arm["arm"] == "joined" else _range(arm, "more_than_joined", 0, 100, " %")
            answers = _range(arm, "recall", 0, 100, " %")
            where = f"{title}, {result['chats']} chats × {result['questions']}"
            rows.append((where, arm["arm"].replace("full", "read at once"), answers, more))
    return table("model | arm | right answers | more than joined", rows)


def _chunks(part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for title, name in CHUNKS.items():
        if _path(name).is_file() and part in (parts := _real(name)["parts"]):
            yield title, parts[part]["result"]


def fold() -> str:
    """What each form of the folded sink costs, and how much more than another token folded the same way."""
    rows = []
    for model, title in MODELS.items():
        part = _real("fold", model)["parts"]["forms"]
        for arm, what in FOLDS.items():
            row = part["arms"][arm]
            cells = [_signed(row["nats"]), _number(row["kl"][0]), _signed(row["more_than_controls"])]
            rows.append((f"{title}, {part['texts']}", what, *cells))
    return table("model, texts | arm | nats lost (95 %) | KL | more than its control", rows)


def fold_layers() -> str:
    """Nats of each layer, folded alone, where they can be told from 0 with or without the value."""
    rows = []
    for model, title in MODELS.items():
        parts = _real("fold", model)["parts"]
        part = parts["layers"] if "layers" in parts else parts["bands"]  # nano has four layers, one a band
        for layer in dict.fromkeys(arm.partition("@")[2] for arm in part["arms"]):
            intervals = [part["arms"][f"{form}@{layer}"]["nats"] for form in ("fold-logit", "fold-sink")]
            if any(low > 0 or high < 0 for _, low, high in intervals):
                rows.append((f"{title}, {part['texts']}", layer.partition("-")[0], *map(_signed, intervals)))
    return table("model, texts | layer | without the value | with it", rows)


def fold_heads() -> str:
    """Nats of the heads that were folded for certain, the largest estimate first."""
    rows = []
    for model, title in MODELS.items():
        part = _real("fold", model)["parts"]["heads"]
        estimates = {f"{row['layer']}.{row['head']}": row["logit+value"] for row in part["heads"]}
        arms = part["exact"]["arms"]
        for head in dict.fromkeys(arm.partition("@")[2] for arm in arms):
            nats = arms[f"logit+value@{head}"]["nats"]
            if nats[1] > 0 or nats[2] < 0:
                cells = [head, _signed(nats), _number(estimates[head], "+"), _signed(arms[f"logit@{head}"]["nats"])]
                rows.append((f"{title}, {part['exact']['texts']}", *cells))
    return table("model, texts | layer.head | logit and value | estimate | logit, no value", rows)


def fold_streams() -> str:
    """Streams of as many keys with sinks kept, and with their constants instead."""
    rows = []
    for model, title in MODELS.items():
        part = _real("fold", model)["parts"]["stream"]
        where = f"{title}, {part['texts']} × {part['tokens']}, {part['keys']} keys"
        for arm, row in part["arms"].items():
            rows.append((where, arm.replace("1 sinks", "1 sink"), _signed(row["nats"]), _number(row["kl"][0])))
    return table("model, texts | cache | nats lost (95 %) | KL", rows)


def fold_written() -> str:
    """Windows in every layer: without a sink, with its logit in its place, and as it is written for engines."""
    names = {"windows": "windows, no sink", "folded": "windows, `fold-logit`", "written": "written, GraniteSWA"}
    names |= {"written against folded": "written, more than folded"}
    rows = []
    for model, title in MODELS.items():
        part = _real("fold", model)["parts"]["written"]
        where = f"{title}, {part['texts']} × {part['tokens']}, windows of {part['keys']}"
        rows += [(where, names[arm], _signed(row["nats"])) for arm, row in part["arms"].items()]
    return table("model, texts | model read | nats lost (95 %)", rows)


def fold_tuning() -> str:
    """What is left of the cost of a sink without a value after training with it."""
    rows = []
    for model, title in MODELS.items():
        if not _path("fold_tuning", model).is_file():
            continue
        stored = _real("fold_tuning", model)
        for arm, row in stored["arms"].items():
            if not arm.startswith("no fold"):
                against = "nats" if arm.endswith("b alone") else "against_no_fold"
                cells = [_signed(row[step][against]) for step in ("0", "10", "30", "100")]
                rows.append((f"{title}, {stored['scored']}", arm, *cells))
    return table("model, texts | arm | 0 steps | 10 steps | 30 steps | 100 steps", rows)


GRADIENTS = {
    "ratio": "R_GS at the norm's output",
    "bloat": "bloat",
    "compress": "compress",
    "norm_factor": "of which 1 / rms(x)",
    "change": "change",
}


def gradients() -> str:
    """Where the gradient goes in two models, at the first token and at another, before attention."""
    found = {title: _real("gradient_sinks", model) for model, title in MODELS.items()}
    rows = []
    for name, what in GRADIENTS.items():
        cells = (
            each[token][name]["mixer"]["median layer"] for each in found.values() for token in ("first", "control")
        )
        rows.append((what, *(f"{_three(value)} ({_three(low)} to {_three(high)})" for value, low, high in cells)))
    heads = (f"{title}, {each['texts']} texts: first token | control" for title, each in found.items())
    return table(" | ".join(["", *heads]), rows)


def _three(x: float) -> str:
    """Three digits, without an exponent."""
    return f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}"


def retrofit() -> str:
    """What training with an attached operation changed in SmolLM2, before it and after some steps."""
    return _retrofitted("removing_a_sink", 2)


def retrofit_nano() -> str:
    """The same of `nano`."""
    return _retrofitted("removing_a_sink_nano", 1)


def _retrofitted(name: str, stages_shown: int) -> str:
    """Each arm after its last so many stages."""
    rows = []
    for arm, stages in _real(name)["arms"].items():
        before = stages["0"]
        for steps in sorted(stages.keys() - {"0"}, key=int)[-stages_shown:]:
            after = stages[steps]
            slots = f"{100 * before['slots']:.2g} → {100 * after['slots']:.2g}" if "sink_logit" in arm else ""
            ratios = [f"{_ratio(before[each])} → {_ratio(after[each])}" if each in after else "" for each in RATIOS]
            costs = [_moved(before, after, each, 3) for each in ("a8-tensor", "a8-token")]
            moved = _moved(before, after, "nll"), _moved(before, after, "sink_rate", 1)
            learned = f"`{arm.partition(',')[0]}`{arm[arm.index(',') :]}".replace("`softmax`", "none")
            rows.append((learned, steps, *moved, slots, *ratios, *costs))
    head = "operation, what learns | steps | NLL | sink rate, % | slots, % | norm × | largest × | a8-tensor | a8-token"
    return table(head, rows)


def _ratio(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.2g}"


def _moved(before: dict[str, Any], after: dict[str, Any], name: str, digits: int = 2) -> str:
    """A number before and after, with the interval after."""
    if name not in after:
        return ""
    (first, *_), (value, low, high) = before[name], after[name]
    return f"{first:.{digits}f} → {value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def origin() -> str:
    """What each test of a sink's origin does, in each of four models."""
    rows = []
    for name, title in ORIGINS.items():
        stored = _real(f"origin_{name}")
        rate, *ends = (f"{100 * each:.1f}" for each in stored["unchanged"]["rate_at_sink"])
        unchanged = f"{rate} ({' to '.join(ends)})"
        rows.append((f"{title}, {stored['texts']} × {stored['tokens']}", "unchanged", *[""] * 3, unchanged, "", "0"))
        for row in stored["tests"]:
            score, at = ("nats" if "nats" in row else "kl"), ("rate_at_test" if row["arm"] in MAKES else "rate_at_sink")
            cost, more = ([row[f"{each}{end}"] for end in ("", "_low", "_high")] for each in (score, "more"))
            cells = [f"`{row['arm']}`", row["word"], f"{'KL ' if score == 'kl' else ''}{_signed(cost)}", _signed(more)]
            rows.append((title, *cells, _range(row, at, 1), f"{row['rate_of_controls']:.1f}", f"{row['sink_at']}"))
    head = "model | test | finding | nats lost | more than its control | rate, % | under its control | largest at"
    return table(head, rows)


def rotation() -> str:
    """KL of caches, plain and rotated, and what protecting the sink gives back behind rotation."""
    kinds = ("protected", "first", "last", "random")
    arms = ("plain", "plain_protected", "rotated", *(f"rotated_{kind}" for kind in kinds))
    rows = []
    stored = _real("rotated_caches")["models"]
    for model, title in {REAL_MODEL: "SmolLM2", "nano": "nano"}.items():
        for corpus, schemes in stored[model].items():
            for scheme, row in schemes.items():
                cells = [title, corpus.partition(":")[2], f"`{scheme}`", f"{32 * row['bytes_share']:.1f}"]
                gain = f"{_small(row['gain'])} ({_small(row['gain_low'])} to {_small(row['gain_high'])})"
                rows.append((*cells, *(_small(row[arm]) for arm in arms), gain, f"**{row['redundant']}**"))
    kept = "+ sink | + first | + last | + random"
    return table(f"model | texts | cache | bits | plain | + sink | rotated | {kept} | gives back | redundant", rows)


def policies() -> str:
    """Every stored comparison of policies on SmolLM2, with the controls of each cost level once."""
    rows = []
    for budget in ("cache-10", "cache-25", "cache-50", "cache-long", "cache-engines"):
        for where, result in _trials(f"{budget}-*"):
            for arm in _arms(result):
                rows.append((where, arm["arm"], _range(arm, "kl", 3), _range(arm, "lost", 3), _beats(arm), arm["word"]))
    return table("texts | arm | KL | nats lost | better than its controls by | in a word", rows)


def sinks_worth() -> str:
    """What streams and evicted caches of SmolLM2 lose without the sink, with random tokens kept in its place."""
    rows = []
    for where, result in _trials("cache-sinks-*"):
        for arm in result["arms"]:
            if arm["role"] in ("arm", "control"):
                rows.append((where, arm["arm"], _range(arm, "kl", 3), _range(arm, "lost", 3), arm["word"]))
    return table("texts | arm | KL | nats lost | in a word", rows)


def rounded_caches() -> str:
    """Caches as engines round them, on SmolLM2; bytes as a share of those of a cache in 16 bits."""
    rows = []
    for where, result in _trials("cache-rounded-*"):
        full = next(arm["bytes"] for arm in result["arms"] if arm["role"] == "reference") / 2  # held in fp32 here
        for arm in _arms(result):
            cells = _range(arm, "kl", 4), _range(arm, "lost", 4), _range(arm, "agreement", 1, 100)
            rows.append((where, f"`{arm['arm']}`", f"{100 * arm['bytes'] / full:.0f}", *cells, arm["word"]))
    return table("texts | cache | bytes, % of 16 bits | KL | nats lost | same token, % | in a word", rows)


def protected_caches() -> str:
    """What protecting tokens gives back in rounded caches of SmolLM2."""
    return _protected("quantize-kv*", 4)


def protected_activations() -> str:
    """The same where its activations are rounded."""
    return _protected("quantize-a8-*", 3)


def prefixes() -> str:
    """What a prefix gives back there, and what its text alone does."""
    rows = []
    for where, result in _trials("quantize-prefix-*"):
        for arm in _arms(result):
            tokens = result["facts"][arm["arm"]].get("tokens_per_text", 0)
            cells = f"{tokens:.3g}", _range(arm, "kl", 3), _range(arm, "lost", 3), _recovered(arm)
            rows.append((where, arm["arm"], *cells))
    return table("texts | arm | tokens of the prefix, or protected | KL | nats lost | gives back", rows)


def _protected(pattern: str, least: int) -> str:
    """`least`: digits of a KL after the point; more where two of a scheme's cost come later."""
    rows = []
    for where, result in _trials(pattern):
        cost = next(arm["kl"] for arm in _arms(result) if arm["role"] == "baseline")
        digits = max(least, 1 - math.floor(math.log10(cost)))
        for arm in _arms(result):
            tokens = "nothing", ""
            if arm["role"] == "arm":
                tokens = arm["arm"], f"{result['facts'][arm['arm']]['tokens_per_text']:.3g}"
            cells = _range(arm, "kl", digits), _recovered(arm), _beats(arm, digits), arm["word"]
            rows.append((where, f"`{result['scheme']}`", *tokens, *cells))
    head = "texts | scheme | protected | tokens of a text | KL | gives back | better than random tokens by | in a word"
    return table(head, rows)


def server_weights() -> str:
    """KL and bytes of weight schemes on `nano`; those that search or fit score half of the texts."""
    rows = (
        (
            f"`{row['scheme']}`",
            str(row["texts"]),
            f"{row['kl']:.4f} ({row['kl_low']:.4f} to {row['kl_high']:.4f})",
            f"{100 * row['bytes_share']:.0f} %",
        )
        for row in _benchmark("server_weights")["schemes"]
    )
    return table("scheme | texts | KL, nats a token | bytes of the matrices, of 16 bits", rows)


def caches_compared() -> str:
    """KL and bytes of quantized caches of `nano`, by bits, those of transformers along their better axis."""
    caches = _details("quantized_cache")["nano, predictions and bytes a text"]
    names = (name for name in caches if name != "full" and "axis 1" not in name)
    rows = []
    for name in sorted(names, key=lambda name: (name.split()[1], name.endswith("flush 128"))):
        row = caches[name]
        rows.append((name, _range(row, "kl", 4), *(f"{row[each] / 1024:.1f}" for each in ("held", "held_at_end"))))
    return table("cache | KL(full ‖ cache), nats a token | KiB a text after the context | at its end", rows)


def kvpress() -> str:
    """Our policies and kvpress's on the same tensors."""
    rows = []
    for row in _benchmark("kvpress_parity")["rows"]:
        apart, common = row.get("scores_apart"), row.get("kept_in_common")
        cells = "" if apart is None else f"{apart:.0e}", "" if common is None else f"{100 * common:.1f} %"
        times = f"{1000 * row['ours']:.0f} ms / {1000 * row['theirs']:.0f} ms"
        rows.append((row["policy"], *cells, times, row.get("note", "")))
    head = "policy | largest difference of scores | kept keys in common | prompt of 2048: ours / kvpress | "
    return table(head, rows)


def card() -> str:
    """The report card of SmolLM2 as a terminal shows it."""
    return _screen("default")


def card_in_full() -> str:
    """The same with `--full`."""
    return _screen("full")


def _screen(tier: str) -> str:
    return "\n".join(["```text", *_real("card_smollm2")[tier]["lines"], "```"])


def _trials(pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stored trials on SmolLM2, each with the texts that it ran on."""
    for path in sorted((RESULTS / "real" / "trials").glob(f"{pattern}.json"), reverse=True):
        result = json.loads(path.read_text())["result"]
        yield f"{result['texts']} of {path.stem.rpartition('-')[2]}, {result['tokens']} tokens", result


def _arms(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (arm for arm in result["arms"] if arm["role"] in ("arm", "baseline"))


def _recovered(arm: dict[str, Any]) -> str:
    return "" if arm["recovered"] is None else _range(arm, "recovered", 0, 100, " %")


def _beats(arm: dict[str, Any], digits: int = 3) -> str:
    return "" if arm["beats_by"] is None else _range(arm, "beats_by", digits)


def _path(name: str, model: str = "") -> Path:
    ending = f"_{model.partition('-')[0].lower()}" if model else ""
    return RESULTS / "real" / f"{name}{ending}.json"


def _real(name: str, model: str = "") -> Any:
    return read(f"real/{_path(name, model).stem}")


def _range(row: dict[str, Any], name: str, digits: int, times: float = 1, unit: str = "") -> str:
    value, low, high = (f"{times * row[key]:.{digits}f}" for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value}{unit} ({low} to {high})".replace("-", "−")


def _signed(interval: list[float]) -> str:
    value, low, high = interval
    return f"{_number(value, '+')} ({_number(low)} to {_number(high)})"


def _number(x: float, sign: str = "") -> str:
    return f"{round(x, 3) + 0.0:{sign}.3f}".replace("-", "−")  # no "−0.000"


def _small(nats: float) -> str:
    return (f"{nats:.3f}" if abs(nats) >= 0.2 else f"{nats:.4f}").replace("-", "−")


def matters() -> str:
    """What each change of SmolLM2's sink costs, against the same change of other tokens."""
    return _changed(_changes())


def matters_in_chat() -> str:
    """The same in its chat format, on more and longer texts, of prose and of code."""
    rows = [(texts, *row) for texts, result in _trials("intervene-*") for row in _changes_of(result["arms"])]
    return table(f"texts | {CHANGED}", rows)


def other_changes() -> str:
    """What single other changes of SmolLM2 cost, against the same change elsewhere."""
    rows = []
    for change in CHANGES:
        for texts, result in _trials(f"{change}-*"):
            for arm in (arm for arm in _arms(result) if arm["role"] == "arm"):
                cells = _range(arm, "lost", 3), _range(arm, "kl", 3), _beats(arm), arm["word"]
                rows.append((texts, f"`{change}`", *cells))
    return table(f"texts | {CHANGED.replace('arm', '`--what`', 1)}", rows)


CHANGED = "arm | nats lost (95 %) | KL | better than its controls by (KL) | in a word"


def _changed(arms: Iterable[dict[str, Any]]) -> str:
    return table(CHANGED, _changes_of(arms))


def _changes_of(arms: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for arm in arms:
        if arm["role"] == "arm":
            yield f"`{arm['arm']}`", _range(arm, "lost", 3), _range(arm, "kl", 3), _beats(arm), arm["word"]


def first_tokens() -> str:
    """Which tokens are sinks in SmolLM2, without a BOS, with one and with two."""
    stored = _real("which_tokens_smollm2")
    strong, inside = [], []
    for name in ("no BOS", "one BOS", "two BOS"):
        part = stored[name]
        few = [f"{foreign(row['token'])}: {_stands(row)}" for row in part["strong"]]
        heads = sorted(row["heads"] for row in part["strong"])
        many = f"{len(few)} tokens at position 0, in {heads[0]:.0f} to {heads[-1]:.0f} % of heads"
        rates = (f"{part[f'position {position}']} %" for position in (0, 1))
        strong.append((name, *rates, many if len(few) > 4 else "; ".join(few)))
        inside += [(name, foreign(row["token"]), _stands(row)) for row in part["inside"]]
    head = "input | heads with a sink at position 0 | at position 1 | tokens that are a sink in over a quarter of heads"
    return f"{table(head, strong)}\n\n{table('input | token | as a sink also elsewhere', inside)}"


def _stands(row: dict[str, Any]) -> str:
    """How often a token is a sink, where, and in how many heads."""
    where = f"at {row['first']}" if row["first"] == row["last"] else f"at {row['first']} to {row['last']}"
    return f"{row['sinks']} of {row['occurrences']}, {where}, {row['heads']:.2g} % of heads, α up to {row['alpha']}"


def strongest_keys() -> str:
    """What generated tokens of SmolLM2 look at most."""
    part = _real("which_tokens_smollm2")["generated"]
    first, second = part["value_norms"]
    says = (
        f"In SmolLM2 ({part['prompts']} prompts of {part['tokens']} tokens of prose, {part['written']} generated) "
        f"the strongest key of {100 * part['share_at_0']:.0f} % of (sample, head) pairs is position 0. There its value "
        f"has a norm of {first} (median), that of the second strongest key {second}: the two differ in kind, and a "
        "probe should see both numbers."
    )
    return fill(says, 128)


def left_out() -> str:
    """How many tokens of SmolLM2 stand out, and how many of them are its sinks."""
    part = _real("which_tokens_smollm2")["outliers"]
    fewest, most = part["more_a_text"]
    says = (
        f"In {part['texts']} texts of {part['of'] // part['texts']} tokens SmolLM2 has {part['tokens']} such tokens, "
        f"{100 * part['tokens'] / part['of']:.1f} % of all: {part['sinks']} measured sinks, the first of each text, "
        f"and {fewest} to {most} outliers more in a text."
    )
    return fill(says, 128)


def surprise() -> str:
    """What SmolLM2's sink turns out to be, from one trial."""
    arms, texts = {arm["arm"]: arm for arm in _changes()}, _real("intervene_smollm2")["result"]["texts"]
    others = (arms["random 1 for hide-sink"]["lost"] + arms["random 2 for hide-sink"]["lost"]) / 2
    hidden, muted = (_range(arms[name], "lost", 2) for name in ("hide-sink", "mute-sink"))
    swapped = _range(arms["swap-sink"], "lost", 3)
    says = (
        f"**What the sink turns out to be**: a constant. On {texts} texts of prose, hiding it from later tokens costs "
        f"SmolLM2 {hidden} nats a token, hiding other tokens {others:.2f}. Without its value the model loses {muted}, "
        f"but with the key and value of *another text's* first token in its place {swapped}: [does it "
        f"matter?](docs/does_it_matter.md), [fold](docs/fold.md)."
    )
    return fill(says, 120, break_on_hyphens=False)


def _changes() -> list[dict[str, Any]]:
    return list(_real("intervene_smollm2")["result"]["arms"])


def int8() -> str:
    """What 8-bit activations cost SmolLM2, on each corpus of its report card."""
    rows = []
    card = read(f"models/{REAL_MODEL}")
    for corpus, part in card["sections"]["int8"]["on"].items():
        for row in part["rows"]:
            if row["key"].startswith("a8"):
                scheme = row["key"].removesuffix("-protected")
                what = "sinks and outliers" if scheme != row["key"] else "nothing"
                cells = what, _range({**row, "kl": row["value"], "kl_low": row["low"], "kl_high": row["high"]}, "kl", 3)
                rows.append((corpus, f"`{scheme}`", *cells, row["word"]))
    return table("texts | activations in 8 bits | in full precision | KL | in a word", rows)


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "atlas": (atlas,),
    "check": (card, card_in_full),
    "calibration": (calibrated_everywhere, calibrated_heads, calibrated_in_chat),
    "chunks": (chunk_sinks, chunk_repairs, chunk_orders, chunk_needles),
    "does_it_matter": (matters, matters_in_chat, other_changes),
    "fold": (fold, fold_layers, fold_heads, fold_streams, fold_written, fold_tuning),
    "measure_a_large_model": (overhead,),
    "origin": (origin,),
    "outliers_and_sinks": (protected_activations,),
    "prefix": (prefixes,),
    "probes_and_saes": (strongest_keys, left_out),
    "put_off_by_one_on_your_llama": (retrofit, retrofit_nano),
    "quantized_cache": (protected_caches, caches_compared),
    "quantized_linear": (int8, server_weights),
    "rotated_caches": (rotation,),
    "sink_callback": (gradients,),
    "stream_for_ever": (sinks,),
    "which_tokens": (first_tokens,),
    "which_policy": (policies, sinks_worth, rounded_caches, steps, long),
    "write_your_own_policy": (eviction, kvpress),
    "zoo": (kernels,),
}
BLOCKS = {f"docs/{page}.md": {block.__name__: block for block in blocks} for page, blocks in PAGES.items()}
BLOCKS["README.md"] = {"surprise": surprise}
