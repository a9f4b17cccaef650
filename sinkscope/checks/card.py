"""The report card of a model: the answers of all sections as lines, a table and JSON; comparison of two cards."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.checks.row import ADVISED, ORDER, Answered, Row, combined, paired_difference
from sinkscope.errors import InputError, unknown
from sinkscope.statistics import difference_interval

SCHEMA = 1
WIDTH, LEAST_WIDTH = 118, 40  # characters of a line
MEDIA = ("images", "recordings")  # names of sets that are no texts
COLUMN_GAP = 2  # spaces after a column
LEAST_ROWS = 8  # of the table: longer sentences are cut before it gets fewer
FLAGS = {
    "bos-twice": "the tokenizer puts two BOS before a text",
    "bos-twice-chat": "a rendered chat that is tokenized once more begins with two BOS",
    "template-broken": "the chat template cannot be filled",
    "no-sink": "no position is a sink",
    "learned-sink": "heads attend to learned sinks, which are no tokens",
    "breaks": "something that was tried breaks the model",
    "costs": "something that was tried costs, or breaks the model",
}
"""What `--fail-on` takes, in addition to KEY:WORD for a row with this grade or a worse one, such as kv4:costs."""


@dataclass(frozen=True)
class Part:
    """A section of a card.

    Args:
        name: The section's name.
        title: The heading of its rows.
        by_texts: Its answer on each set of texts, by the set's name. The card shows the first.
        seconds: The time that all sets took.
    """

    name: str
    title: str
    by_texts: Mapping[str, Answered]
    seconds: float = 0.0

    @property
    def first(self) -> Answered:
        """The answer on the first set of texts."""
        return next(iter(self.by_texts.values()))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The first set's rows, combined with those of the second set if there is one, and then what only that has."""
        names = list(self.by_texts)
        if len(names) < 2:
            return self.first.rows
        others = {row.key: row for row in self.by_texts[names[1]].rows}
        both = [combined(row, others.pop(row.key, None), names) for row in self.first.rows]
        alone = [replace(row, finding=f"{row.finding}, on {names[1]}") for row in others.values()]
        return (*both, *(combined(row, None, names[1:]) for row in alone))

    @property
    def answer(self) -> str:
        """The first set's sentences, the grades that differ on the second set, and what to do on both."""
        return " ".join(filter(None, (self.first.answer, self._differences(), self.advice)))

    @property
    def advice(self) -> str:
        """What to do, as a sentence: the best advice that holds on all sets of texts; empty if there is none."""
        if not self.first.answer:
            return ""
        advised = {row.key: row for row in self.rows if row.advice}
        best = next((advised[key] for key in self.first.advised_by if key in advised), None)
        if best is None:
            return min(self.by_texts.values(), key=_worst).otherwise
        share = "" if best.of_16 is None else f": {100 * best.of_16:.0f} % of the bytes of a 16-bit cache"
        return f"{best.advice[:1].upper()}{best.advice[1:]}{share}."

    def line(self, width: int = WIDTH) -> str:
        """The answer in one line of the card: its first sentence, what to do, and the grades that differ."""
        headline, advice = self.first.answer.partition(". ")[0].rstrip("."), self.advice
        room = width - len(self.title) - len(advice) - 5
        text = f"{self.title}: {textwrap.shorten(headline, max(40, room), placeholder=' …')}. {advice}"
        return textwrap.shorten(f"{text} {self._differences()}", width, placeholder=" …")

    def _differences(self) -> str:
        """The grades on the second set of texts that differ from the first's."""
        names = list(self.by_texts)
        if len(names) < 2 or not self.first.answer:
            return ""
        if missing := self.by_texts[names[1]].missing:
            return f"Not run on {names[1]}: {missing}."
        others = {row.key: row for row in self.by_texts[names[1]].rows}
        both = [row for row in self.first.rows if row.word and row.key in others]
        differ = [row for row in both if others[row.key].word != row.word]
        if not differ:
            return f"All words hold on {names[1]} too." if both else ""
        return f"Other words on {names[1]}: {', '.join(f'{row.finding} {others[row.key].word}' for row in differ)}."

    def to_json(self) -> dict[str, Any]:
        """As JSON-able data."""
        on = {name: answered.to_json() for name, answered in self.by_texts.items()}
        return {"title": self.title, "seconds": round(self.seconds, 2), "on": on}


