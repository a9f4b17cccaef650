"""Results for other programs: command lines of engines, sinks as JSON, weights in plain folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import GraniteSWAForCausalLM, PreTrainedModel

from sinkscope.checks import compressor
from sinkscope.checks.card import Card, Part
from sinkscope.checks.engines import entries, lines, refusals
from sinkscope.checks.row import ADVISED, Answered, Row
from sinkscope.errors import InputError, unknown
from sinkscope.files import check_writable, replacing, write_json, write_text
from sinkscope.hooks import unwrapped
from sinkscope.interventions import FoldSink, load
from sinkscope.model import load_tokenizer
from sinkscope.model.plain import as_plain, with_window_sinks, zero_heads
from sinkscope.names import is_gguf
from sinkscope.trials import Trial
from sinkscope.trials import load as load_trial

CARD, TRIAL = "card.json", "trial.json"
SINKS_VERSION = 1  # of sinks.json
RECORDED = ("model", "revision", "model_sha256", "weights", "texts", "versions")


def export(
    source: Card | Trial | nn.Module | str | Path,
    engine: str | None = None,
    out: str | Path = "sinkscope-export",
    *,
    tokenizer: Any = None,
    fold: FoldSink | None = None,
) -> list[Path]:
    """Write a result for an engine, or a model as a plain folder; returns the files.

    - A report card with `engine`: ENGINE.txt, the lines whose arm was measured and advised, with source and warnings;
      sinks.json, the sink's position, rates per layer and head, BOS, the number of first tokens to keep.
    - A trial of caches as engines run them, with `engine`: ENGINE.txt.
    - A trial of AWQ that is better without some tokens in its calibration, for llm-compressor: llm-compressor.py, its
      recipe and the `loss_mask` of the data set (`compressor.awq_script`).
    - A model: a folder that transformers loads without sinkscope (`model.plain.as_plain`).
    - A trial of zero-sink-heads: the trial's model without these heads, as such a folder.
    - A model with a `fold` of form `logit` (`ss.fold`): a GraniteSWA whose learned sinks are the fold's logits, with
      fold.json. All layers must have a window, because the sink would count twice for queries that still see it:
      written model and fold are equal from token layers · (window − 1) + 1 on.

    Args:
        source: A result, its file or folder, a model, or a model's name.
        engine: llama.cpp, vLLM, MLX, ExecuTorch or llm-compressor; None for weights.
        out: The folder to write to.
        tokenizer: The tokenizer to write with a model; by default the one that belongs to the model's name.
        fold: The first token of the model as a constant logit.

    Raises `InputError` for an unknown engine, for one without a measured and advised line, and where nothing can be
    written; `UnsupportedModelError` for a model that cannot be written.
    """
    folder = Path(out)
    check_writable(folder)
    if fold is not None:
        if isinstance(source, Card | Trial) or engine is not None:
            raise InputError("fold: is written with a model, as weights: give the model, and no engine")
        model = source if isinstance(source, nn.Module) else load(str(source))
        folded = with_folded_sinks(model, fold)
        return _write_model(folded, _model_name(model), folder, tokenizer, {"fold.json": fold.describe()})
    result = source if isinstance(source, Card | Trial | nn.Module) else _read(source)
    if isinstance(result, nn.Module) or result is None or (engine is None and _zeroed_heads(result)):
        if engine is not None:
            found = f"'{source}' holds no result, and " if result is None else ""
            raise InputError(
                f"engine = {engine!r}: {found}weights are for all engines; lines need a result of "
                "check, cache or quantize"
            )
        return _write_weights(source if result is None else result, folder, tokenizer)  # type: ignore[arg-type]
    if engine is None:
        raise InputError(f"which engine is it for? {', '.join(_engines())}")
    name = _engine_named(engine)
    return _write_script(result, folder) if name == compressor.NAME else _write_lines(result, name, folder)


def sinks_json(card: Card) -> dict[str, Any]:
    """The sinks on a card, for sinks.json.

    `positions`, `tokens`: all sinks, and the id at each where all texts have the same one; `position` is the strongest.
    `by_layer`: layer, and the percent of its heads that have the strongest sink, with the interval's low and high.
    `by_head`: layer, head, and the percent of texts in which the head has it, with its interval.

    `modules`, `modules_by_layer`: linear maps, and blocks, with the estimated cost of rounding their inputs to 8 bits
    in nats a token, highest first (`checks.modules`). `in_16_bits`: for each scheme, the fewest maps that recover 90 %
    of its cost if they stay in 16 bits, where the card has them.
    """
    facts = {part.name: part.first.facts for part in card.parts}
    sink, bos, int8 = (facts.get(name, {}) for name in ("sink", "bos", "int8"))
    if "position" not in sink:
        raise InputError("the card has no section 'sink': make one with sinkscope check MODEL")
    return {
        "version": SINKS_VERSION,
        **{name: card.record.get(name) for name in RECORDED},
        "position": sink["position"],
        "token": sink.get("token"),
        "positions": sink.get("positions", []),
        "tokens": sink.get("tokens", []),
        "layers": sink.get("layers", []),
        "by_layer": sink.get("by_layer", []),
        "by_head": sink.get("by_head", []),
        "keep": facts.get("engines", {}).get("keep"),
        "bos": bos.get("bos"),
        "tokenizer_adds": bos.get("tokenizer_adds"),
        "template_adds": bos.get("template_adds"),
        "modules": int8.get("modules", []),
        "modules_by_layer": int8.get("layers", []),
        "in_16_bits": {name: rescue["maps"] for name, rescue in int8.get("rescue", {}).items() if rescue["maps"]},
    }


def _read(source: str | Path) -> Card | Trial | None:
    """The result in a file or folder; None if there is none, so that `source` is the name of a model."""
    path = Path(source)
    if path.is_dir() and (path / CARD).is_file():
        return Card.load(path / CARD)
    if path.is_dir() and (path / TRIAL).is_file():
        return load_trial(path / TRIAL.replace(".json", ".nc"))
    if path.is_file() and path.suffix == ".nc":
        return load_trial(path)
    if path.is_file() and path.suffix == ".json":
        if path.name == TRIAL:
            return load_trial(path.with_suffix(".nc"))
        return Card.load(path)
    return None


def _engines() -> list[str]:
    return list(dict.fromkeys(entry["engine"] for entry in entries() if "refused" not in entry))


def _engine_named(engine: str) -> str:
    """The engine's name as `engines.json` spells it. Raises `InputError` for engines without lines, with the reason."""
    names = {name.lower(): name for name in (*_engines(), *refusals())}
    if engine.lower() not in names:
        raise unknown("engine", engine, _engines())
    name = names[engine.lower()]
    if name in refusals():
        raise InputError(f"{name}: {refusals()[name]}")
    return name


