"""Encoder-decoders, images, recordings and files of rows on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import BartConfig, T5Config

from sinkscope.cli.opening import read_inputs
from sinkscope.cli.options import RUNNING, InputOptions
from sinkscope.interventions import NAMED, HideSink
from sinkscope.measurement import Measurement
from sinkscope.model import load
from tests.cli.conftest import prose
from tests.families.processors import (
    images,
    needs_torchvision,
    recordings,
    saved_classifier,
    saved_clip,
    saved_hearing,
    saved_pair,
    saved_vit,
    saved_wav2vec2,
    saved_whisper,
)

SMALL = {"tokens": 16, "samples": 4, "bos": "add"}
FEW = ("--tokens", 16, "--samples", 4)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each kind, with images and recordings. Shared: leave it as it is."""
    folder = tmp_path_factory.mktemp("places")
    saved_pair(folder / "bart", BartConfig, prose(0))
    saved_pair(folder / "t5", T5Config, prose(0))
    saved_vit(folder / "vit")
    saved_clip(folder / "clip")
    saved_wav2vec2(folder / "wav2vec2")
    saved_whisper(folder / "whisper")
    saved_hearing(folder / "hearing")
    saved_classifier(folder / "classifier")
    images(folder / "images")
    recordings(folder / "sounds")
    recordings(folder / "speech", (8000, 8000, 8000))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "t5"])
def test_the_stacks_of_an_encoder_decoder_are_shown_apart(sinkscope, places, text, tmp_path, name, pages):
    call = ("measure", places / name, "--text", text, "--bos", "add", *FEW, "--observers", "few", "--out", "m")
    shown = " ".join(sinkscope(*call).out.split())
    found = sinkscope(*call, "--json").json
    stored = Measurement.load(tmp_path / "m" / "measurement.nc")
    assert list(found["stacks"]) == ["encoder", "decoder", "cross"]
    for stack, numbers in found["stacks"].items():
        rate = stored.sink_rate(0.3, position=0, stack=stack)
        assert numbers["sink_rate"]["0"] == pytest.approx(rate)
        assert f"{stack}: position 0 receives over 0.3 of the attention in {rate:.1f} %" in shown
    assert found["input_details"]["position_0"]["token_ids"] == [1]  # the decoder's start token
    assert "start token" in found["input_details"]["first"]
    page = (tmp_path / "m" / "figure.html").read_text()
    assert all(f"sink rate of {stack} layers" in page for stack in found["stacks"])
    assert "Sink rate, per position, cross" in page


@pytest.mark.slow
def test_many_models_have_one_line_per_stack(sinkscope, places, model, text, tmp_path):
    answer = sinkscope(
        "measure", places / "bart", places / "t5", model, "--text", text, "--bos", "add", *FEW, "--out", "s", "--json"
    )
    assert [row["status"] for row in answer.json["models"]] == ["measured"] * 3, answer.out
    rows = json.loads((tmp_path / "s" / "survey.json").read_text())["rows"]
    assert [[at["stack"] for at in row["by_stack"]] for row in rows] == [["encoder", "decoder", "cross"]] * 2 + [
        ["decoder"]
    ]
    stored = Measurement.load(tmp_path / "s" / rows[0]["results"] / "measurement.nc")
    for at in rows[0]["by_stack"]:
        assert at["sink_rate"] == pytest.approx(stored.sink_rate(position=0, stack=at["stack"]))
    table = (tmp_path / "s" / "table.md").read_text()
    assert [line.split("|")[1].split(",")[-1].strip() for line in table.splitlines()[4:11]][:6] == [
        *("encoder", "decoder", "cross"),
    ] * 2
    assert "sink_rate_cross" in (tmp_path / "s" / "table.csv").read_text().splitlines()[0]


LONG = ("--prompt", "a b c d e f g h i j k l")  # a text of ten tokens and more, for the tower that reads it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "option", "folder", "more"),
    [
        ("vit", "--images", "images", ()),
        ("clip", "--images", "images", LONG),
        ("wav2vec2", "--audio", "sounds", ()),
        ("whisper", "--audio", "sounds", ()),
        ("hearing", "--audio", "speech", ("--prompt", "a b c")),
    ],
)
def test_images_and_recordings_are_measured_alone_and_among_many(
    sinkscope, places, name, option, folder, more, tmp_path
):
    given = (places / name, option, places / folder, *more, "--tokens", 12)
    found = sinkscope("measure", *given, "--observers", "few", "--out", "m", "--json").json
    assert found["input"] == option.strip("-")
    assert found["samples"] == 3
    stored = Measurement.load(tmp_path / "m" / "measurement.nc")
    assert {*found["stacks"]} == {*stored.data["stack"].values.tolist()}
    assert len(found["stacks"]) == {"clip": 2, "whisper": 3, "hearing": 2}.get(name, 1)
    assert f"3 {'images' if option == '--images' else 'recordings'} (0." in found["input_details"]["description"]
    row = sinkscope("measure", places / name, "nano", *given[1:], "--out", "s", "--json").json["models"][0]
    assert row["status"] == "measured", row["reason"]
    assert row["sink_rate"]["0"] == pytest.approx(found["sink_rate"]["0"])
    assert {*row["stacks"]} == {*found["stacks"]}