@dataclass(frozen=True)
class Card:
    """The result of `check`. `print` shows `lines()`; notebooks show the answers and the table.

    Args:
        record: Model, texts with their hashes, versions, seconds.
        parts: The sections, in the order in which they ran.
        lines_for: Command lines for engines, each with `engine`, `line`, `source` and `date`, some with `beware` and
            `of_16`, their bytes as a share of a 16-bit cache.
    """

    record: Mapping[str, Any]
    parts: tuple[Part, ...]
    lines_for: tuple[Mapping[str, Any], ...] = ()

    def part(self, name: str) -> Part:
        """A section by name. Raises `InputError` for one that the card does not have."""
        parts = {part.name: part for part in self.parts}
        if name not in parts:
            raise unknown("section", name, parts)
        return parts[name]

    @property
    def flags(self) -> tuple[str, ...]:
        """The names from `FLAGS` that its rows raise."""
        return tuple(flag for flag in FLAGS if self.raises(flag))

    def raises(self, flag: str) -> bool:
        """Whether a row raises a flag: a name from `FLAGS`, or KEY:WORD.

        Raises `InputError` for anything else, and for the key of a row that the card does not have.
        """
        check_flags([flag])
        key, colon, word = flag.rpartition(":")
        rows = [row for part in self.parts for row in part.rows]
        if colon:
            if key not in (keys := [row.key for row in rows]):
                raise unknown("row of this card", key, keys)
            return any(row.key == key and row.word and ORDER.index(row.word) <= ORDER.index(word) for row in rows)
        if flag in ORDER:
            return any(row.word and ORDER.index(row.word) <= ORDER.index(flag) for row in rows)
        return any(flag in row.flags for row in rows)

    def lines(self, *, brief: bool = False, width: int = WIDTH) -> list[str]:
        """One wrapped paragraph per section, then the sections that were not run and the lines for engines.

        `brief`: one line per section and per line for an engine, cut where it is too long. `width`: characters of a
        line.
        """
        reasons: dict[str, list[str]] = {}
        for part in self.parts:
            if part.first.missing:
                reasons.setdefault(part.first.missing, []).append(part.title.lower())
        missing = [f"{', '.join(titles)} ({reason})" for reason, titles in reasons.items()]
        paragraphs = [
            f"{self._read}; {self.record['seconds']:.0f} s.",
            *(part.line(width) if brief else f"{part.title}: {part.answer}" for part in self.parts if part.answer),
            *([f"Not run: {'; '.join(missing)}."] if missing else []),
            *map(_engine_line, smallest(self.lines_for)),
        ]
        if brief:
            return [textwrap.shorten(paragraph, width, placeholder=" …") for paragraph in paragraphs]
        return [line for text in paragraphs for line in textwrap.wrap(text, width, subsequent_indent="  ")]

    def screen(self, lines: int, width: int = WIDTH) -> tuple[list[str], list[str], list[list[str]]]:
        """At most so many lines: sentences, in brief where they leave no room, and heads and cells of the table.

        `width`: characters of a line, of which sentences take 40 to 118.
        """
        sentences = max(LEAST_WIDTH, min(width, WIDTH))
        text = self.lines(width=sentences)
        if len(text) > lines - LEAST_ROWS - 1:
            text = self.lines(brief=True, width=sentences)
        return text, *self.cells(lines - len(text) - 1, width)

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

    def cells(self, max_rows: int | None = None, width: int | None = None) -> tuple[list[str], list[list[str]]]:
        """Heads and cells of the table on a terminal: rows with a grade or advice.

        If they are more than `max_rows`: first those with advice, each section's first ones before the second ones of
        any, then the others, worst first; in the card's order. If they are wider than `width` characters, the number of
        texts goes, and then the words of advice, of which "yes" remains, and KiB, of which the share of 16 bits does.
        """
        shown = [[row for row in part.rows if row.word or (row.advice and row.number)] for part in self.parts]
        rows = [row for rows_of_part in shown for row in rows_of_part]
        if max_rows is not None and len(rows) > max_rows:
            advised = [enumerate(row for row in rows_of_part if row.advice) for rows_of_part in shown]
            ranked = [row for _, row in sorted(chain(*advised), key=itemgetter(0))]
            others = [row for row in rows if not row.advice]
            ranked += sorted(others, key=lambda row: ORDER.index(row.word) if row.word else len(ORDER))
            kept = {id(row) for row in ranked[: max(0, max_rows)]}
            rows = [row for row in rows if id(row) in kept]
        columns = {
            "": [row.finding for row in rows],
            "nats a token (95 %)": [row.shown(unit=False) for row in rows],
            "n": [str(row.n) for row in rows],
            " ": [row.word for row in rows],
            "KiB, of 16 bit": [held(row) for row in rows],
            "what to do": [row.advice for row in rows],
        }
        if width is not None and _wide(columns) > width:
            del columns["n"]
        if width is not None and _wide(columns) > width:
            del columns["KiB, of 16 bit"], columns["what to do"]
            columns["bytes"] = ["" if row.of_16 is None else f"{100 * row.of_16:.0f} %" for row in rows]
            columns["use"] = ["yes" if row.advice else "" for row in rows]
        return [head.strip() for head in columns], [list(cells) for cells in zip(*columns.values(), strict=True)]

    def to_json(self) -> dict[str, Any]:
        """The whole card, with the numbers of each text but no text."""
        return {
            "schema": SCHEMA,
            **self.record,
            "flags": list(self.flags),
            "lines": [dict(line) for line in self.lines_for],
            "sections": {part.name: part.to_json() for part in self.parts},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Card:
        """The inverse of `to_json`. Raises `InputError` for another schema."""
        if data.get("schema") != SCHEMA or "sections" not in data:
            raise InputError(f"this is no report card of schema {SCHEMA}")
        parts = tuple(
            Part(
                name,
                part["title"],
                {texts: Answered.from_json(answered) for texts, answered in part["on"].items()},
                part["seconds"],
            )
            for name, part in data["sections"].items()
        )
        if lacking := [name for name in ("model", "texts") if name not in data]:
            raise InputError(f"this is no whole report card: it lacks '{lacking[0]}'")
        if empty := next((part.name for part in parts if not part.by_texts), ""):
            raise InputError(f"this is no whole report card: section '{empty}' was run on no texts")
        record = {name: value for name, value in data.items() if name not in ("schema", "flags", "lines", "sections")}
        return cls(record, parts, tuple(data.get("lines", ())))

    @classmethod
    def load(cls, path: str | Path) -> Card:
        """Read a card's JSON. Raises `InputError` for a file that is not one."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
        if not isinstance(data, dict):
            raise InputError(f"{path} holds no report card")
        try:
            return cls.from_json(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} holds no report card: {error!r}") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def against(self, other: Card) -> pd.DataFrame:
        """Every number of this card minus the one in another card, paired over the same texts.

        Two tokenizers cut the same corpus into different texts. Then nats per token become nats per byte of UTF-8, and
        the means are compared as those of two samples (Welch's t).

        Columns: section, texts, finding, unit, here, there, difference, low, high, n, both words, and `paired`. Raises
        `InputError` for different texts with the same tokenizer.
        """
        check_comparable(self.record, other.record)
        mine, theirs = ({texts["name"]: texts for texts in card.record["texts"]} for card in (self, other))
        shared = [name for name in mine if name in theirs]  # other sections read other sets
        same = all(mine[name]["sha256"] == theirs[name]["sha256"] for name in shared)
        rows = []
        other_parts = {part.name: part for part in other.parts}
        for part in (part for part in self.parts if part.name in other_parts):
            for name, answered in part.by_texts.items():
                old_answered = other_parts[part.name].by_texts.get(name, Answered())
                # A section may read texts of its own, as long as the model takes, through caches of as many keys.
                if any(answered.facts.get(fact) != old_answered.facts.get(fact) for fact in ("sha256", "keys")):
                    continue
                old = {row.key: row for row in old_answered.rows}
                for row in (row for row in answered.rows if row.key in old and row.values and old[row.key].values):
                    if row.unit != old[row.key].unit:
                        continue  # costs against different references
                    here, there, unit = np.asarray(row.values), np.asarray(old[row.key].values), row.unit
                    if same:
                        interval = paired_difference(row, old[row.key])
                    else:
                        sizes = [np.asarray(texts[name]["bytes_per_token"]) for texts in (mine, theirs)]
                        if unit.startswith(("KL", "nats")):
                            if (len(here), len(there)) != (len(sizes[0]), len(sizes[1])):
                                continue  # from other texts than the card's, whose bytes are unknown
                            here, there, unit = here / sizes[0], there / sizes[1], unit.replace("a token", "a byte")
                        interval = difference_interval(there, here)
                    rows.append(
                        {
                            "section": part.name,
                            "texts": name,
                            "finding": row.finding,
                            "unit": unit,
                            "here": float(here.mean()),
                            "there": float(there.mean()),
                            "difference": interval.value,
                            "low": interval.low,
                            "high": interval.high,
                            "n": len(here),
                            "word here": row.word,
                            "word there": old[row.key].word,
                            "paired": same,
                        }
                    )
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        heads, cells = self.cells()
        lines = [*self.answers(), *map(_engine_line, smallest(self.lines_for))]
        answers = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return answers + pd.DataFrame(cells, columns=heads).to_html(index=False, border=0)

    def answers(self) -> list[str]:
        """The model with its texts, then the answer of each section, then the sections that were not run."""
        answers = [f"{part.title}: {part.answer}" for part in self.parts if part.answer]
        missing = [f"{part.title}: not run, {part.first.missing}." for part in self.parts if part.first.missing]
        return [f"{self._read}.", *answers, *missing]

    @property
    def _read(self) -> str:
        """What was read: the model, its weights, and the texts."""
        weights = f", {self.record['weights']}" if self.record.get("weights") else ""
        return f"{self.record['model']}{weights}: {'; '.join(each['says'] for each in self.record['texts'])}"


def _worst(answered: Answered) -> tuple[int, int]:
    """Sorts the sets of texts, the worst first.

    By the grade of the last row that could give advice, then by the number of rows that are *free* or *small*.
    """
    rows = [row for row in answered.rows if row.word and row.key in answered.advised_by]
    place = ORDER.index(rows[-1].word) if rows else len(ORDER)
    return place, sum(row.word in ADVISED for row in rows)


def check_comparable(record: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raises `InputError` for the records of two cards whose numbers cannot be compared: they were made on other texts.

    Two tokenizers cut the same corpus into different texts, which compare by bytes where their sizes are known.
    """
    mine, theirs = ({texts["name"]: texts for texts in each["texts"]} for each in (record, other))
    shared = [name for name in mine if name in theirs]
    if not shared:
        raise InputError(
            f"the two cards have no set of texts in common ({', '.join(mine)} here, {', '.join(theirs)} there): "
            "check both models with the same sections on the same texts"
        )
    differ = [name for name in shared if mine[name]["sha256"] != theirs[name]["sha256"]]
    if not differ:
        return
    one, another = (each.get("vocabulary_sha256") for each in (record, other))
    if all(mine[name].get("corpus_sha256") is None and mine[name]["name"] in MEDIA for name in differ):
        why = "their hashes differ, so nothing is paired; check both models on the same files, in one precision"
    elif None in (one, another) or one == another:
        why = "their hashes differ, so nothing is paired; check both models on the same texts, with one tokenizer"
    elif unlike := [name for name in shared if not _from_one_corpus(mine[name], theirs[name])]:
        why = f"{', '.join(unlike)} {'come' if len(unlike) > 1 else 'comes'} from another corpus, or from a card that "
        why += "does not say which; check both models on the same texts"
    else:
        return
    raise InputError(f"the two cards were made on other texts ({', '.join(differ)}): {why}")


def _from_one_corpus(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether two sets of texts were cut from one corpus, and have sizes in bytes."""
    corpora = [texts.get("corpus_sha256") for texts in (mine, theirs)]
    sizes = [texts.get("bytes_per_token") for texts in (mine, theirs)]
    return None not in corpora and None not in sizes and corpora[0] == corpora[1]


def smallest(lines_for: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines for engines without those that set the same option to something of more bytes."""
    options: dict[tuple[str, str], Mapping[str, Any]] = {}
    for line in lines_for:
        option = (line["engine"], line["line"].split(" ")[0])
        if option not in options or (line.get("of_16") or 1) < (options[option].get("of_16") or 1):
            options[option] = line
    return [line for line in lines_for if line in options.values()]


def _engine_line(line: Mapping[str, Any]) -> str:
    """A line for an engine with its sources, engine@commit without files, and what to beware of."""
    sources = ", ".join(dict.fromkeys(source.split(",")[0] for source in line["source"].split("; ")))
    beware = f" Beware: {line['beware']}." if line.get("beware") else ""
    return f"{line['engine']}: {line['line']}  [{sources}, {line['date']}; not run here]{beware}"


def _wide(columns: Mapping[str, Sequence[str]]) -> int:
    """The characters of a line of a table."""
    return sum(COLUMN_GAP + max(map(len, [head, *cells])) for head, cells in columns.items())


def held(row: Row) -> str:
    """KiB of the cache of one text, and the share of a 16-bit cache: 45, 35 %."""
    if row.bytes is None:
        return ""
    size = row.bytes / 1024
    text = f"{size:,.0f}" if size >= 10 else f"{size:.1f}"
    return text if row.of_16 is None else f"{text}, {100 * row.of_16:.0f} %"


def check_flags(names: Sequence[str]) -> None:
    """Raises `InputError` for a name that is no flag."""
    for name in names:
        _, colon, word = name.rpartition(":")
        if colon and word not in ORDER:
            raise unknown("word", word, ORDER)
        if not colon and name not in FLAGS:
            raise unknown("flag", name, FLAGS)