def _write_script(result: Card | Trial, folder: Path) -> list[Path]:
    entry = next(entry for entry in entries() if entry["engine"] == compressor.NAME)
    path = folder / compressor.FILE
    write_text(path, compressor.awq_script(result, entry))
    return [path]


def _write_lines(result: Card | Trial, engine: str, folder: Path) -> list[Path]:
    parts = result.parts if isinstance(result, Card) else _parts_of(result)
    name = str(result.record["model"])
    chosen = [line for line in lines(parts, gguf=is_gguf(name)) if line["engine"] == engine]
    if not chosen:
        needs = [entry["needs"] for entry in entries() if entry["engine"] == engine and "line" in entry]
        rows = {(part.name, row.key): row for part in parts for row in part.rows}
        measured = [rows[need["section"], need["key"]] for need in needs if (need["section"], need["key"]) in rows]
        if not measured:
            raise InputError(
                f"{engine}: no line, since nothing of what it runs was measured: sinkscope check {name} --full"
            )
        grades = ", ".join(f"{row.finding} {row.word or row.shown()}" for row in measured)
        raise InputError(f"{engine}: no line, since what was measured is no advice: {grades}")
    texts = result.record["texts"]
    texts = "; ".join(str(each["says"]) for each in texts) if isinstance(texts, list) else f"{texts} texts"
    text = [f"# {name}: {texts}. Read in sources, not run here."]
    for line in chosen:
        text += ["", line["line"], f"# source: {line['source']}, {line['date']}"]
        text += [f"# beware: {line['beware']}"] if "beware" in line else []
    paths = [folder / f"{engine}.txt"]
    write_text(paths[0], "\n".join(text) + "\n")
    if isinstance(result, Card) and any(part.name == "sink" for part in result.parts):
        paths.append(folder / "sinks.json")
        write_json(paths[1], sinks_json(result))
    return paths


