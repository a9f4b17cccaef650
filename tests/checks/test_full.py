"""Sections of --full, on models of this package."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.caches import StreamingCache
from sinkscope.checks import SECTIONS, Answered, Card, Part, Row, check, int8, needed
from sinkscope.checks.card import smallest
from sinkscope.checks.modules import layer_costs, map_arms, module_rows, ranked_modules
from sinkscope.checks.streaming import _arm
from sinkscope.checks.subject import checked_model
from sinkscope.errors import InputError
from sinkscope.model import load, load_tokenizer
from sinkscope.quantization import scheme_named
from sinkscope.sinks import Measured, Outliers
from sinkscope.statistics import Interval
from sinkscope.trials import Grade, OnePass, Trial, cached, run, scheme_trial, stream_nll


def random_llama(vocabulary: int, **fields: Any) -> LlamaForCausalLM:
    """A model without sinks and outliers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes, **fields)).eval()


@pytest.mark.slow
def test_a_stream_read_in_chunks_is_a_stream_read_token_by_token() -> None:
    model = load("nano")
    ids = torch.randint(3, 2000, (2, 96), generator=torch.Generator().manual_seed(0))
    trial = run(model, ids, [_arm(1, 24, "full")], reading=OnePass(from_token=24), controls=0)
    one_by_one = stream_nll(model, ids, cached("stream", lambda model: StreamingCache(model, 1, 23)), context=1)
    expected = one_by_one[:, 24:].mean(1)  # of tokens 25 on, which places 24 on predict
    assert torch.allclose(torch.tensor(trial.values("1 first token kept", "nats")), expected, atol=1e-4)


@pytest.mark.release
def test_every_section_of_full_finds_something_on_nano() -> None:
    card = check(load("nano"), load_tokenizer("nano"), count=6, only=["needed", "stream", "evict", "int8"])
    assert not any(part.first.missing for part in card.parts)
    rows = {row.key: row for part in card.parts for row in part.rows}
    assert rows["hide-sink"].number.value > 0
    assert rows["h2o@25%"].bytes < rows["h2o@50%"].bytes
    assert rows["w8a8-token"].number.value < rows["w8a8-tensor"].number.value
    assert {"sinks-0", "sinks-1", "sinks-2", "sinks-4"} <= rows.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("word", "answer"), [("cannot tell", "It cannot be told"), ("costs", "Yes"), ("small", "Not")])
