"""`python -m tools.pages.costs`: write tables of stored benchmarks into pages, between their marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.sides import REAL, RESULTS
from sinkscope.trials.origin import MAKES
from tools.pages import DOCS, between, write

REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODELS = {REAL_MODEL: "SmolLM2-135M-Instruct", "nano": "`nano`"}
ORIGINS = {"smollm2": "SmolLM2", "nano": "`nano`", "nano_hybrid": "`nano-hybrid`", "nano_encoder": "`nano-encoder`"}
CORPORA = {"python:prose": "docstrings", "python:code": "code"}
SINKS = ("0", "1", "2", "4")
KEPT = " [freed memory: kept]"


def steps() -> str:
    """A decoded token with each policy against a `DynamicCache` that stores as many keys."""
    figures = json.loads((RESULTS / f"eviction_{REAL_MODEL}.json").read_text())["figures"]
    rows = {figure["what"].partition(": ")[2]: figure["ratio"] for figure in figures}
    lines = ["| policy | time × | its matrix products alone |", "|---|---|---|"]
    for what, ratio in sorted(rows.items(), key=lambda row: row[1]):
        if what.startswith("a token with "):
            policy = what.removeprefix("a token with ").partition(" /")[0]
            alone = rows.get(what.replace("a token with", "products alone of a token with").replace(" /", " + plain /"))
            lines.append(f"| {policy} | {ratio:.2f} | {'' if alone is None else f'{alone:.2f}'} |")
    return "\n".join(lines)


def eviction() -> str:
    """The same of a random Llama, and what ragged heads cost, each with its bound."""
    figures = json.loads((RESULTS / "eviction.json").read_text())["figures"]
    kept = [figure for figure in figures if figure["unit"] != "MB" or "ragged" in figure["what"]]
    return _figures([figure for figure in kept if figure["what"].endswith(KEPT)])


def long() -> str:
    """A step with all keys of a long text against one with a quarter of them."""
    return _figures(json.loads((RESULTS / "eviction_long.json").read_text())["figures"])


def overhead() -> str:
    """What measuring takes, as multiples of the forward pass, for each batch of texts."""
    figures = json.loads((RESULTS / f"measure_overhead_{REAL_MODEL}.json").read_text())["figures"]
    batches: dict[str, dict[str, float]] = {}
    for figure in figures:
        texts, _, side = figure["what"].removeprefix(f"{REAL_MODEL}, ").partition(": ")
        if side.endswith(" / forward"):
            batches.setdefault(texts, {})[side.removesuffix(" / forward")] = figure["ratio"]
    sides = list(dict.fromkeys(side for ratios in batches.values() for side in ratios))
    rows = [
        f"| {texts} | {' | '.join(f'{ratios[side]:.2f}' if side in ratios else '' for side in sides)} |"
        for texts, ratios in batches.items()
    ]
    return "\n".join([f"| texts | {' | '.join(sides)} |", f"|---|{'---|' * len(sides)}", *rows])


def _figures(figures: list[dict[str, Any]]) -> str:
    lines = ["| what | ratio | bound |", "|---|---|---|"]
    for figure in figures:
        bound = "" if figure["bound"] == "none" else figure["bound"] + ("" if figure["reached"] else ", not reached")
        lines.append(f"| {figure['what'].removesuffix(KEPT)} | {figure['ratio']:.2f} | {bound} |")
    return "\n".join(lines)


def sinks() -> str:
    """NLL with each number of sinks at the same number of keys, and its difference from four sinks."""
    lines = ["| model, text | keys | texts | full cache | 0 sinks | 1 | 2 | 4 |", "|---|---|---|---|---|---|---|---|"]
    models = json.loads((REAL / "streaming_sinks.json").read_text())["models"]
    for model, title in MODELS.items():
        for name, part in models[model].items():
            corpus, keys = name.removesuffix(" keys").split(", ")
            summary = part["summary"]
            cells = [f"{title}, {CORPORA[corpus]}", keys, str(summary["texts"]), _number(summary["nll full"][0])]
            lines.append(f"| {' | '.join([*cells, *(_cell(summary, number) for number in SINKS)])} |")
    return "\n".join(lines)


def _cell(summary: dict[str, Any], sinks: str) -> str:
    mean = _number(summary[f"nll {sinks}"][0])
    if sinks == "4":
        return mean
    value, low, high = summary[f"nll {sinks} − 4"]
    return f"{mean} ({_number(value, '+')}: {_number(low)} to {_number(high)})"


def _number(x: float, sign: str = "") -> str:
    return f"{round(x, 3) + 0.0:{sign}.3f}".replace("-", "−")  # no "−0.000"


def chunk_sinks() -> str:
    """Sinks per text that each chunk brings, and what they take from later tokens, in percent of all attention."""
    lines = ["| model | | chunk 1 | 2 | 3 | 4 |", "|---|---|---|---|---|---|"]
    for title, stored in _chunks():
        found = stored["parts"]["sinks"]["result"]
        lines.append(f"| {title} | sinks, read alone | {' | '.join(f'{mean[0]:.2f}' for mean in found['sinks'])} |")
        for cache, means in found["sink_mass"].items():
            what = cache.replace("first 1", "first 1 recomputed")
            lines.append(f"| | attention they take, {what} | {' | '.join(f'{100 * m[0]:.1f} %' for m in means)} |")
    return "\n".join(lines)


def chunk_repairs() -> str:
    """What joining costs, and what each repair gives back at equal recomputation."""
    return _repairs("in order")


def chunk_orders() -> str:
    """The same with the chunks of each text in a random order, against reading them at once in that order."""
    return _repairs("shuffled")


def chunk_needles() -> str:
    """Facts of the chunks that are answered right in a chat."""
    lines = ["| model | arm | right answers | more than joined |", "|---|---|---|---|"]
    for title, stored in _chunks():
        if "needles" in stored["parts"]:
            result = stored["parts"]["needles"]["result"]
            of = f"{title}, {result['chats']} chats × {result['questions']}"
            for arm in result["arms"]:
                cells = [of, arm["arm"].replace("full", "read at once"), _range(arm, "recall", 0, 100, " %")]
                more = "" if arm["arm"] == "joined" else _range(arm, "more_than_joined", 0, 100, " %")
                lines.append(f"| {' | '.join([*cells, more])} |")
    return "\n".join(lines)


def _repairs(part: str) -> str:
    lines = [
        "| model | arm | tokens recomputed per text | KL | loss | KL given back | better than random by |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, stored in _chunks():
        if part not in stored["parts"]:
            continue
        result = stored["parts"][part]["result"]
        for arm in result["arms"]:
            if arm["role"] in ("baseline", "arm"):
                given = "" if arm["recovered"] is None else _range(arm, "recovered", 0, 100, " %")
                better = "" if arm["beats_by"] is None else _range(arm, "beats_by", 3)
                cells = [
                    str(result["facts"][arm["arm"]]["tokens_per_text"]),
                    _range(arm, "kl", 3),
                    _range(arm, "lost", 3),
                ]
                lines.append(
                    f"| {title}, {result['texts']} texts | {' | '.join([arm['arm'], *cells, given, better])} |"
                )
    return "\n".join(lines)


def _range(row: dict[str, Any], name: str, digits: int, times: float = 1, unit: str = "") -> str:
    value, low, high = (f"{times * row[key]:.{digits}f}" for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value}{unit} ({low} to {high})".replace("-", "−")


def _chunks() -> list[tuple[str, dict[str, Any]]]:
    files = {"SmolLM2": "joined_chunks", "`nano`": "joined_chunks_nano"}
    paths = {title: REAL / f"{name}.json" for title, name in files.items()}
    return [(title, json.loads(path.read_text())) for title, path in paths.items() if path.is_file()]


FOLDS = {
    "fold-logit": "`fold-logit`: logit, no value",
    "fold-sink": "`fold-sink`: logit and value",
    "fold-key": "`fold-key`: key and value",
}


def fold() -> str:
    """What each form of the folded sink costs, and how much more than another token folded the same way."""
    lines = ["| model, texts | arm | nats lost (95 %) | KL | more than its control |", "|---|---|---|---|---|"]
    for model, title in MODELS.items():
        part = _stored("fold", model)["parts"]["forms"]
        for arm, what in FOLDS.items():
            row = part["arms"][arm]
            cells = [_signed(row["nats"]), _number(row["kl"][0]), _signed(row["more_than_controls"])]
            lines.append(f"| {title}, {part['texts']} | {' | '.join([what, *cells])} |")
    return "\n".join(lines)


def fold_layers() -> str:
    """Nats of each layer, folded alone, where they can be told from 0 with or without the value."""
    forms = ("fold-logit", "fold-sink")
    lines = ["| model, texts | layer | without the value | with it |", "|---|---|---|---|"]
    for model, title in MODELS.items():
        parts = _stored("fold", model)["parts"]
        part = parts["layers"] if "layers" in parts else parts["bands"]  # nano has four layers, one a band
        for layer in dict.fromkeys(arm.partition("@")[2] for arm in part["arms"]):
            found = [part["arms"][f"{form}@{layer}"]["nats"] for form in forms]
            if any(low > 0 or high < 0 for _, low, high in found):
                cells = [f"{title}, {part['texts']}", layer.partition("-")[0], *map(_signed, found)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def fold_heads() -> str:
    """Nats of the heads that were folded for certain, the dearest estimate first."""
    lines = ["| model, texts | layer.head | logit and value | estimate | logit, no value |", "|---|---|---|---|---|"]
    for model, title in MODELS.items():
        part = _stored("fold", model)["parts"]["heads"]
        estimates = {f"{row['layer']}.{row['head']}": row["logit+value"] for row in part["heads"]}
        arms = part["exact"]["arms"]
        for head in dict.fromkeys(arm.partition("@")[2] for arm in arms):
            found = arms[f"logit+value@{head}"]["nats"]
            if found[1] > 0 or found[2] < 0:
                cells = [f"{title}, {part['exact']['texts']}", head, _signed(found), _number(estimates[head], "+")]
                lines.append(f"| {' | '.join([*cells, _signed(arms[f'logit@{head}']['nats'])])} |")
    return "\n".join(lines)


def fold_streams() -> str:
    """Streams of as many keys with sinks kept, and with their constants instead."""
    lines = ["| model, texts | cache | nats lost (95 %) | KL |", "|---|---|---|---|"]
    for model, title in MODELS.items():
        part = _stored("fold", model)["parts"]["stream"]
        for arm, row in part["arms"].items():
            where = f"{title}, {part['texts']} × {part['tokens']}, {part['keys']} keys"
            lines.append(
                f"| {where} | {arm.replace('1 sinks', '1 sink')} | {_signed(row['nats'])} | {_number(row['kl'][0])} |"
            )
    return "\n".join(lines)


def fold_tuning() -> str:
    """What is left of the cost of a sink without a value after training with it."""
    steps = ("0", "10", "30", "100")
    lines = [f"| model, texts | arm | {' | '.join(f'{step} steps' for step in steps)} |", "|---|---|---|---|---|---|"]
    for model, title in MODELS.items():
        if not _real("fold_tuning", model).is_file():
            continue
        stored = _stored("fold_tuning", model)
        for arm, row in stored["arms"].items():
            if not arm.startswith("no fold"):
                against = "nats" if arm.endswith("b alone") else "against_no_fold"
                cells = [_signed(row[step][against]) for step in steps]
                lines.append(f"| {title}, {stored['scored']} | {' | '.join([arm, *cells])} |")
    return "\n".join(lines)


def origin() -> str:
    """What each test of a sink's origin does, in each of four models."""
    lines = [
        "| model | test | finding | nats lost | more than its control | rate, % | under its control | largest at |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, title in ORIGINS.items():
        stored = json.loads((REAL / f"origin_{name}.json").read_text())
        unchanged = " to ".join(f"{100 * end:.1f}" for end in stored["unchanged"]["rate_at_sink"][1:])
        rate = f"{100 * stored['unchanged']['rate_at_sink'][0]:.1f} ({unchanged})"
        lines.append(f"| {title}, {stored['texts']} × {stored['tokens']} | unchanged | | | | {rate} | | 0 |")
        for row in stored["tests"]:
            score, at = ("nats" if "nats" in row else "kl"), ("rate_at_test" if row["arm"] in MAKES else "rate_at_sink")
            cost, more = ([row[f"{each}{end}"] for end in ("", "_low", "_high")] for each in (score, "more"))
            cells = [f"`{row['arm']}`", row["word"], f"{'KL ' if score == 'kl' else ''}{_signed(cost)}", _signed(more)]
            cells += [_range(row, at, 1), f"{row['rate_of_controls']:.1f}", f"{row['sink_at']}"]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _stored(name: str, model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_real(name, model).read_text())
    return found


def _real(name: str, model: str) -> Path:
    return REAL / f"{name}_{model.partition('-')[0].lower()}.json"


def _signed(interval: list[float]) -> str:
    value, low, high = (_number(x, "+" if x is interval[0] else "") for x in interval)
    return f"{value} ({low} to {high})"


def rotation() -> str:
    """KL of caches, plain and rotated, and what protecting the sink gives back behind rotation."""
    arms = (
        "plain",
        "plain_protected",
        "rotated",
        *(f"rotated_{kept}" for kept in ("protected", "first", "last", "random")),
    )
    kept = "+ sink | + first | + last | + random"
    head = f"| model | texts | cache | bits | plain | + sink | rotated | {kept} | gives back | redundant |"
    lines = [head, f"|{'---|' * 13}"]
    stored = json.loads((REAL / "rotated_caches.json").read_text())["models"]
    for model, title in {REAL_MODEL: "SmolLM2", "nano": "nano"}.items():
        for corpus, schemes in stored[model].items():
            for scheme, row in schemes.items():
                cells = [title, corpus.partition(":")[2], f"`{scheme}`", f"{32 * row['bytes_share']:.1f}"]
                cells += [_small(row[arm]) for arm in arms]
                cells += [f"{_small(row['gain'])} ({_small(row['gain_low'])} to {_small(row['gain_high'])})"]
                cells += [f"**{row['redundant']}**"]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _small(nats: float) -> str:
    return (f"{nats:.3f}" if abs(nats) >= 0.2 else f"{nats:.4f}").replace("-", "−")


def policies() -> str:
    """Every stored comparison of policies on SmolLM2."""
    return _trials("cache-10", "cache-25", "cache-50", "cache-long", "cache-engines")


def _trials(*names: str) -> str:
    """The arms of `results/real/trials`, and the controls of each cost level once."""
    lines = ["| texts | arm | KL | nats lost | better than its controls by | in a word |", "|---|---|---|---|---|---|"]
    paths = [path for name in names for path in sorted((REAL / "trials").glob(f"{name}-*.json"), reverse=True)]
    for path in paths:
        result = json.loads(path.read_text())["result"]
        for arm in result["arms"]:
            if arm["role"] in ("arm", "baseline"):
                better = "" if arm["beats_by"] is None else _range(arm, "beats_by", 3)
                where = f"{result['texts']} of {path.stem.rpartition('-')[2]}, {result['tokens']} tokens"
                cells = [arm["arm"], _range(arm, "kl", 3), _range(arm, "lost", 3), better, arm["word"]]
                lines.append(f"| {where} | {' | '.join(cells)} |")
    return "\n".join(lines)


def protected_caches() -> str:
    """What protecting tokens gives back in rounded caches of SmolLM2."""
    return _protected("quantize-kv")


def protected_activations() -> str:
    """The same where activations are rounded."""
    return _protected("quantize-w16a8")


def _protected(name: str) -> str:
    head = (
        "| texts | scheme | protected | tokens of a text | KL | gives back | better than random tokens by | in a word |"
    )
    lines = [head, f"|{'---|' * 8}"]
    for path in sorted((REAL / "trials").glob(f"{name}*.json"), reverse=True):
        result = json.loads(path.read_text())["result"]
        for arm in result["arms"]:
            if arm["role"] not in ("arm", "baseline"):
                continue
            nothing = arm["role"] == "baseline"
            cells = [
                f"{result['texts']} of {path.stem.rpartition('-')[2]}, {result['tokens']} tokens",
                f"`{result['scheme']}`",
                "nothing" if nothing else arm["arm"],
                "" if nothing else f"{result['facts'][arm['arm']]['tokens_per_text']:.3g}",
                _range(arm, "kl", 3),
                "" if arm["recovered"] is None else _range(arm, "recovered", 0, 100, " %"),
                "" if arm["beats_by"] is None else _range(arm, "beats_by", 3),
                arm["word"],
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


BLOCKS = {
    "origin.md": (origin,),
    "fold.md": (fold, fold_layers, fold_heads, fold_streams, fold_tuning),
    "quantized_cache.md": (protected_caches,),
    "rotated_caches.md": (rotation,),
    "chunks.md": (chunk_sinks, chunk_repairs, chunk_orders, chunk_needles),
    "which_policy.md": (policies, steps, long),
    "stream_for_ever.md": (sinks,),
    "write_your_own_policy.md": (eviction,),
    "measure_a_large_model.md": (overhead,),
}


def pages() -> dict[str, str]:
    """The pages, their tables made anew."""
    made = {}
    for name, blocks in BLOCKS.items():
        text = (DOCS / name).read_text(encoding="utf-8")
        for block in blocks:
            text = between(text, block.__name__, block())
        made[name] = text
    return made


if __name__ == "__main__":
    write(pages())
