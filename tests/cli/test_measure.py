from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from sinkscope.cli import main
from sinkscope.cli import measure as measuring
from sinkscope.data import InputReading
from sinkscope.measurement import Measurement, measure
from sinkscope.model import LabConfig, LabForCausalLM
from tests.families.registry import FAMILIES

FEW = ("--tokens", 16, "--samples", 4)
QUICK = (*FEW, "--observers", "few")  # where what all observers say is not the point


FILES = {"figure.html", "measurement.nc", "table.csv"}
TABLES = {"definitions.csv", "heads.csv", "depths.csv", "tokens.csv", "kinds.csv", "massive.csv"}


@pytest.fixture(scope="module")
def whole(model, text, tmp_path_factory) -> tuple[str, Path]:
    """What is printed, and the folder that is written, where nothing is left out."""
    folder, out = tmp_path_factory.mktemp("whole") / "found", io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["measure", str(model), "--text", str(text), *map(str, FEW), "--out", str(folder), "--full"]) == 0
    return out.getvalue(), folder


@pytest.mark.slow
def test_prints_tables_with_intervals_and_writes_the_files(whole):
    out, folder = whole
    assert out.splitlines()[0].startswith(("Yes: position", "Hardly: on average", "No: on this input"))
    assert "95 % interval" in out
    assert "position 0 receives over 0.3" in out
    assert "found/figure.html" in "".join(out.split())
    assert {path.name for path in folder.iterdir() if not path.match("manifest-*.json")} == FILES | TABLES
    stored = Measurement.load(folder / "measurement.nc")
    assert stored.data["attention_received"].shape == (4, 2, 4, 16)
    assert stored.record["input"]["kind"] == "natural"
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert [row["layer"] for row in rows] == ["0", "1"]


@pytest.mark.slow
def test_every_definition_is_printed_and_stored(whole):
    out, folder = whole
    stored = Measurement.load(folder / "measurement.nc")
    rows = list(csv.DictReader((folder / "definitions.csv").read_text().splitlines()))
    assert [row["definition"] for row in rows] == stored.definitions()["definition"].tolist()
    unobserved = {row["definition"]: row["note"] for row in rows if row["note"]}
    assert unobserved == {"dark signal": "not observed: band_energy"}  # --observers all,SpectralBands
    assert "massive" in out
    assert "agreement" in out


@pytest.fixture(scope="module")
def deep(model, tmp_path_factory) -> Path:
    """Twenty layers, with the tokenizer of `model`."""
    folder = tmp_path_factory.mktemp("models") / "deep"
    shutil.copytree(model, folder)
    config = LabConfig.from_pretrained(model)
    config.num_hidden_layers = 20
    LabForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.release
def test_a_deep_model_prints_no_more_lines(sinkscope, deep, text):
    options = ("measure", deep, "--text", text, *FEW)
    brief = sinkscope(*options)
    assert len(brief.out.splitlines()) <= 30
    assert "By layer: 0–19" in brief.out
    assert len(sinkscope(*options, "--full").out.splitlines()) > 60


def test_the_answer_is_in_the_json(sinkscope, model, text):
    found = sinkscope("measure", model, "--text", text, *QUICK, "--json").json
    (value, low, high) = found["answer"]["rates"]["decoder"]
    assert low <= value <= high
    assert value == pytest.approx(found["sink_rate"]["0"])
    assert found["answer"]["sentences"]


@pytest.mark.slow
def test_few_observers_are_fewer(sinkscope, model, text, tmp_path):
    assert sinkscope("measure", model, "--text", text, *QUICK, "--out", "few").code == 0
    stored = Measurement.load(tmp_path / "few" / "measurement.nc")
    assert {"attention_received", "hidden_norm"} < set(stored.data)
    assert "attention_entropy" not in stored.data
    assert not (tmp_path / "few" / "massive.csv").exists()


@pytest.mark.slow
def test_maps_of_the_heads_that_were_asked_for(sinkscope, model, text, tmp_path, pages):
    assert sinkscope("measure", model, "--text", text, *QUICK, "--maps", "1.2", "--maps", "0.0", "--out", "m").code == 0
    assert (tmp_path / "m" / "figure.html").exists()


def test_the_tokens_of_maps_are_the_decoders_where_there_is_one():
    family = FAMILIES["t5"]
    model, inputs = family.build(), family.inputs()
    maps = measuring.head_maps(model, InputReading((inputs,), "", ""), measure(model, inputs), [(0, 0)])
    assert maps.tokens == [str(token) for token in inputs["decoder_input_ids"][0].tolist()]


