"""The report card of a pretrained model."""

from __future__ import annotations

from typing import Any

import pytest

from sinkscope.checks import check

pytestmark = pytest.mark.release


def test_the_report_card_of_smollm2(smollm2: tuple[Any, Any]) -> None:
    """Twelve texts: what the sink, the BOS and the cache do, by signs and orders that a few texts can show."""
    card = check(*smollm2, count=12)
    rows = {row.key: row for part in card.parts for row in part.rows}
    assert "chat format" in card.record["texts"][0]["name"]
    assert card.record["weights"] == "weights in GGUF Q4_1, read in float32"
    sink = card.part("sink").first
    assert sink.facts["position"] == 0
    assert sink.facts["heads"] == 270
    assert 60 < rows["rate"].number.value < 95
    assert card.part("bos").first.facts == {"tokenizer_adds": 0, "bos": 1, "template_adds": 1}
    assert {"one-BOS", "two-BOS", "another-token"} <= rows.keys()
    costs = [rows[f"kv{bits}"].number.value for bits in (8, 4, 2)]
    assert costs == sorted(costs)
    assert rows["kv2-protected"].number.value < rows["kv2"].number.value
    lines, _, cells = card.screen(30)
    assert len(lines) + len(cells) + 1 <= 30
    assert any(line.startswith("llama.cpp: -ctk") for line in lines)
