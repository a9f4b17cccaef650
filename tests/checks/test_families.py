"""The report card of every family's tiny model: what does not apply says so, and the rest runs."""

from __future__ import annotations

import pytest

from sinkscope.checks import SECTIONS, check
from sinkscope.data.model_inputs import OTHERS
from sinkscope.errors import UnsupportedModelError
from tests.families.registry import FAMILIES

NEED_IMAGES = {"clip"}  # in addition to tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_section_answers_or_says_why_not(name: str) -> None:
    family = FAMILIES[name]
    if not family.exists:
        pytest.skip(f"the installed transformers has no {family.config}")
    model = family.build()
    if model.main_input_name != "input_ids" or name in NEED_IMAGES:
        with pytest.raises(UnsupportedModelError, match=r"reads .* tokens.*sinkscope check take"):
            check(model, None, count=6, tokens=48, name=name)
    if {*OTHERS} & {*(inputs := family.inputs(samples=4))}:
        given = check(model, None, inputs=inputs, name=name)
        assert given.part("sink").first.answer
        assert given.record["texts"][0]["n"] == 4
        assert "and this section reads texts" in given.part("cache").first.missing
    if model.main_input_name != "input_ids" or name in NEED_IMAGES:
        return
    card = check(model, None, count=6, tokens=48, name=name)
    assert [part.name for part in card.parts] == ["sink", "bos", "cache"]
    for part in card.parts:
        assert bool(part.first.answer) != bool(part.first.missing)
    assert card.part("sink").first.answer
    assert card.part("bos").first.missing == "the model has no tokenizer"


@pytest.mark.release
@pytest.mark.parametrize("name", ["llama", "gemma3"])  # all keys in all layers, and windows in most of them
def test_every_section_of_full_answers_or_says_why_not(name: str) -> None:
    card = check(FAMILIES[name].build(), None, full=True, count=4, tokens=64, name=name)
    assert [part.name for part in card.parts] == list(SECTIONS)
    for part in card.parts:
        assert bool(part.first.answer) != bool(part.first.missing)
    without_tokenizer = {part.name for part in card.parts if "tokenizer" in part.first.missing}
    assert without_tokenizer == {"bos", "stream"}
    assert card.part("engines").first.answer
    lines, _, cells = card.screen(30)
    assert len(lines) + len(cells) + 1 <= 30