@pytest.mark.slow
def test_every_first_token_gets_a_row(sinkscope, model, text, tmp_path):
    answer = sinkscope(
        "measure", model, "--input", "first-token", "--text", text, "--tokens", 12, "--samples", 9999, *QUICK[4:]
    )
    assert answer.code == 0
    [folder] = (tmp_path / "sinkscope-measure").iterdir()
    rows = list(csv.DictReader((folder / "first_tokens.csv").read_text().splitlines()))
    stored = Measurement.load(folder / "measurement.nc")
    assert len({row["id"] for row in rows}) == len(rows) == stored.record["samples"]
    assert f"sink rate over {len(rows)} first tokens" in answer.out
    assert "become a sink (rate" in answer.out
    assert "every one of the" in stored.record["input"]["description"]


@pytest.mark.slow
def test_a_folder_of_domains_is_a_row_per_domain(sinkscope, model, text, tmp_path, pages):
    places = tmp_path / "domains"
    (places / "law").mkdir(parents=True)
    (places / "code.txt").write_text(text.read_text())
    (places / "law" / "a.txt").write_text(text.read_text()[::-1])
    (places / "short.txt").write_text("def")
    answer = sinkscope("measure", model, "--text", places, *QUICK, "--out", "found", "--json")
    rows = {row["domain"]: row for row in answer.json["domains"]}
    assert list(rows) == ["code.txt", "law", "short.txt"]
    assert "a window takes 16" in rows["short.txt"]["reason"]
    stored = Measurement.load(tmp_path / "found" / "law" / "measurement.nc")
    assert rows["law"]["sink_rate"] == pytest.approx(stored.sink_rate(position=0))
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "code.txt",
        "law",
        "domains.csv",
        "domains.json",
        "figure.html",
    }
    assert "by domain" in (tmp_path / "found" / "figure.html").read_text()
    shown = sinkscope("measure", model, "--text", places, *QUICK, "--out", "found")
    assert "law" in shown.out


@pytest.mark.slow
def test_a_bos_can_be_left_out_and_doubled(sinkscope, model, text):
    first = {
        bos: sinkscope("measure", model, "--text", text, *FEW, "--bos", bos, "--observers", "few", "--json").json
        for bos in ("none", "add", "double")
    }
    assert first["add"]["input_details"]["first"] == "<bos> (id 0)"
    assert first["double"]["input_details"]["first"] == "<bos> (id 0), 2 times"
    assert first["none"]["input_details"]["position_0"]["distinct"] > 1


def test_natural_text_from_another_corpus(sinkscope, model, tmp_path):
    for index in range(40):
        (tmp_path / f"{index}.txt").write_text(f"def return attention sink token {index} " * 60)
    answer = sinkscope("measure", model, "--corpus", "text:*.txt", *QUICK, "--json")
    assert "text:*.txt" in answer.json["input_details"]["description"]


@pytest.mark.slow
@pytest.mark.filterwarnings("always:the model's activations")
def test_activations_that_overflow_are_a_finding(sinkscope, model, text, tmp_path, pages):
    from safetensors.torch import load_file, save_file

    loud = tmp_path / "loud"
    loud.mkdir()
    for path in model.iterdir():
        (loud / path.name).write_bytes(path.read_bytes())
    tensors = load_file(loud / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] *= 1e38
    save_file(tensors, loud / "model.safetensors", metadata={"format": "pt"})
    answer = sinkscope("measure", loud, "--text", text, *QUICK, "--out", "found")
    assert answer.code == 0
    assert "NaN or infinite" in answer.err
    assert "first at depth 1" in answer.err
    assert "NaN or infinite" in (tmp_path / "found" / "figure.html").read_text()


def test_json_is_alone_on_stdout_and_has_the_fixed_keys(sinkscope, model, text):
    answer = sinkscope("measure", model, "--text", text, *QUICK, "--json")
    assert answer.code == 0
    found = answer.json
    assert found["model"] == str(model)
    assert (found["input"], found["tokens"], found["samples"], found["epsilon"]) == ("natural", 16, 4, 0.3)
    assert list(found["sink_rate"]) == [str(position) for position in range(16)]
    assert [layer["layer"] for layer in found["layers"]] == [0, 1]
    assert set(found["layers"][0]["sink_rate"]) == set(found["sink_rate"])
    assert len(found["hidden_norm_ratio"]) == 3
    assert len(found["value_norm_ratio"]) == 2


