"""The atlas: one validated JSON file per model, its report card without texts, and the table of all models."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from sinkscope.checks.card import FLAGS, SCHEMA, Card
from sinkscope.checks.row import ADVISED, ORDER
from sinkscope.checks.subject import PROSE
from sinkscope.data import corpus_digest
from sinkscope.errors import InputError
from sinkscope.files import write_json

MOST_NATS = 50.0
LIMITS = {"% of heads": (0.0, 100.0), "% of attention": (0.0, 100.0), "KL a token": (0.0, MOST_NATS)}
"""Smallest and largest value by unit; other units have −50 to 50."""
TEXT_FIELDS = ("name", "says", "n", "sha256", "corpus_sha256")
DROPPED = ("values", "finding")  # fields of rows
DROPPED_FACTS = ("by_head", "rescue")
LEAST = 24  # texts of each kind
MOST = 2_000  # entries of a fact
REASON = 250  # characters of a reason
WORD = r"[^\s\"'{}]{0,100}( whole)?"  # a name of a layer, a scheme or a token
PHRASE = r"[\w:,+ -]{0,60}"  # how many texts, how long, of which kind

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Named = Annotated[str, Field(min_length=1, max_length=200)]
Flag = Annotated[str, Field(pattern=f"^({'|'.join(FLAGS)})$")]
Phrase = Annotated[str, Field(max_length=REASON)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Texts(_Part):
    name: Named
    says: Phrase
    n: int = Field(ge=LEAST)
    sha256: Hash
    corpus_sha256: Hash | None = None

    @model_validator(mode="after")
    def _are_ours(self) -> _Texts:
        """Prose is that of this package. Code is that of installed packages, whose versions the file has."""
        if PROSE in self.name and self.corpus_sha256 != corpus_digest(PROSE):
            raise ValueError("its prose is not that of this version: check the model again with this version")
        return self


class _Row(_Part):
    key: Named
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: Phrase = ""
    n: NonNegativeInt = 0
    word: Literal["", "breaks", "costs", "cannot tell", "small", "free"] = ""
    why: Phrase = ""
    advice: Phrase = ""
    bytes: NonNegativeFloat | None = None
    of_16: NonNegativeFloat | None = None
    flags: list[Flag] = []

    @model_validator(mode="after")
    def _is_within(self) -> _Row:
        ends = [end for end in (self.low, self.high) if end is not None]
        if not self.unit and self.value is None and not ends:
            return self
        smallest, largest = LIMITS.get(self.unit, (-MOST_NATS, MOST_NATS))
        if self.value is None or not smallest <= self.value <= largest:
            raise ValueError(f"{self.key}: {self.value} {self.unit} is out of bounds ({smallest:g} to {largest:g})")
        if len(ends) == 1:
            raise ValueError(f"{self.key}: an interval has two ends")
        # Student's t over texts may reach below 0 where the numbers themselves cannot.
        lowest = smallest if self.unit.startswith("%") else -MOST_NATS
        if outside := [end for end in ends if not lowest <= end <= largest]:
            raise ValueError(f"{self.key}: {outside[0]} {self.unit} is out of bounds ({lowest:g} to {largest:g})")
        if ends and not ends[0] <= self.value <= ends[1]:
            raise ValueError(f"{self.key}: {self.value} is not within its interval ({self.low} to {self.high})")
        if self.n < 4:
            raise ValueError(f"{self.key}: n = {self.n}: at least 4 texts")
        return self


class _Answer(_Part):
    rows: list[_Row]
    facts: dict[str, Any]
    not_run: Annotated[str, Field(min_length=1, max_length=REASON)] | None = None

    @model_validator(mode="after")
    def _are_single_numbers(self) -> _Answer:
        """Facts are numbers and names without blanks. No row is there twice."""
        keys = [row.key for row in self.rows]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(f"row {twice[0]} is there twice")
        for name, value in self.facts.items():
            _check_fact(name, value, 0)
        return self


def _check_fact(name: str, value: Any, depth: int) -> None:
    if isinstance(value, dict | list) and depth < 5:
        if len(value) > MOST:
            raise ValueError(f"facts.{name} has {len(value)} entries, at most {MOST}")
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_fact(name, each, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"facts.{name} is not finite")
    elif not (value is None or isinstance(value, bool | int | float)) and not (
        isinstance(value, str) and re.fullmatch(PHRASE if name == "texts" and not depth else WORD, value)
    ):
        raise ValueError(f"facts.{name} is neither a number nor a name: {str(value)[:40]!r}")


class _Section(_Part):
    seconds: NonNegativeFloat
    on: dict[str, _Answer] = Field(min_length=1)


class _Entry(_Part):
    layout: Literal[1] = Field(alias="schema")
    model: Named
    revision: str | None
    weights: Phrase
    parameters: PositiveInt
    dtype: Named
    seconds: NonNegativeFloat
    texts: list[_Texts] = Field(min_length=1)
    versions: dict[Named, Named]
    controls: NonNegativeInt
    seed: int
    model_sha256: Hash
    flags: list[Flag]
    sections: dict[str, _Section] = Field(min_length=1)

    @model_validator(mode="after")
    def _name_their_texts(self) -> _Entry:
        counts = {texts.name: texts.n for texts in self.texts}
        if len(counts) < len(self.texts):
            raise ValueError("two sets of texts have one name")
        for section, part in self.sections.items():
            if other := sorted(set(part.on) - set(counts)):
                raise ValueError(f"{section}: texts '{other[0]}' are none of {', '.join(sorted(counts))}")
            for name, row in ((name, row) for name, answer in part.on.items() for row in answer.rows):
                if row.n > counts[name]:
                    raise ValueError(f"{section}: {row.key}: n = {row.n}, of {counts[name]} texts")
        return self


def submission(card: Card) -> dict[str, Any]:
    """A card for the atlas: every number with its interval and n, but no text and no numbers of single texts."""
    data = card.to_json()
    fields = ("schema", "revision", "weights", "parameters", "dtype", "seconds", "versions", "controls", "seed")
    record = {name: data[name] for name in (*fields, "model_sha256", "flags")}
    record["model"] = model_id(card)
    record["texts"] = [{name: texts[name] for name in TEXT_FIELDS} for texts in data["texts"]]
    sections = {}
    for name, part in data["sections"].items():
        by_texts = {}
        for texts, answered in part["on"].items():
            rows = [{key: value for key, value in row.items() if key not in DROPPED} for row in answered["rows"]]
            facts = {key: value for key, value in answered.get("facts", {}).items() if key not in DROPPED_FACTS}
            missing = {"not_run": answered["not_run"][:REASON]} if "not_run" in answered else {}
            by_texts[texts] = {"rows": rows, "facts": facts, **missing}
        sections[name] = {"seconds": part["seconds"], "on": by_texts}
    return {**record, "sections": sections}


def model_id(card: Card) -> str:
    """The model's name; for a GGUF file whose name is not that of its model (model.gguf), the one in its metadata."""
    name, about = str(card.record["model"]), card.record.get("gguf") or {}
    basename = about.get("basename") or about.get("name")
    if not basename or _letters(basename) in _letters(name):
        return name
    return str(about.get("name") or basename)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def write_submission(card: Card, folder: Path) -> Path:
    """Write a submission to `folder`, named after the model. Raises `InputError` if it does not validate."""
    data = submission(card)
    validate(data, str(data["model"]))
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', str(data['model'])).strip('-.')}.json"
    write_json(path, data)
    return path