@pytest.mark.slow
def test_a_changed_image_is_measured_again(sinkscope, places, tmp_path):
    folder = images(tmp_path / "mine")
    call = ("measure", places / "vit", "nano", "--images", folder, "--out", "s", "--json")
    first, same = sinkscope(*call).json["models"][0], sinkscope(*call).json["models"][0]
    images(folder, ((24, 24), (30, 30), (20, 20)))
    assert same == first
    assert sinkscope(*call).json["models"][0]["results"] != first["results"]


@pytest.mark.slow
def test_a_model_that_reads_no_images_is_skipped(sinkscope, places, tmp_path):
    rows = sinkscope("measure", places / "vit", "nano", "--images", places / "images", "--json").json["models"]
    assert [row["status"] for row in rows] == ["measured", "skipped"]
    assert "reads no images" in rows[1]["reason"]


@pytest.mark.slow
def test_an_encoder_decoder_is_changed_in_its_decoder(sinkscope, places, text, tmp_path):
    """Its loss is over what the decoder reads next; nothing in the encoder is changed."""
    given = (places / "bart", "--text", text, "--bos", "add", *FEW)
    call = ("intervene", *given, "--what", "hide-sink", "--on", "first:1", "--after", 4, "--controls", 1)
    answer = sinkscope(*call, "--json")
    found = answer.json
    assert found["stack"] == "decoder"
    assert "changed: the decoder alone" in answer.err
    assert "the decoder reads the same tokens after its start token" in found["input"]
    model = load(places / "bart")
    [part] = read_inputs(model, str(places / "bart"), InputOptions(**SMALL, text=text), RUNNING).parts
    with torch.no_grad():
        plain = model(**part).logits
        encoded = model.get_encoder()(part["input_ids"])
        with HideSink((0,), 4).applied(model):
            logits, same = model(**part).logits, model.get_encoder()(part["input_ids"])
    targets = part["decoder_input_ids"][:, 5:]
    assert torch.equal(encoded[0], same[0])
    by_name = {row["arm"]: row for row in found["arms"]}
    for name, scores in (("full", plain), ("hide-sink", logits)):
        loss = F.cross_entropy(scores[:, 4:-1].transpose(1, 2), targets)
        assert by_name[name]["nats"] == pytest.approx(float(loss), rel=1e-5)
    p, q = plain[:, 4:-1].log_softmax(-1), logits[:, 4:-1].log_softmax(-1)
    assert by_name["hide-sink"]["kl"] == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-3, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "option", "folder", "stack"),
    [
        pytest.param("classifier", "--images", "images", "vision", marks=needs_torchvision),
        pytest.param("whisper", "--audio", "sounds", "decoder", marks=pytest.mark.slow),
        pytest.param("hearing", "--audio", "speech", "decoder", marks=pytest.mark.slow),
    ],
)
def test_images_and_recordings_are_intervened_on(sinkscope, places, name, option, folder, stack, tmp_path):
    given = (places / name, option, places / folder, "--tokens", 12)
    on = ("--what", "hide-sink", "--on", "first:1", "--controls", 2)
    answer = sinkscope("intervene", *given, *on, "--out", "i", "--json")
    assert answer.code == 0, answer.err
    found = answer.json
    assert (found["stack"], found["texts"]) == (stack, 3)
    arm = next(row for row in found["arms"] if row["arm"] == "hide-sink")
    assert arm["kl"] != 0  # hiding nothing leaves every bit; a tiny classifier moves by little more than rounding
    assert (arm.get("nats") is None) == (name == "classifier")
    measured = sinkscope("measure", *given, "--observers", "few", "--out", "m", "--json").json
    assert found["input"] == measured["input_details"]["description"]
    assert (tmp_path / "i" / "figure.html").exists()


