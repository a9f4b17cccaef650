"""The report card of a model: what every section found, as lines, a table, JSON, and compared with another card."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.checks.row import ORDER, Answered, Row, both, difference
from sinkscope.errors import InputError, unknown
from sinkscope.statistics import difference_interval

SCHEMA = 1
WIDTH = 118  # characters of a line
FLAGS = {
    "bos-twice": "the tokenizer puts two BOS before a text",
    "bos-twice-chat": "a rendered chat that is tokenized once more begins with two BOS",
    "no-sink": "no position is a sink",
    "learned-sink": "heads attend to learned sinks, which are no tokens",
    "breaks": "something that was tried breaks the model",
    "costs": "something that was tried costs, or breaks the model",
}
"""What `--fail-on` takes, beside KEY:WORD for a row that is so bad or worse, such as kv4:costs."""


@dataclass(frozen=True)
class Part:
    """A section of a card. `found`: by the name of the texts, the first of which is shown; `seconds`: what it took."""

    name: str
    title: str
    found: Mapping[str, Answered]
    seconds: float = 0.0

    @property
    def first(self) -> Answered:
        """What was found on the first set of texts."""
        return next(iter(self.found.values()))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The first set's rows, with what the second one says of them."""
        names = list(self.found)
        if len(names) < 2:
            return self.first.rows
        others = {row.key: row for row in self.found[names[1]].rows}
        return tuple(both(row, others.get(row.key), names) for row in self.first.rows)

    @property
    def answer(self) -> str:
        """The first set's sentences, and what does not hold on the second."""
        names = list(self.found)
        if len(names) < 2 or not self.first.answer:
            return self.first.answer
        others = {row.key: row for row in self.found[names[1]].rows}
        differ = [row for row in self.first.rows if row.key in others and others[row.key].word != row.word]
        if not differ:
            return f"{self.first.answer} All words hold on {names[1]} too."
        said = ", ".join(f"{row.finding} {others[row.key].word}" for row in differ)
        return f"{self.first.answer} Other words on {names[1]}: {said}."

    def to_json(self) -> dict[str, Any]:
        """As JSON-able data."""
        on = {name: found.to_json() for name, found in self.found.items()}
        return {"title": self.title, "seconds": round(self.seconds, 2), "on": on}


