"""The page of a comparison of caches: what each costs in predictions and recall, and what it saves."""

from __future__ import annotations

import json

import pandas as pd

from sinkscope.evaluate import FULL, CacheComparison
from sinkscope.evaluate.figures import LOSS, RECALL, TIME
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import joined

COLUMNS = {
    "arm": "cache",
    "control": "control",
    "kept": "kept (% of bytes)",
    "held_mib": "held (MiB a text)",
    "perplexity": "perplexity",
    "loss": "nats lost",
    "loss_low": "95 % from",
    "loss_high": "95 % to",
    "kl": "KL to full (nats)",
    "same": "same best token (%)",
    "agreed": "tokens written alike",
    "recall": "recall (%)",
    "recall_low": "recall 95 % from",
    "recall_high": "recall 95 % to",
    "recall_seen": "recall, question seen (%)",
    "step_ms": "ms a token",
    "step_ratio": "time × full",
    "prefill_ms": "ms for the context",
}
PERCENT = ("kept", "same", "recall", "recall_low", "recall_high", "recall_seen")
SENTENCES = {
    LOSS: "How many nats a token each cache predicts worse than the full one on the same texts, against the bytes that "
    "it holds behind the context; bars are 95 % bootstrap intervals over texts. Thin dotted lines are controls: a "
    "random policy of the same budget, and the policies with random places protected instead of sinks.",
    RECALL: "Share of right answers about pairs hidden in the context, asked after the cache was compressed. A policy "
    "that saw the question first can keep its answer alone: that column of the table stands apart.",
    TIME: "Time of one token behind the context, as a multiple of the full cache's, in turns within one process. At "
    "these lengths a policy's own work may outweigh the keys that it saves.",
}


def caches_page(comparison: CacheComparison) -> Page:
    """The page of a comparison, with every number in a table."""
    record = comparison.record
    frame = shown(comparison)
    sections = [
        Section(name, SENTENCES[name], {name: figure}, frame[_columns(frame, name)], unfolded=name == LOSS)
        for name, figure in comparison.plot().items()
    ]
    lead = (
        f"{record['windows']} texts of {record['tokens']} tokens: {record['context']} are read at once, whereupon a "
        "cache drops what it drops; the others are predicted one at a time."
    )
    return Page(f"Caches of {record['model']}", lead, _headlines(comparison), sections, _facts(comparison))


def _columns(frame: pd.DataFrame, name: str) -> list[str]:
    """The columns that a figure is about; the first figure's table has all."""
    kept = {
        RECALL: ("recall", "recall_low", "recall_high", "recall_seen"),
        TIME: ("step_ms", "step_ratio", "prefill_ms"),
    }
    wanted = [COLUMNS[each] for each in ("arm", "control", "kept", *kept.get(name, ()))]
    return list(frame.columns) if name == LOSS else [column for column in wanted if column in frame]


def shown(comparison: CacheComparison) -> pd.DataFrame:
    """The table under its readers' names, shares in percent."""
    frame = comparison.table()
    for name in PERCENT:
        if name in frame:
            frame[name] *= 100
    frame["control"] = ["control" if control else "" for control in frame["control"]]
    return frame.rename(columns=COLUMNS)


def _headlines(comparison: CacheComparison) -> list[Headline]:
    table = comparison.table().set_index("arm")
    policies = table[~table["control"] & (table.index != FULL)]
    policies = policies if len(policies) else table.drop(index=FULL)
    nearest = policies["loss"].idxmin()
    cards = [
        Headline(f"{table.loc[FULL, 'perplexity']:.3g}", "perplexity, full cache"),
        Headline(f"{policies.loc[nearest, 'loss']:+.3f}", f"nats lost, least: {nearest}"),
    ]
    if "recall" in table:
        best = policies["recall"].idxmax()
        cards.append(Headline(f"{100 * policies.loc[best, 'recall']:.0f} %", f"recall, best: {best}"))
    return cards


def _facts(comparison: CacheComparison) -> dict[str, str]:
    record = comparison.record
    versions = record.pop("versions", {})
    plain = {
        name: value if isinstance(value, str | int | float) else json.dumps(value) for name, value in record.items()
    }
    plain["ids_sha256"] = str(record.get("ids_sha256", ""))[:16]
    return {"versions": joined(versions.items()), "comparison": joined(plain.items())}