def _parts_of(trial: Trial) -> list[Part]:
    """The sections of a card that lines are looked up in, with the arms of a trial that are caches of engines."""
    facts: Mapping[str, Any] = trial.record.get("arms", {})
    rows = []
    for arm in trial.named("arm"):
        policy, name = facts.get(arm, {}).get("policy", {}), arm.partition("@")[0]  # without a stream's budget
        if isinstance(policy, Mapping) and policy.get("engine") == name:
            cost, word = trial.cost(arm), trial.word(arm)
            advice = f"{arm} is safe" if word in ADVISED else ""
            rows.append(Row(name, arm, cost, "KL a token", trial.texts, word, advice=advice))
    answers = {"": Answered(rows=tuple(rows))}
    return [Part("cache", "Cache bits", answers), Part("engines", "As engines cache", answers)]


def _zeroed_heads(result: Card | Trial) -> Sequence[tuple[int, int]]:
    """The heads that a trial removed for all queries; empty for other results, and for trials of several such arms."""
    if isinstance(result, Card):
        return ()
    facts = result.record.get("arms", {})
    arms = [facts.get(arm, {}) for arm in result.named("arm")]
    arms = [arm for arm in arms if arm.get("name") == "ZeroHeads" and arm.get("positions") is None]
    return [(int(layer), int(head)) for layer, head in arms[0]["heads"]] if len(arms) == 1 else ()


def with_folded_sinks(model: nn.Module, fold: FoldSink) -> GraniteSWAForCausalLM:
    """`model` with the fold's logits as learned sinks, for queries whose window has left the folded token behind.

    Raises `InputError` for another form than `logit`, other tokens than the first, and a fold of only some layers;
    `UnsupportedModelError` as `model.plain.with_window_sinks` does.
    """
    if fold.form != "logit":
        raise InputError(f"form = '{fold.form}': a learned sink has a logit and no value, so form='logit' is written")
    if [position for position, _ in fold.targets.pairs()] != [0] or fold.layers is not None:
        raise InputError("a learned sink stands for one token in all layers: fold position 0 (on='positions:0') in all")
    (_, first), *_ = fold.targets.pairs()
    return with_window_sinks(model, [logits[:, 0] for logits in fold.constants.logits[first]])


def _write_weights(source: nn.Module | Trial | str | Path, folder: Path, tokenizer: Any) -> list[Path]:
    name: str | None
    files = {}
    if isinstance(source, Trial):
        name, heads = str(source.record["model"]), _zeroed_heads(source)
        model = load(name)
        zero_heads(model, heads)
        files["zero_heads.json"] = {"model": name, "zero_heads": [list(head) for head in heads]}
    elif isinstance(source, nn.Module):
        model = unwrapped(source)
        name = _model_name(model)
    else:
        name = str(source)
        model = load(name)
    return _write_model(as_plain(model), name, folder, tokenizer, files)


def _model_name(model: nn.Module) -> str | None:
    return str(getattr(getattr(unwrapped(model), "config", None), "name_or_path", "") or "") or None


def _write_model(
    model: PreTrainedModel, name: str | None, folder: Path, tokenizer: Any, files: Mapping[str, Any]
) -> list[Path]:
    """Write the model, its tokenizer and further JSON files into a new folder, all or none; returns the files."""
    if tokenizer is None and name is not None:
        try:
            tokenizer = load_tokenizer(name)
        except InputError:
            tokenizer = None
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: name a new folder")
    with replacing(folder, lambda _: ()) as draft:
        model.save_pretrained(draft)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)
        for file, content in files.items():
            write_text(draft / file, json.dumps(content) + "\n")
    return sorted(path for path in folder.iterdir() if path.is_file())