@pytest.mark.slow
def test_the_verdict_says_what_a_learned_sink_receives(sinkscope, model, text, tmp_path):
    learned, size = tmp_path / "learned", LabConfig.from_pretrained(model)
    shape = {name: getattr(size, name) for name in ("vocab_size", "hidden_size", "intermediate_size", "bos_token_id")}
    config = LabConfig(**shape, num_hidden_layers=2, num_attention_heads=4, attention="sink_logit")
    LabForCausalLM(config).save_pretrained(learned)
    for path in model.glob("tokenizer*"):
        (learned / path.name).write_bytes(path.read_bytes())
    answer = sinkscope("measure", learned, "--text", text, *QUICK, "--out", "found")
    mass = float(Measurement.load(tmp_path / "found" / "measurement.nc").data["slot_received"].mean())
    assert mass > 0.01
    verdict = " ".join(answer.out.split())
    assert f"slots (learned sinks, key biases: no tokens) receive {100 * mass:.1f} % of the attention" in verdict
    assert "goes to slots" in answer.out.splitlines()[0]
    assert "slots" not in sinkscope("measure", model, "--text", text, *QUICK).out


@pytest.mark.slow
def test_text_and_json_agree_with_the_stored_measurement(sinkscope, model, text, tmp_path):
    found = sinkscope("measure", model, "--text", text, *QUICK, "--epsilon", 0.1, "--out", "m", "--json").json
    stored = Measurement.load(tmp_path / "m" / "measurement.nc")
    assert found["sink_rate"]["0"] == pytest.approx(stored.sink_rate(0.1, position=0))


@pytest.mark.slow
def test_the_shipped_model_has_a_sink_on_text_and_none_on_repeated_tokens(sinkscope):
    options = ("--samples", 50, "--observers", "few", "--json")
    natural = sinkscope("measure", "nano", *options).json
    repeated = sinkscope("measure", "nano", "--input", "repeated", *options).json
    assert natural["sink_rate"]["0"] >= 8
    assert repeated["sink_rate"]["0"] < 1
    assert natural["input_details"]["first"] == "<bos> (id 0)"


@pytest.mark.parametrize("kind", ["random", "repeated", "first-token"])
def test_every_kind_of_input(sinkscope, model, text, kind):
    source = ("--text", text) if kind == "first-token" else ()
    answer = sinkscope("measure", model, "--input", kind, *source, *QUICK, "--json")
    assert answer.code == 0
    assert answer.json["input"] == kind


@pytest.mark.slow
def test_repeated_tokens_share_the_attention(sinkscope, model):
    found = sinkscope("measure", model, "--input", "repeated", "--tokens", 32, *QUICK[2:], "--json").json
    assert found["sink_rate"]["0"] == 0.0
    assert found["hidden_norm_ratio"] == pytest.approx([1.0, 1.0, 1.0], abs=1e-4)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(sinkscope, model, text):
    first, second, other = (
        sinkscope("measure", model, "--text", text, *QUICK, "--seed", seed, "--json").json for seed in (1, 1, 2)
    )
    assert first == second
    assert first["input_details"]["sha256"] != other["input_details"]["sha256"]


@pytest.mark.slow
def test_without_out_it_says_where_the_files_are(sinkscope, model, text, tmp_path):
    answer = sinkscope("measure", model, "--text", text, *QUICK)
    [folder] = (tmp_path / "sinkscope-measure").iterdir()
    assert folder.name.startswith("tiny-natural-")
    assert "sinkscope-measure/" in answer.out


@pytest.mark.slow
def test_the_models_name_is_text_in_table_and_page(sinkscope, model, text, tmp_path, pages):
    evil = tmp_path / "[red]<img src=x onerror=alert(1)>"
    evil.mkdir()
    for path in model.iterdir():
        (evil / path.name).write_bytes(path.read_bytes())
    answer = sinkscope("measure", evil.name, "--text", text, *QUICK, "--out", "m")
    assert answer.code == 0
    assert "[red]<img src=x onerror=alert(1)>" in answer.out
    assert "<img" not in (tmp_path / "m" / "figure.html").read_text()


@pytest.mark.filterwarnings("always:sink rates say little")
def test_few_tokens_are_warned_about(sinkscope, model, text):
    answer = sinkscope("measure", model, "--text", text, "--observers", "few", "--tokens", 8, "--samples", 2)
    assert answer.code == 0
    assert "warning: " in answer.err
    assert "uniform attention itself gives position 0 of 8 tokens" in answer.err