def test_whether_it_is_needed_goes_by_the_word(word: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without controls nothing else decides."""
    subject = checked_model("nano", load("nano"), load_tokenizer("nano"), count=3, tokens=32, controls=0)
    monkeypatch.setattr(Trial, "grade", lambda trial, arm: Grade(word))
    answered = needed.run_section(subject, subject.sets[0], None)
    assert answered.answer.startswith(answer)
    assert "hiding it costs" in answered.answer


@pytest.mark.release
def test_what_costs_is_rescued_and_beside_random_maps_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first texts alone; nano's schemes are small, so the word is planted."""
    monkeypatch.setattr(int8, "UNSAFE", ("small",))
    card = check(load("nano"), load_tokenizer("nano"), count=8, tokens=48, full=True, only=["int8"])
    first, second = card.part("int8").by_texts.values()
    rows = {row.key: row for row in first.rows}
    assert rows["w8a8-tensor"].word == "small"
    for what in ("maps", "tokens"):
        row = rows[f"rescue:w8a8-static-{what}"]
        assert row.number.value < 0.2 * rows["w8a8-static"].number.value
        assert "as many random ones" in row.why
        assert row.advice
    assert first.facts["rescue"]["w8a8-static"]["maps"] == ["model.layers.1.mlp.down_proj"]
    assert not [key for key in rows if key.startswith("rescue:w8a8-tensor")], "static ranges are rescued instead"
    assert not [row for row in second.rows if row.key.startswith("rescue")]


@pytest.mark.slow
def test_two_sets_of_texts_say_whether_a_word_holds_on_both() -> None:
    card = check(load("nano"), load_tokenizer("nano"), count=4, full=True, only=["bos"])
    names = [each["name"] for each in card.record["texts"]]
    assert names == ["plain code", "plain prose"]
    assert set(card.part("bos").by_texts) == set(names)
    row = next(row for row in card.part("bos").rows if row.key == "no-BOS")
    assert "holds on both" in row.why or " on plain prose" in row.why


@pytest.mark.slow
def test_a_base_that_was_rounded_gets_its_activations_alone_rounded() -> None:
    model = load("nano")
    model.gguf = {"types": {"Q4_K": 6, "Q6_K": 1}}  # of which values alone show six sevenths
    card = check(model, load_tokenizer("nano"), count=4, tokens=48, only=["int8"])
    assert card.record["weights"] == "weights in GGUF Q4_K and Q6_K, read in float32"
    keys = {row.key for row in card.part("int8").rows}
    assert {"a8-token", "a8-tensor", "a8-static"} <= keys
    assert not [key for key in keys if key.startswith("w8")]
    assert "(weights in GGUF Q4_K and Q6_K, read in float32)" in card.part("int8").answer


@pytest.mark.slow
def test_a_token_that_outlies_and_is_no_sink_is_protected() -> None:
    tokenizer = load_tokenizer("nano")
    model = random_llama(len(tokenizer))
    subject = checked_model("planted", model, tokenizer, count=4, tokens=48)
    texts = subject.sets[0]
    token = int(texts.ids[0, 20])
    table, block = model.model.embed_tokens.weight, model.model.layers[0]
    with torch.no_grad():
        table[:, 0] = block.self_attn.o_proj.weight[0] = 0
        table[token] = torch.eye(32)[0]
        block.mlp.gate_proj.weight[0, 0] = block.mlp.up_proj.weight[0, 0] = 10
        block.mlp.down_proj.weight[:, 0] = 0  # it stays in this map's input
    rows = {row.key: row for row in int8.run_section(subject, texts, None).rows}
    kept = float((texts.ids == token).sum(1).double().mean())
    assert rows["w8a8-tensor-protected"].finding == f"w8a8-tensor, {kept:.1f} tokens kept"


@pytest.mark.slow
def test_a_model_without_sinks_and_outliers_still_learns_what_int8_costs() -> None:
    tokenizer = load_tokenizer("nano")
    part = check(random_llama(len(tokenizer)), tokenizer, count=4, tokens=48, only=["int8"]).part("int8")
    keys = [row.key for row in part.rows]
    assert keys[:3] == ["w8a8-token", "w8a8-tensor", "w8a8-static"]
    assert not [key for key in keys if "protected" in key]
    assert "no sink" not in part.answer


@pytest.mark.release
def test_int8_arms_are_those_of_a_trial_of_one_scheme() -> None:
    """They share the unchanged pass with others, and ranges are fitted without the protected tokens."""
    subject = checked_model("nano", load("nano"), load_tokenizer("nano"), count=4, tokens=48, controls=2)
    texts = subject.sets[0]
    trial, refused = int8._trial(subject, texts, {name: name for name in ("w8a8-tensor", "w8a8-static")}, (), None)
    assert not refused
    for name in ("w8a8-tensor", "w8a8-static"):
        options: dict[str, Any] = {"calibrate_on": texts.calibration, "seed": subject.seed}
        alone = scheme_trial(subject.model, texts.ids, name, {"kept": Measured() + Outliers()}, 2, **options)
        np.testing.assert_allclose(trial.values(name), alone.values(name), rtol=1e-5)
        np.testing.assert_allclose(trial.values(f"{name}, protected"), alone.values("kept"), rtol=1e-5)
        np.testing.assert_allclose(
            trial.values(f"controls of {name}, protected"), alone.values("controls of kept"), rtol=1e-5
        )
        rows = int8._rows(trial, name)
        assert [row.word for row in rows] == ["small", "free"]
        assert [bool(row.advice) for row in rows] == [True, False]


@pytest.mark.slow
def test_maps_are_rounded_alone_on_the_first_texts_only() -> None:
    card = check(load("nano"), load_tokenizer("nano"), count=4, tokens=48, full=True, only=["int8"])
    first, second = card.part("int8").by_texts.values()
    alone = [[row.key for row in one.rows if row.key.startswith("alone:")] for one in (first, second)]
    assert (len(alone[0]), len(alone[1])) == (3, 0)
    assert ("modules" in first.facts, "modules" in second.facts) == (True, False)
    assert [row.key for row in second.rows] == [row.key for row in first.rows if row.key not in alone[0]]


@pytest.mark.slow
def test_a_map_alone_costs_what_rounding_its_input_by_hand_costs() -> None:
    model = load("nano")
    subject = checked_model("nano", model, load_tokenizer("nano"), count=4, tokens=48)
    texts = subject.sets[0]
    ranking = ranked_modules(subject, texts)
    assert ranked_modules(subject, replace(texts, ids=texts.ids.flip(1))) == ranking, "not by the scored texts"
    assert list(ranking.verified) == [path for path, _ in ranking.modules[:3]]
    arms = map_arms(subject, texts, ranking.verified)
    trial = run(model, texts.ids, arms, reading=OnePass(), controls=0, batch_size=subject.batch_size)

    def rounded(_: object, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        step = args[0].abs().amax((1, 2), keepdim=True) / 127  # a range for each text
        return ((args[0] / step).round() * step,)

    with torch.no_grad():
        full = model(texts.ids).logits[:, :-1].double().log_softmax(-1)
        for path, row in zip(ranking.verified, module_rows(trial, ranking.verified), strict=True):
            hook = model.get_submodule(path).register_forward_pre_hook(rounded)
            changed = model(texts.ids).logits[:, :-1].double().log_softmax(-1)
            hook.remove()
            expected = (full.exp() * (full - changed)).sum(-1).mean(1)
            assert row.key == f"alone:{path}"
            np.testing.assert_allclose(row.values, expected, rtol=1e-3)
            assert row.number is not None
            assert row.number.value == pytest.approx(float(expected.mean()), rel=1e-3)


@pytest.mark.slow
def test_a_refused_scheme_is_named_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise InputError("no ranges of this model")

    def named(name: str) -> Any:
        return replace(scheme_named(name), make=refused) if name.endswith("static") else scheme_named(name)

    monkeypatch.setattr(int8, "scheme_named", named)
    part = check(load("nano"), load_tokenizer("nano"), count=4, tokens=48, only=["int8"]).part("int8")
    keys = {row.key for row in part.rows}
    assert {"w8a8-token", "w8a8-tensor", "w8a8-tensor-protected"} <= keys
    assert not [key for key in keys if "static" in key]
    assert "w8a8-static: no ranges of this model" in part.answer.replace("W8a8", "w8a8")


@pytest.mark.slow
def test_unsafe_activations_alone_run_as_the_scheme_that_leaves_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    run_as: list[str] = []

    def rescued(_: object, __: object, scheme: str, *___: object) -> Any:
        run_as.append(scheme)
        return SimpleNamespace(to_json=dict, found={})

    monkeypatch.setattr(int8, "_rescue", rescued)
    monkeypatch.setattr(int8, "UNSAFE", ("free", "small"))
    model = load("nano")
    model.gguf = {"types": {"Q4_K": 1}}
    check(model, load_tokenizer("nano"), count=4, tokens=48, only=["int8"])
    assert run_as == ["w16a8-token", "w16a8-static"]


@pytest.mark.slow
def test_long_texts_are_of_both_kinds_and_bytes_are_those_of_16_bits() -> None:
    tokenizer = load_tokenizer("nano")
    model = random_llama(
        len(tokenizer), max_position_embeddings=128, head_dim=32
    )  # streams of nano itself go token by token
    card = check(model, tokenizer, count=4, full=True, only=["stream", "evict"])
    assert {
        name: answered.facts["texts"].split(": ")[1] for name, answered in card.part("stream").by_texts.items()
    } == {
        "code": "code",
        "prose": "prose",
    }
    a_token = 2 * 2 * 2 * 4 * 32  # keys and values, 16 bits, two layers, four heads of 32 channels
    rows = {row.key: row for part in card.parts for row in part.rows}
    stream = rows["sinks-1"]
    assert stream.bytes == pytest.approx(32 * a_token)  # a quarter of 128 positions
    assert stream.of_16 == pytest.approx(0.25)
    assert rows["streaming@50%"].of_16 == pytest.approx(0.5, abs=0.04)
    assert rows["streaming@50%"].bytes == pytest.approx(0.5 * 64 * a_token, rel=0.1)


def test_layers_are_ranked_by_the_sum_of_their_maps() -> None:
    model = load("nano")
    costs = {
        "model.layers.1.mlp.up": 0.2,
        "model.layers.11.mlp.up": 9.0,
        "model.layers.1.mlp.down": 0.1,
        "lm_head": 1.0,
    }
    costs |= {"lm_head": 1.0, "model.layers.3.self_attn.q_proj": 0.5}
    assert layer_costs(model, costs) == [[3, 0.5], [1, 0.3], [0, 0.0], [2, 0.0]]


def test_a_word_that_does_not_hold_on_the_second_texts_is_said_in_the_answer() -> None:
    number = Interval(0.05, 0.04, 0.06)
    rows = [Row("kv2", "2 bits", number, "KL a token", 24, word, advice="use 2 bits") for word in ("small", "costs")]
    rows[1] = replace(rows[1], advice="")
    prose = Answered("2 bits small.", (rows[0],), advised_by=("kv2",), otherwise="Leave it.")
    part = Part("cache", "Cache bits", {"prose": prose, "code": Answered("2 bits costs.", (rows[1],))})
    assert part.answer == "2 bits small. Other words on code: 2 bits costs. Leave it."
    assert part.rows[0].word == "costs"
    assert part.rows[0].advice == ""
    assert Part("cache", "Cache bits", {"prose": prose}).answer == "2 bits small. Use 2 bits."
    held = Part("cache", "Cache bits", {"prose": prose, "code": prose})
    assert held.answer == "2 bits small. All words hold on code too. Use 2 bits."
    assert held.line() == "Cache bits: 2 bits small. Use 2 bits. All words hold on code too."


def test_the_best_advice_is_the_best_of_those_that_hold_on_both_texts() -> None:
    """On one kind of texts alone 2 bits are enough, on the other they are not: 4 bits hold on both."""
    number = Interval(0.05, 0.04, 0.06)

    def answered(two: str) -> Answered:
        advice = {"small": "use 2 bits", "costs": ""}[two]
        two_bits = Row("kv2", "2 bits", number, "KL a token", 24, two, advice=advice, bytes=20.0, of_16=0.2)
        four = Row("kv4", "4 bits", number, "KL a token", 24, "free", advice="use 4 bits", bytes=30.0, of_16=0.3)
        return Answered("4 bits free.", (four, two_bits), advised_by=("kv2", "kv4"), otherwise="Leave it.")

    part = Part("cache", "Cache bits", {"prose": answered("small"), "code": answered("costs")})
    assert part.advice == "Use 4 bits: 30 % of the bytes of a 16-bit cache."
    both = Part("cache", "Cache bits", {"prose": answered("small"), "code": answered("small")})
    assert both.advice == "Use 2 bits: 20 % of the bytes of a 16-bit cache."
    assert Answered.from_json(answered("small").to_json()) == answered("small")


def test_what_was_measured_on_one_kind_of_texts_alone_is_no_advice() -> None:
    row = Row("rescue", "16 maps whole", Interval(0.05, 0.04, 0.06), "KL a token", 12, "small", advice="16 maps whole")
    part = Part("int8", "int8", {"prose": Answered("a", (row,)), "code": Answered("a", ())})
    assert part.rows[0].advice == ""
    assert "on prose alone" in part.rows[0].why
    second = Part("int8", "int8", {"prose": Answered("a", ()), "code": Answered("a", (row,))})
    assert [(row.key, row.advice, row.why) for row in second.rows] == [("rescue", "", "on code alone")]
    assert second.rows[0].finding == "16 maps whole, on code"


def test_what_to_do_where_nothing_is_advised_is_of_the_worse_texts() -> None:
    def answered(most: str, one: str, otherwise: str) -> Answered:
        rows = [Row(f"sinks-{n}", "a", Interval(0.1, 0.1, 0.1), "nats", 8, w) for n, w in ((1, one), (4, most))]
        return Answered("a", tuple(rows), advised_by=("sinks-1", "sinks-4"), otherwise=otherwise)

    def advice(first: Answered, second: Answered) -> str:
        part = Part("stream", "Long text", {"prose": first, "code": second})
        return part.advice

    costs, breaks = answered("costs", "free", "keep 1"), answered("breaks", "costs", "do not")
    assert advice(costs, breaks) == advice(breaks, costs) == "do not"
    dear = answered("costs", "costs", "keep 4")
    assert advice(costs, dear) == advice(dear, costs) == "keep 4"


@pytest.mark.slow
@pytest.mark.parametrize(("beyond_random", "advised"), [(-0.1, True), (0.0, False)])
def test_eviction_is_advised_only_where_it_beats_random_keys(
    beyond_random: float, advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "grade", lambda trial, arm: Grade("small"))
    interval = Interval(beyond_random, beyond_random - 0.05, beyond_random + 0.05)
    monkeypatch.setattr(Trial, "difference", lambda *_, **__: interval)
    subject = checked_model("nano", load("nano"), load_tokenizer("nano"), count=3, tokens=64)
    answered = SECTIONS["evict"].run(subject, subject.sets[0], None)
    assert {bool(row.advice) for row in answered.rows} == {advised}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("four", "one", "advice"),
    [
        ("small", "free", "Keep 1"),
        ("small", "costs", "Keep 4"),
        ("costs", "free", "A stream of 8 keys cannot be advised; if it has to be, keep 1 first token."),
        ("costs", "costs", "A stream of 8 keys cannot be advised; if it has to be, keep 4 first tokens."),
        ("breaks", "free", "Do not stream with 8 keys."),
    ],
)
def test_no_stream_is_advised_where_the_one_with_most_first_tokens_costs(
    four: str, one: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fewer first tokens cost is against that stream, so alone it says nothing about streaming."""
    words = {"4 first tokens kept": four, "1 first token kept": one}
    monkeypatch.setattr(Trial, "grade", lambda trial, arm: Grade(words.get(arm, "costs")))
    subject = checked_model("nano", load("nano"), load_tokenizer("nano"), count=3, tokens=32)
    subject.long_texts = lambda texts: texts
    answered = SECTIONS["stream"].run(subject, subject.sets[0], None)
    assert Part("stream", "Long text", {"prose": answered}).advice.startswith(advice)


def test_sections_that_were_not_run_for_one_reason_are_named_together() -> None:
    parts = [Part(name, name, {"prose": Answered(missing=reason)}) for name, reason in zip("abc", "xyx", strict=True)]
    card = Card({"model": "m", "texts": [], "seconds": 1.0}, tuple(parts))
    assert card.lines()[1:] == ["Not run: a, c (x); b (y)."]


def test_a_short_table_has_advice_of_every_section_before_more_of_one() -> None:
    def part(name: str, *words: str) -> Part:
        rows = [
            Row(f"{name} {place}", f"{name} {place}", Interval(0.05, 0.04, 0.06), "KL a token", 24, word, advice="so")
            for place, word in enumerate(words)
        ]
        rows.append(Row(f"{name} breaks", f"{name} breaks", Interval(9, 8, 10), "KL a token", 24, "breaks"))
        return Part(name, name, {"prose": Answered(rows=tuple(rows))})

    card = Card({}, (part("cache", "small", "small", "small"), part("int8", "free")))
    names = [[cell[0] for cell in card.cells(count)[1]] for count in (2, 4, 5)]
    assert names[0] == ["cache 0", "int8 0"]
    assert names[1] == ["cache 0", "cache 1", "cache 2", "int8 0"]
    assert names[2] == [*names[1][:3], "cache breaks", "int8 0"]


def test_words_hold_only_where_both_texts_have_some() -> None:
    row = Row("kv2", "2 bits", Interval(0.05, 0.04, 0.06), "KL a token", 24, "small", advice="use 2 bits")
    first = Answered("2 bits small.", (row,), advised_by=("kv2",), otherwise="Leave it.")
    without_a_word = Answered("A rate.", (replace(row, word="", advice=""),))

    def answer(one: Answered, other: Answered) -> str:
        return Part("cache", "Cache bits", {"prose": one, "code": other}).answer

    assert answer(first, Answered("8 bits small.", (replace(row, key="kv8"),))) == "2 bits small. Leave it."
    not_run = Answered(missing="too few texts")
    assert answer(first, not_run) == "2 bits small. Not run on code: too few texts. Leave it."
    assert answer(without_a_word, without_a_word) == "A rate."


def test_a_line_cuts_the_finding_rather_than_the_advice() -> None:
    row = Row("kv2", "2 bits", Interval(0.05, 0.04, 0.06), "KL a token", 24, "small", advice="use 2 bits", of_16=0.2)
    long = Answered("A finding that is long and has numbers " * 6, (row,), advised_by=("kv2",))
    part = Part("cache", "Cache bits", {"prose": long})
    assert part.line().endswith(f" …. {part.advice}")
    assert len(part.line()) <= 118
    assert len(part.line(80)) <= 80


def test_a_card_of_all_sections_fits_a_screen_with_its_rows() -> None:
    number = Interval(0.05, 0.04, 0.06)
    words = ("small", "costs", "free", "breaks")
    parts = []
    for section in SECTIONS.values():
        rows = [
            Row(f"{section.name}{i}", f"finding {i}", number, "KL a token", 24, words[i % 4], bytes=9e5, of_16=0.5)
            for i in range(12)
        ]
        rows = [replace(row, advice="use it" if row.word in ("small", "free") else "") for row in rows]
        answer = f"{'A finding that is long, with numbers. ' * 12}"
        answers = Answered(answer, tuple(rows), advised_by=(rows[0].key,))
        parts.append(Part(section.name, section.title, {"prose": answers, "code": answers}))
    line = {"source": "an-engine@abc, file.cpp", "date": "2026-11-26", "beware": "of much " * 20}
    lines_for = [{"engine": "E", "line": f"--option{i} {i}", **line} for i in range(6)]
    record = {"model": "m", "texts": [{"says": "24 texts of 128 tokens: prose"}], "seconds": 9.0}
    text, _, cells = Card(record, tuple(parts), tuple(lines_for)).screen(30)
    assert len(text) + 1 + len(cells) <= 30
    assert len(cells) >= 8
    assert max(map(len, text)) <= 118
    assert all(row[-1] == "use it" for row in cells)  # with more rows than fit, those that say what to do
    assert [sum(one.startswith(section.title) for one in text) for section in SECTIONS.values()] == [1] * len(SECTIONS)


def test_of_several_lines_for_one_option_the_one_of_fewest_bytes_is_shown() -> None:
    lines_for = [
        {"engine": "E", "line": "-ctk q8", "of_16": 0.53},
        {"engine": "E", "line": "-ctk q4", "of_16": 0.28},
        {"engine": "F", "line": "-ctk q8", "of_16": 0.53},
        {"engine": "E", "line": "--keep 1"},
    ]
    assert smallest(lines_for) == lines_for[1:]