def validate(data: Any, name: str) -> None:
    """Raises `InputError` for the first field that is missing, of another kind, or out of bounds.

    `name`: what messages call the file.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(
            f"{name}: expected a card of schema {SCHEMA}: write it with sinkscope check MODEL --full --submit DIR"
        )
    try:
        _Entry.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where, what = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise InputError(f"{name}: {where}: {what}" if where else f"{name}: {what}") from error


def read_entries(folder: Path) -> list[dict[str, Any]]:
    """The submissions in a folder, by file name. Raises `InputError` for one that does not validate."""
    entries = []
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
        validate(data, path.name)
        entries.append(data)
    return entries


def table(submissions: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per model: size, BOS, heads with a sink, block of the jump, cost of hiding and folding it, cache bits."""
    return pd.DataFrame([_row(data) for data in submissions])


def _row(data: Mapping[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for section, part in data["sections"].items():
        first, *others = part["on"].values()
        facts[section] = first.get("facts", {})
        rows |= {row["key"]: row for row in first["rows"]}
        for row in (row for other in others for row in other["rows"] if row.get("word") and row["key"] in rows):
            words = row["word"], rows[row["key"]].get("word") or row["word"]
            rows[row["key"]] = {**rows[row["key"]], "word": min(words, key=ORDER.index)}  # the worse one
    bits = [bits for bits in (2, 4, 8) if rows.get(f"kv{bits}", {}).get("word") in ADVISED]
    protected = [bits for bits in (2, 4, 8) if rows.get(f"kv{bits}-protected", {}).get("word") in ADVISED]
    bos = {0: "none", 1: "one", 2: "two"}.get(facts.get("bos", {}).get("tokenizer_adds"), "")
    return {
        "model": data["model"],
        "parameters": f"{data['parameters'] / 1e6:,.1f} M",
        "weights": data["weights"],
        "BOS that the tokenizer adds": bos,
        "heads with a sink, %": _number(rows.get("rate"), 0),
        "block of the jump": facts.get("sink", {}).get("block"),
        "hiding it, nats": _number(rows.get("hide-sink"), 2),
        "folding it, nats": _number(rows.get("fold-sink"), 2),
        "bits the cache bears": min(bits, default=16) if any(key.startswith("kv") for key in rows) else None,
        "with the sink protected": min(protected, default=16) if "kv2-protected" in rows else None,
        "texts": "; ".join(f"{each['n']} × {each['name']}" for each in data["texts"] if "plain" not in each["name"]),
    }


def _number(row: Mapping[str, Any] | None, digits: int) -> str:
    if row is None or row.get("value") is None:
        return ""
    value = f"{row['value']:.{digits}f}"
    if row.get("low") is None or row.get("high") is None:
        return value
    return f"{value} ({row['low']:.{digits}f} to {row['high']:.{digits}f})"