@pytest.mark.slow
def test_a_chat_template_stands_first(sinkscope, model, text, tmp_path):
    chatty = tmp_path / "chatty"
    chatty.mkdir()
    for path in model.iterdir():
        (chatty / path.name).write_bytes(path.read_bytes())
    settings = json.loads((chatty / "tokenizer_config.json").read_text())
    settings["chat_template"] = "<eos>{{ messages[0]['content'] }}"
    (chatty / "tokenizer_config.json").write_text(json.dumps(settings))
    found = sinkscope("measure", chatty, "--text", text, *QUICK, "--chat-template", "--json").json
    assert "chat template" in found["input_details"]["first"]
    assert found["input_details"]["position_0"]["distinct"] == 1


def test_a_template_that_cannot_be_filled_is_said_with_the_way_out(sinkscope, model, text, tmp_path):
    copy = tmp_path / "chatty"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "chat_template.jinja").write_text("{{ raise_exception('no users here') }}")
    answer = sinkscope("measure", copy, "--text", text, *QUICK)
    assert answer.code == 2
    assert "no users here; --raw-text" in answer.error
    assert sinkscope("measure", copy, "--text", text, *QUICK, "--raw-text").code == 0


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """The models that were loaded to be measured, by folder name."""
    names, load = [], measuring.open_model
    monkeypatch.setattr(
        measuring, "open_model", lambda name, *options: names.append(Path(name).name) or load(name, *options)
    )
    return names


def test_the_same_call_into_its_folder_measures_nothing(sinkscope, model, text, loads):
    call = ("measure", model, "--text", text, *QUICK, "--out", "found")
    first, again = sinkscope(*call, "--json"), sinkscope(*call, "--json")
    assert again.json == first.json
    assert "not measured again: found holds this measurement (delete found/measurement.nc to" in again.err
    shown = sinkscope(*call, "--full")
    assert "95 % interval" in shown.out
    assert loads == ["tiny"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [("--seed", 1), ("--epsilon", 0.2), ("--bos", "none"), ("--maps", "0.0"), ("--dtype", "bfloat16")],
    ids=str,
)
def test_another_option_is_measured_into_the_same_folder(sinkscope, model, text, loads, change):
    call = ("measure", model, "--text", text, *QUICK, "--out", "found")
    assert sinkscope(*call).code == 0
    assert "not measured again" not in sinkscope(*call, *change).err
    assert "not measured again" not in sinkscope(*call).err, "the folder holds the other one now"
    assert len(loads) == 3


@pytest.mark.slow
def test_other_weights_and_another_text_are_measured_into_the_same_folder(sinkscope, model, text, tmp_path, loads):
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, tmp_path / "mine")
    shutil.copy(text, tmp_path / "mine.txt")
    call = ("measure", "mine", "--text", "mine.txt", *QUICK, "--out", "found", "--json")
    first = sinkscope(*call).json
    weights = tmp_path / "mine" / "model.safetensors"
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    second = sinkscope(*call).json
    (tmp_path / "mine.txt").write_text(text.read_text()[::-1])
    third = sinkscope(*call).json
    assert len(loads) == 3
    assert first["hidden_norm_ratio"] != second["hidden_norm_ratio"]
    assert second["input_details"]["sha256"] != third["input_details"]["sha256"]


