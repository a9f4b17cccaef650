"""What engines read of a result: lines of measured arms, sinks as JSON, weights that load without sinkscope."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GraniteSWAForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import sinkscope as ss
from sinkscope.checks import Answered, Card, Part, Row, engines
from sinkscope.checks.exporting import sinks_json
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import ZeroHeads
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.statistics import Interval
from sinkscope.trials import changed


@pytest.fixture(scope="module")
def card() -> Card:
    return ss.check("nano", count=4, tokens=64, only=["sink", "bos", "cache"])


@pytest.fixture(scope="module")
def with_engines() -> Card:
    return ss.check("nano", count=4, tokens=64, only=["sink", "bos", "cache", "engines"])


def with_stream(card: Card, lost: float, keep: int = 3, **facts: int) -> Card:
    """The card with a stream that keeps the first tokens and predicts so much worse than without."""
    number, advice = Interval(lost, lost - 0.01, lost + 0.01), f"keep {keep}" if lost < 0 else ""
    row = Row("llama.cpp", "llama.cpp", number, "nats lost a token", 12, advice=advice)
    part = Part("engines", "As engines cache", {"prose": Answered(rows=(row,), facts={"keep": keep} | facts)})
    return replace(card, parts=(*(one for one in card.parts if one.name not in ("cache", "engines")), part))


@pytest.mark.slow
def test_the_section_measures_every_engine(with_engines: Card) -> None:
    card = with_engines
    rows = {row.key: row for row in card.part("engines").rows}
    ggml = [f"llama.cpp-{kind}" for kind in ("q5_1", "q5_0", "q4_1", "iq4_nl")]
    assert rows.keys() == {"llama.cpp", "mlx", "executorch", *ggml, "vllm-fp8-calibrated"}
    cache = {row.key: row for row in card.part("cache").rows}
    rows |= {name: cache[name] for name in ("llama.cpp-q8_0", "llama.cpp-q4_0", "vllm-fp8")}
    assert rows["llama.cpp-q8_0"].number.value < rows["llama.cpp-q5_1"].number.value
    assert rows["llama.cpp-q5_1"].number.value < rows["llama.cpp-q4_0"].number.value
    shares = [rows[name].of_16 for name in ("llama.cpp-q4_0", *reversed(ggml), "vllm-fp8", "llama.cpp-q8_0")]
    assert shares == sorted(shares)
    assert shares[-1] < 0.6
    assert rows["vllm-fp8"].of_16 == rows["vllm-fp8-calibrated"].of_16
    assert rows["mlx"].of_16 == pytest.approx(0.5)  # half as many cells as a text has tokens
    facts = card.part("engines").first.facts
    assert (facts["keep"], facts["tokenizer_adds"]) == (1, 1)


@pytest.mark.slow
def test_lines_of_measured_arms_are_written_with_their_sources(with_engines: Card, tmp_path: Path) -> None:
    paths = ss.export(with_engines, "llama.cpp", tmp_path)
    assert [path.name for path in paths] == ["llama.cpp.txt", "sinks.json"]
    text = paths[0].read_text()
    assert "\n-ctk q8_0 -ctv q8_0\n# source: llama.cpp@" in text
    assert "not run here" in text
    assert "--context-shift" not in text  # keeping the first token gains nothing on nano


@pytest.mark.parametrize("name", ["a.gguf", "a.GGUF"])
def test_lines_for_gguf_files_are_written_however_the_name_is_spelled(card: Card, tmp_path: Path, name: str) -> None:
    row = Row("no-BOS", "no BOS", Interval(-0.1, -0.2, -0.05), "nats", 24, "small", advice="send no BOS")
    bos = Part("bos", "BOS", {"prose": Answered(rows=(row,))})
    made = replace(card, record={**card.record, "model": name}, parts=(bos,))
    assert "add_bos_token" in ss.export(made, "llama.cpp", tmp_path)[0].read_text()


@pytest.mark.parametrize(("lost", "kept"), [(-0.1, True), (+0.1, False)])
def test_a_stream_is_written_where_its_arm_predicts_better(card: Card, tmp_path: Path, lost: float, kept: bool) -> None:
    made = with_stream(card, lost)
    if not kept:
        with pytest.raises(InputError, match=r"no advice: .*llama\.cpp \+0\.1"):
            ss.export(made, "llama.cpp", tmp_path)
        return
    text = ss.export(made, "llama.cpp", tmp_path)[0].read_text()
    assert "\n--context-shift --keep 2\n" in text  # three, of which nano's tokenizer adds one


def test_a_card_without_the_section_on_bos_knows_whether_the_tokenizer_adds_one(card: Card) -> None:
    def kept(made: Card) -> list[str]:
        alone = [part for part in made.parts if part.name == "engines"]
        return [line["line"] for line in engines.lines(alone, gguf=False) if line["engine"] == "llama.cpp"]

    assert kept(with_stream(card, -0.1, tokenizer_adds=1)) == ["--context-shift --keep 2"]
    assert kept(with_stream(card, -0.1, tokenizer_adds=0)) == ["--context-shift --keep 3"]
    assert kept(with_stream(card, -0.1)) == []  # a card of before: nobody knows


def test_sinks_as_json(card: Card, tmp_path: Path) -> None:
    card = replace(card, parts=(*card.parts, with_stream(card, 0.1, keep=1).part("engines")))
    data = json.loads(ss.export(card, "vLLM", tmp_path)[1].read_text())
    assert data == json.loads(json.dumps(sinks_json(card)))
    assert (data["position"], data["keep"], data["tokenizer_adds"], data["revision"]) == (0, 1, 1, None)
    assert dict(zip(data["positions"], data["tokens"], strict=True))[0] == data["token"] == data["bos"]
    assert [layer for layer, *_ in data["by_layer"]] == [0, 1, 2, 3]
    assert max(data["by_layer"], key=lambda row: row[1])[0] in data["layers"]
    assert {layer for layer, *_ in data["by_head"]} >= set(data["layers"])
    for _, _, rate, low, high in data["by_head"]:
        assert 0 <= low <= rate <= high <= 100


def test_what_was_not_measured_or_not_advised_is_refused(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="did you mean 'vLLM'"):
        ss.export(card, "vLM", tmp_path)
    with pytest.raises(InputError, match="TensorRT-LLM: not possible"):
        ss.export(card, "tensorrt-llm", tmp_path)
    with pytest.raises(InputError, match="which engine"):
        ss.export(card, out=tmp_path)
    alone = replace(card, parts=card.parts[:1])
    with pytest.raises(InputError, match="nothing of what it runs was measured"):
        ss.export(alone, "MLX", tmp_path)
    checked = engines.entries()
    monkeypatch.setattr(engines, "entries", lambda: [{**entry, "source": ""} for entry in checked])
    with pytest.raises(InputError, match="no line"):
        ss.export(card, "vLLM", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_trial_of_rounded_caches_is_a_result_too(tmp_path: Path) -> None:
    ids = torch.randint(3, 2000, (4, 40), generator=torch.Generator().manual_seed(0))
    trial = ss.trials.eviction_trial(ss.load("nano"), ids, ["vllm-fp8", "mlx"], [20], protect="none", controls=0)
    assert "--kv-cache-dtype fp8" in ss.export(trial, "vllm", tmp_path)[0].read_text()
    with pytest.raises(InputError, match="no advice: mlx@20 "):
        ss.export(trial, "MLX", tmp_path)


def test_weights_with_sinks_are_a_folder_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LabConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, intermediate_size=32, attention="sink_logit")
    model = LabForCausalLM(config).eval()
    ss.export(model, out=tmp_path / "new")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "new").eval()
    assert type(again) is GraniteSWAForCausalLM
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match="is not empty"):
        ss.export(model, out=tmp_path / "new")
    with pytest.raises(InputError, match="weights are for all engines"):
        ss.export(model, "vLLM", tmp_path / "other")


def test_a_file_is_no_folder_to_write_to(card: Card, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for source, engine in (("nano", None), (card, "vLLM")):
        for out in (tmp_path / "file", tmp_path / "file" / "there"):
            with pytest.raises(InputError, match=r"cannot write to .*: Not a directory"):
                ss.export(source, engine, out)


def test_a_trial_of_zeroed_heads_gives_the_pruned_model(tmp_path: Path) -> None:
    model = ss.load("nano")
    ids = torch.randint(3, 2000, (6, 24), generator=torch.Generator().manual_seed(0))
    heads = [(3, 0), (3, 2)]
    trial = changed(model, ids, ZeroHeads(heads), controls=1)
    ss.export(trial, out=tmp_path / "pruned")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned").eval()
    with torch.no_grad(), ZeroHeads(heads).applied(model):
        wanted = model(input_ids=ids).logits
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, wanted, atol=1e-4, rtol=1e-4)


def mistral(window: int | None) -> MistralForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MistralConfig(vocab_size=50, **sizes, num_key_value_heads=2, head_dim=8, sliding_window=window)
    model = MistralForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data *= 20 if weight.ndim == 2 else 1
    return model


def test_a_model_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(self: MistralForCausalLM, folder: Path) -> None:
        save(self, folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    model, save = mistral(6), MistralForCausalLM.save_pretrained
    monkeypatch.setattr(MistralForCausalLM, "save_pretrained", full_disk)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with pytest.raises(InputError, match="No space left on device"):
            ss.export(model, out=tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    monkeypatch.undo()
    assert tmp_path / "empty" / "config.json" in ss.export(model, out=tmp_path / "empty")


def test_a_folded_sink_is_written_for_windows_that_left_it_behind(tmp_path: Path) -> None:
    model, window = mistral(6), 6
    texts = torch.randint(1, 50, (8, 30), generator=torch.Generator().manual_seed(1))
    fold = ss.fold(model, texts[3:], "logit", on="positions:0", after=2, gone=True)
    ss.export(model, out=tmp_path / "folded", fold=fold)
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "folded")
    assert isinstance(written, GraniteSWAForCausalLM)
    assert json.loads((tmp_path / "folded" / "fold.json").read_text())["form"] == "logit"
    with torch.no_grad():
        found, plain = written(texts[:3]).logits, model(texts[:3]).logits
        with fold.applied(model):
            expected = model(texts[:3]).logits
    clear = 2 * (window - 1) + 1  # from here on nothing comes from a query that saw token 0
    torch.testing.assert_close(found[:, clear:], expected[:, clear:], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found[:, :clear], expected[:, :clear], atol=1e-2), "there it counts twice"
    assert not torch.allclose(found[:, clear:], plain[:, clear:], atol=1e-2), "the sink is missed"


def test_a_sink_that_would_count_twice_is_not_written(tmp_path: Path) -> None:
    texts = torch.randint(1, 50, (4, 20), generator=torch.Generator().manual_seed(1))
    fold = ss.fold(mistral(6), texts, "logit", on="positions:0", after=2)
    with pytest.raises(UnsupportedModelError, match="2 of 2 layers see every token"):
        ss.export(mistral(None), out=tmp_path / "a", fold=fold)
    with pytest.raises(UnsupportedModelError, match="4 of 4 layers see every token"):
        ss.export("nano", out=tmp_path / "a", fold=fold)
    for other, message in (
        (replace(fold, form="logit+value"), "no value"),
        (replace(fold, layers=(0,)), "in all layers"),
    ):
        with pytest.raises(InputError, match=message):
            ss.export(mistral(6), out=tmp_path / "a", fold=other)
    with pytest.raises(InputError, match="and no engine"):
        ss.export(mistral(6), "vLLM", tmp_path / "a", fold=fold)