@dataclass(frozen=True)
class Card:
    """What `check` found. `record`: model, texts with their hashes, versions, seconds; `lines_for`: for engines.

    `str` and notebooks show `lines()`.
    """

    record: Mapping[str, Any]
    parts: tuple[Part, ...]
    lines_for: tuple[Mapping[str, str], ...] = ()

    def part(self, name: str) -> Part:
        """A section by name. Raises `InputError` for one that is not there."""
        known = {part.name: part for part in self.parts}
        if name not in known:
            raise unknown("section", name, known)
        return known[name]

    @property
    def flags(self) -> tuple[str, ...]:
        """What its rows raise, of `FLAGS`."""
        return tuple(flag for flag in FLAGS if self.raises(flag))

    def raises(self, flag: str) -> bool:
        """Whether a row raises a flag: one of `FLAGS`, or KEY:WORD. Raises `InputError` for another one."""
        check_flags([flag])
        key, colon, word = flag.partition(":")
        rows = [row for part in self.parts for row in part.rows]
        if colon:
            return any(row.key == key and row.word and ORDER.index(row.word) <= ORDER.index(word) for row in rows)
        if flag in ORDER:
            return any(row.word and ORDER.index(row.word) <= ORDER.index(flag) for row in rows)
        return any(flag in row.flags for row in rows)

    def lines(self) -> list[str]:
        """The answers first, in at most thirty lines with the table: one paragraph a section, wrapped."""
        texts = "; ".join(each["says"] for each in self.record["texts"])
        weights = f", {self.record['weights']}" if self.record.get("weights") else ""
        head = f"{self.record['model']}{weights}: {texts}; {self.record['seconds']:.0f} s."
        lines = textwrap.wrap(head, WIDTH)
        for part in self.parts:
            if part.answer:
                lines += textwrap.wrap(f"{part.title}: {part.answer}", WIDTH, subsequent_indent="  ")
        missing = [f"{part.title.lower()} ({part.first.missing})" for part in self.parts if part.first.missing]
        if missing:
            lines += textwrap.wrap(f"Not run: {'; '.join(missing)}.", WIDTH, subsequent_indent="  ")
        for line in self.lines_for:
            lines += textwrap.wrap(
                f"{line['engine']}: {line['line']}  [{line['source']}, {line['date']}; not run here]",
                WIDTH,
                subsequent_indent="  ",
            )
        return lines

    def table(self) -> pd.DataFrame:
        """One row per finding: section, finding, value with low, high, unit, n, word, why, bytes, of_16, advice."""
        rows = []
        for part in self.parts:
            for row in part.rows:
                number = row.number
                rows.append(
                    {
                        "section": part.name,
                        "key": row.key,
                        "finding": row.finding,
                        "value": None if number is None else number.value,
                        "low": None if number is None else number.low,
                        "high": None if number is None else number.high,
                        "unit": row.unit,
                        "n": row.n or None,
                        "word": row.word,
                        "why": row.why,
                        "bytes": row.bytes,
                        "of_16": row.of_16,
                        "advice": row.advice,
                    }
                )
        names = ["section", "key", "finding", "value", "low", "high", "unit", "n", "word", "why", "bytes", "of_16"]
        return pd.DataFrame(rows, columns=[*names, "advice"])

    def cells(self, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Heads and cells of the table on a terminal: rows that have a word; of too many, those that are advice."""
        rows = [row for part in self.parts for row in part.rows if row.word]
        if most is not None and len(rows) > most:
            rows = [row for row in rows if row.advice][: max(0, most)]
        found = [[row.finding, row.shown(unit=False), row.word, held(row)] for row in rows]
        return ["", "nats a token (95 %)", "", "KiB, of 16 bit"], found

    def to_json(self) -> dict[str, Any]:
        """Everything, with the numbers of each text; no text."""
        return {
            "schema": SCHEMA,
            **self.record,
            "flags": list(self.flags),
            "lines": [dict(line) for line in self.lines_for],
            "sections": {part.name: part.to_json() for part in self.parts},
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Card:
        """What `to_json` gave. Raises `InputError` for anything else."""
        if data.get("schema") != SCHEMA or "sections" not in data:
            raise InputError(f"this is no report card of schema {SCHEMA}")
        parts = tuple(
            Part(
                name,
                part["title"],
                {texts: Answered.of_json(found) for texts, found in part["on"].items()},
                part["seconds"],
            )
            for name, part in data["sections"].items()
        )
        record = {name: value for name, value in data.items() if name not in ("schema", "flags", "lines", "sections")}
        return cls(record, parts, tuple(data.get("lines", ())))

    @classmethod
    def load(cls, path: str | Path) -> Card:
        """Read a card's JSON. Raises `InputError` where there is none."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
        if not isinstance(data, dict):
            raise InputError(f"{path} holds no report card")
        try:
            return cls.of_json(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} holds no report card: {error!r}") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def against(self, other: Card) -> pd.DataFrame:
        """By how much each number is larger here than in another card.

        Paired over the same texts. Two tokenizers cut the same corpus into other texts: then what is in nats a token
        becomes nats per byte of UTF-8, and the means are compared as of two samples (Welch's t).

        Columns: section, texts, finding, unit, here, there, difference, low, high, n, both words, and `paired`. Raises
        `InputError` where the texts are not the same and the tokenizer is.
        """
        mine, theirs = ({each["name"]: each for each in card.record["texts"]} for card in (self, other))
        same = {name: each["sha256"] for name, each in mine.items()} == {n: e["sha256"] for n, e in theirs.items()}
        if not same and not self._comparable(other):
            differ = [name for name in mine if mine[name]["sha256"] != theirs.get(name, {}).get("sha256")]
            raise InputError(
                f"the two cards were made on other texts ({', '.join(differ or theirs)}): their hashes differ, so "
                "nothing is paired; check both models on the same texts, with one tokenizer"
            )
        rows = []
        known = {part.name: part for part in other.parts}
        for part in (part for part in self.parts if part.name in known):
            for name, found in part.found.items():
                old = {row.key: row for row in known[part.name].found.get(name, Answered()).rows}
                for row in (row for row in found.rows if row.key in old and row.values and old[row.key].values):
                    here, there, unit = np.asarray(row.values), np.asarray(old[row.key].values), row.unit
                    if same:
                        more = difference(row, old[row.key])
                    else:
                        sizes = [np.asarray(texts[name]["bytes_per_token"]) for texts in (mine, theirs)]
                        if unit.startswith(("KL", "nats")):
                            if (len(here), len(there)) != (len(sizes[0]), len(sizes[1])):
                                continue  # of other texts than the card's, whose bytes are not known
                            here, there, unit = here / sizes[0], there / sizes[1], unit.replace("a token", "a byte")
                        more = difference_interval(there, here)
                    rows.append(
                        {
                            "section": part.name,
                            "texts": name,
                            "finding": row.finding,
                            "unit": unit,
                            "here": float(here.mean()),
                            "there": float(there.mean()),
                            "difference": more.value,
                            "low": more.low,
                            "high": more.high,
                            "n": len(here),
                            "word here": row.word,
                            "word there": old[row.key].word,
                            "paired": same,
                        }
                    )
        return pd.DataFrame(rows)

    def _comparable(self, other: Card) -> bool:
        """Whether two tokenizers cut the same corpora into texts, of which the bytes are known."""
        spelled = [card.record.get("vocabulary_sha256") for card in (self, other)]
        mine, theirs = (
            {each["name"]: each.get("bytes_per_token") for each in card.record["texts"]} for card in (self, other)
        )
        known = all(sizes is not None for sizes in (*mine.values(), *theirs.values(), *spelled))
        return known and spelled[0] != spelled[1] and mine.keys() == theirs.keys()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        heads, cells = self.cells()
        head = "".join(f"<th>{escape(name)}</th>" for name in heads)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
        said = "".join(f"<p>{escape(line)}</p>" for line in self.answers())
        return f"{said}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def answers(self) -> list[str]:
        """The sentences of the card, one a section."""
        texts = "; ".join(each["says"] for each in self.record["texts"])
        said = [f"{self.record['model']}: {texts}."]
        said += [f"{part.title}: {part.answer}" for part in self.parts if part.answer]
        return [*said, *(f"{part.title}: not run, {part.first.missing}." for part in self.parts if part.first.missing)]


def held(row: Row) -> str:
    """KiB of a text's cache, and of how many bytes in 16 bits that is: 45, 35 %."""
    if row.bytes is None:
        return ""
    size = row.bytes / 1024
    text = f"{size:,.0f}" if size >= 10 else f"{size:.1f}"
    return text if row.of_16 is None else f"{text}, {100 * row.of_16:.0f} %"


def check_flags(names: Sequence[str]) -> None:
    """Raises `InputError` for a name that is no flag."""
    for name in names:
        _, colon, word = name.partition(":")
        if colon and word not in ORDER:
            raise unknown("word", word, ORDER)
        if not colon and name not in FLAGS:
            raise unknown("flag", name, FLAGS)