def _truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _one_bit_off(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


DAMAGE = {
    "half a measurement": ("measurement.nc", _truncated),
    "one bit of it": ("measurement.nc", _one_bit_off),
    "no page": ("figure.html", None),
    "another table": ("table.csv", lambda content: content + b"1,2"),
    "half a manifest": ("manifest-*.json", _truncated),
    "a manifest of nothing": ("manifest-*.json", lambda content: b"{}"),
    "a manifest of another form": ("manifest-*.json", lambda content: b'["measurement.nc"]'),
}


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_a_folder_that_does_not_prove_what_it_holds_is_measured_again(
    sinkscope, model, text, tmp_path, loads, pattern, damage
):
    call = ("measure", model, "--text", text, *QUICK, "--out", "found", "--json")
    first = sinkscope(*call).json
    [path] = (tmp_path / "found").glob(pattern)
    path.unlink() if damage is None else path.write_bytes(damage(path.read_bytes()))
    answer = sinkscope(*call)
    assert answer.json == first
    assert "Traceback" not in answer.err
    assert len(loads) == 2
    assert len(list((tmp_path / "found").glob("manifest-*"))) == 1
    assert "not measured again" in sinkscope(*call).err


BAD = {
    "unknown model": (["measure", "nanno"], "did you mean 'nano'"),
    "no chat template": (["measure", "MODEL", "--text", "TEXT", *FEW, "--chat-template"], "chat template"),
    "chat of random tokens": (["measure", "MODEL", "--input", "random", "--chat-template"], "--chat-template"),
    "text for random tokens": (["measure", "MODEL", "--input", "random", "--text", "TEXT"], "--text"),
    "text shorter than the window": (["measure", "MODEL", "--text", "SHORT", "--tokens", 32], "32"),
    "not text": (["measure", "MODEL", "--text", "BINARY", *FEW], "binary"),
    "no such text": (["measure", "MODEL", "--text", "absent.txt", *FEW], "absent.txt"),
    "beyond the positions": (["measure", "MODEL", "--text", "TEXT", "--tokens", 33, "--samples", 2], "32"),
    "epsilon zero": (["measure", "MODEL", "--epsilon", 0], "epsilon"),
    "epsilon one": (["measure", "MODEL", "--epsilon", 1], "epsilon"),
    "epsilon not a number": (["measure", "MODEL", "--epsilon", "nan"], "epsilon"),
    "no such head": (["measure", "MODEL", "--text", "TEXT", *FEW, "--maps", "7.0"], "heads 0 to"),
    "a head without its layer": (["measure", "MODEL", "--text", "TEXT", *FEW, "--maps", "7"], "layer.head"),
    "a folder without domains": (["measure", "MODEL", "--text", "EMPTY", *FEW], "holds no domain"),
    "a domain named as a table": (["measure", "MODEL", "--text", "TABLES", *FEW], "domains.csv: the results need"),
    "no such corpus": (["measure", "MODEL", "--corpus", "pythn", *FEW], "python"),
    "unknown input": (["measure", "MODEL", "--input", "natral"], "natural"),
    "unknown option": (["measure", "MODEL", "--epsilo", 0.3], "--epsilon"),
    "unknown device": (["measure", "MODEL", "--device", "gpuu"], "gpuu"),
    "unknown dtype": (["measure", "MODEL", "--dtype", "float33"], "bfloat16"),
    "no tokens": (["measure", "MODEL", "--tokens", 0], "--tokens"),
    "an empty folder": (["measure", "EMPTY"], "config.json"),
    "a file instead of a model": (["measure", "TEXT"], "file"),
    "an output folder that is a file": (["measure", "MODEL", "--out", "TEXT"], "cannot write"),
    "an output folder below a file": (["measure", "MODEL", "--out", "TEXT/below"], "cannot write"),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_leaves_nothing(sinkscope, model, text, tmp_path, arguments, said):
    (tmp_path / "short.txt").write_text("def return")
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "tables").mkdir()
    for name in ("a.csv", "domains.csv"):
        (tmp_path / "tables" / name).write_text("text\n" + text.read_text())
    places = {
        "MODEL": str(model),
        "TEXT": str(text),
        "TEXT/below": f"{text}/below",
        "SHORT": "short.txt",
        "BINARY": "binary.bin",
        "EMPTY": "empty",
        "TABLES": "tables",
    }
    before = sorted(tmp_path.rglob("*"))
    answer = sinkscope(*(places.get(argument, argument) for argument in arguments))
    assert said in answer.error
    assert answer.out == ""
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == []


def test_a_token_outside_the_vocabulary_is_bad_input(sinkscope, model, text, tmp_path):
    small = tmp_path / "small"
    LabForCausalLM(LabConfig(vocab_size=100, hidden_size=8, num_attention_heads=2)).save_pretrained(small)
    for path in model.glob("tokenizer*"):
        (small / path.name).write_bytes(path.read_bytes())
    assert "100" in sinkscope("measure", small, "--text", text, *FEW).error


def test_a_damaged_model_is_bad_input(sinkscope, model, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in model.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "broken" in sinkscope("measure", broken, "--input", "random", *FEW).error


def test_nan_in_the_weights_is_bad_input(sinkscope, model, tmp_path):
    from safetensors.torch import load_file, save_file

    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    for path in model.iterdir():
        (spoiled / path.name).write_bytes(path.read_bytes())
    tensors = load_file(spoiled / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, spoiled / "model.safetensors", metadata={"format": "pt"})
    assert "NaN" in sinkscope("measure", spoiled, "--input", "random", *FEW).error


def test_a_full_disk_leaves_no_half_file(sinkscope, model, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    answer = sinkscope("measure", model, "--input", "random", *QUICK, "--out", "found")
    assert "No space left" in answer.error
    assert not [path for path in (tmp_path / "found").rglob("*") if path.is_file()]