@pytest.mark.release
@pytest.mark.parametrize("name", ["bart", "whisper", "classifier"])
def test_every_intervention_runs_or_says_why_not(sinkscope, places, name):
    media = {"classifier": ("--images", places / "images"), "whisper": ("--audio", places / "speech")}
    given = (places / name, *media.get(name, ("--input", "random", "--samples", 4)), "--tokens", 16)
    for what in NAMED:
        to = ("--to", 3) if what in ("swap-position", "replace-position", "first-view") else ()
        answer = sinkscope("intervene", *given, "--what", what, "--epsilon", 0.05, "--controls", 2, *to)
        assert answer.code == 0 or answer.error, (what, answer.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "medium", "folder"),
    [
        ("vit", "images", "images"),
        pytest.param("clip", "images", "images", marks=needs_torchvision),
        ("whisper", "audio", "speech"),
        ("wav2vec2", "audio", "sounds"),  # of two lengths
    ],
)
def test_check_reads_images_and_recordings(sinkscope, places, name, medium, folder):
    call = ("check", places / name, f"--{medium}", places / folder, "--texts", 4)
    card = sinkscope(*call, "--out", "c", "--json").json
    on = {section: next(iter(part["on"].values())) for section, part in card["sections"].items()}
    assert [section for section, answered in on.items() if answered["answer"]] == ["sink"]
    assert card["texts"][0]["n"] == min(4, len(list((places / folder).iterdir())))
    assert "Not run: bos and template, cache bits (it reads" in " ".join(sinkscope(*call, "--out", "c").out.split())
    assert sinkscope(*call, "--plan").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("measure", "vit"), "reads pixel_values, not tokens: sinkscope measure and sinkscope check take --images DIR"),
        (("measure", "whisper", "--input", "random"), "reads input_features, not tokens"),
        (("measure", "clip", "--input", "random"), "reads pixel_values besides its tokens"),
        (("measure", "bart", "--images", "images"), "reads no images: it reads input_ids"),
        (("measure", "vit", "--images", "sounds"), "no image in the folder"),
        (("measure", "vit", "--images", "none"), "no such folder of images"),
        (("measure", "wav2vec2", "--audio", "images"), "no recording in the folder"),
        (("intervene", "vit", "--what", "hide-sink", "--on", "first:1", "--images", "images"), "it has no logits"),
        (
            ("intervene", "wav2vec2", "--what", "hide-sink", "--on", "first:1", "--audio", "sounds"),
            "(input_values: 2 of 800, 1 of 1600)",
        ),
        (("intervene", "t5", "--what", "swap-position", "--samples", "2"), "position"),
        (("intervene", "classifier", "--what", "suppress-bands", "--images", "images"), "no unembedding"),
        (("intervene", "classifier", "--what", "hide-sink"), "sinkscope measure and sinkscope check take --images DIR"),
        (("measure", "wav2vec2", "--audio", "sounds", "--prompt", "what"), "a prompt is for models that read text"),
        (("check", "vit"), "sinkscope check take --images DIR"),
        (("check", "bart", "--images", "images"), "reads no images: it reads input_ids"),
        (("check", "vit", "--images", "images", "--text", "images"), "--text goes without --images and --audio"),
        (("check", "vit", "--images", "images", "--audio", "sounds"), "--images and --audio exclude each other"),
        (("check", "vit", "--images", "images", "--full"), "--full goes without --images and --audio"),
        (
            ("check", "vit", "--images", "images", "--only", "bos"),
            "section bos reads texts; of images sink alone is read",
        ),
        (("check", "vit", "--images", "images", "--fail-on", "costs"), "whose rows have no words"),
        (("check", "vit", "--images", "images", "--fail-on", "bos-twice"), "raised by section bos, which does not run"),
        (("measure", "bart", "--prompt", "what"), "--prompt goes with --images or --audio"),
        (("measure", "./absent"), "no such folder: './absent'"),
    ],
)
def test_what_cannot_be_read_is_one_line(sinkscope, places, arguments, said):
    command, name, *rest = arguments
    known = {path.name: path for path in places.iterdir()} | {"none": places / "none"}
    assert said in sinkscope(command, known.get(name, name), *(known.get(each, each) for each in rest)).error


@pytest.mark.slow
def test_rows_of_a_file_are_texts(sinkscope, model, text, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": 7, "body": text.read_text()}) + "\n")
    quick = (*FEW, "--observers", "few")
    rows = sinkscope("measure", model, "--text", "rows.jsonl", "--field", "body", *quick, "--json").json
    plain = sinkscope("measure", model, "--text", text, *quick, "--json").json
    assert rows["sink_rate"] == plain["sink_rate"]
    assert rows["input_details"]["sha256"] == plain["input_details"]["sha256"]
    assert "(fields: id, body)" in sinkscope("measure", model, "--text", "rows.jsonl", *quick).error
    many = sinkscope("measure", model, "nano", "--text", "rows.jsonl", "--field", "body", *FEW, "--json").json
    assert many["models"][0]["sink_rate"] == plain["sink_rate"]


def test_a_split_goes_with_a_corpus(sinkscope, model, text):
    assert (
        "--split and --text exclude each other" in sinkscope("measure", model, "--text", text, "--split", "all").error
    )
