"""`sinkscope quantize`: a trial, hazards and the tokens to protect from the command line, whole or not at all."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from sinkscope.model import load
from sinkscope.quantization import Prefix
from sinkscope.trials import load as load_trial
from tests.families.registry import FAMILIES
from tests.registering import toy_installed

Command = Callable[..., Any]
TOKENS = 32  # so many that random tokens can be drawn which as many queries see
FEW = ("--tokens", TOKENS, "--samples", 4)
SMALL = (*FEW, "--controls", 2)


@pytest.mark.slow
def test_a_trial_and_hazards_are_written_with_the_tokens_to_protect(
    sinkscope: Command, model: Path, text: Path, tmp_path: Path
) -> None:
    options = ("--scheme", "w4a8-tensor", "--protect", "first:2", "--hazards", "--out", "found")
    answer = sinkscope("quantize", model, "--text", text, *SMALL, *options)
    assert answer.code == 0, answer.err
    folder = tmp_path / "found"
    assert {path.name for path in folder.iterdir()} == {
        *("trial.nc", "trial.json", "table.csv", "hazards.json", "sites.csv", "casts.csv", "advice.csv"),
        *("protected.json", "protected.safetensors", "prefix", "figure.html"),
    }
    found = load_trial(folder / "trial.nc")
    random = ["random 1 for first:2", "random 2 for first:2"]
    assert found.arms == ["full", "w4a8-tensor", "first:2", *random, "first 2"]
    assert found.texts == 4
    assert pd.read_csv(folder / "table.csv")["arm"].tolist() == found.arms
    assert json.loads((folder / "trial.json").read_text())["verdict"] == found.verdict
    assert answer.out.replace("\n", " ").startswith(found.verdict[:60])
    page = (folder / "figure.html").read_text()
    assert "Ranges by site" in page
    again = sinkscope("report", "found", "--out", "again.html", "--json")
    assert again.code == 0, again.err
    assert "Ranges by site" in again.json["sections"]
    assert (tmp_path / "again.html").read_text() == page
    exported = json.loads((folder / "protected.json").read_text())
    assert exported["positions"] == [0, 1]
    assert exported["prefix_ids"][0] == exported["bos_token_id"]  # the second token differs from row to row
    written = Prefix.load(folder / "prefix", load(str(model)))
    assert list(written.ids) == exported["prefix_ids"]
    masks = load_file(folder / "protected.safetensors")
    assert masks["protected"].sum(1).tolist() == [2] * 4
    assert masks["protected"][:, :2].all()
    assert masks["input_ids"].shape == (4, TOKENS)


@pytest.mark.slow
def test_a_scheme_of_another_package_is_one_among_others(
    sinkscope: Command, model: Path, text: Path, tmp_path: Path
) -> None:
    with toy_installed():
        options = ("--scheme", "toy-five", "--protect", "first:1", "--out", "found")
        answer = sinkscope("quantize", model, "--text", text, *FEW, "--controls", 1, *options)
        assert answer.code == 0, answer.err
        assert "toy-five" in sinkscope("quantize", "--help").out
    found = load_trial(tmp_path / "found" / "trial.nc")
    assert found.arms == ["full", "toy-five", "first:1", "random for first:1", "first 1"]
    assert "toy-five" in (tmp_path / "found" / "figure.html").read_text()


@pytest.mark.slow
def test_a_prefix_is_an_arm_and_is_written_for_others_to_read(
    sinkscope: Command, model: Path, text: Path, tmp_path: Path
) -> None:
    given = ("quantize", model, "--scheme", "w3", "--text", text, *SMALL, "--skip", "down_proj")
    answer = sinkscope(*given, "--protect", "prefix:bos", "--out", "found")
    assert answer.code == 0, answer.err
    found = load_trial(tmp_path / "found" / "trial.nc")
    assert found.arms == ["full", "full after prefix:bos", "w3", "prefix:bos", "prefix:bos, rounded"]
    assert found.record["quantizer"]["skip"] == ["lm_head", "down_proj"]
    written = Prefix.load(tmp_path / "found" / "prefix", load(str(model)))
    assert written.ids == (written.bos,)
    assert not (tmp_path / "found" / "protected.json").exists()
    assert sinkscope("report", "found/trial.nc", "--out", "page.html").code == 0
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "found" / "figure.html").read_bytes()
    again = sinkscope(*given, "--protect", "prefix:found/prefix", "--out", "again", "--json")
    assert again.code == 0, again.err
    costs = {arm["arm"]: arm["kl"] for arm in again.json["arms"]}
    assert costs["prefix:found/prefix"] == pytest.approx(found.mean("prefix:bos").value, rel=1e-7)
    other = load(str(model))
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(1.5)
    other.save_pretrained(tmp_path / "other")
    for file in model.glob("tokenizer*"):
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    refused = sinkscope("quantize", "other", *given[2:], "--protect", "prefix:found/prefix", "--out", "refused")
    assert "made with another model" in refused.error
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_weights_alone_are_tried_with_nothing_protected(
    sinkscope: Command, model: Path, text: Path, tmp_path: Path
) -> None:
    answer = sinkscope("quantize", model, "--scheme", "w3-gptq", "--text", text, *SMALL, "--json", "--out", "found")
    assert answer.code == 0, answer.err
    assert [arm["arm"] for arm in answer.json["arms"]] == ["full", "w3-gptq"]
    assert answer.json["calibrated_on"]["texts"] == answer.json["texts"] == 4
    assert "--protect prefix:bos" in answer.err
    assert not (tmp_path / "found" / "prefix").exists()


def test_hazards_alone_and_json(sinkscope: Command, model: Path, text: Path, tmp_path: Path) -> None:
    answer = sinkscope("quantize", model, "--hazards", "--protect", "positions:0,3", "--text", text, *FEW, "--json",
                       "--out", "found")  # fmt: skip
    assert answer.code == 0, answer.err
    found = answer.json
    assert {"advice", "sites", "casts", "tokens"} <= found["hazards"].keys()
    assert "arms" not in found
    assert {row["block"] for row in found["hazards"]["sites"]} == {0, 1}
    assert not (tmp_path / "found" / "trial.nc").exists()


@pytest.mark.slow
def test_nothing_protected_says_what_quantizing_costs(
    sinkscope: Command, model: Path, text: Path, tmp_path: Path
) -> None:
    options = ("--scheme", "w2", "--protect", "none", "--json", "--out", "found")
    answer = sinkscope("quantize", model, "--text", text, *FEW, *options)
    assert answer.code == 0, answer.err
    assert [arm["arm"] for arm in answer.json["arms"]] == ["full", "w2"]
    assert not (tmp_path / "found" / "protected.json").exists()


@pytest.mark.slow
def test_a_scheme_of_caches_is_read_through_one(sinkscope: Command, model: Path, text: Path) -> None:
    options = ("--scheme", "kv2-token", "--protect", "first:1", "--context", 8, "--json")
    answer = sinkscope("quantize", model, "--text", text, *SMALL, *options)
    assert answer.code == 0, answer.err
    assert answer.json["reading"]["context"] == 8
    held = {arm["arm"]: arm["bytes"] for arm in answer.json["arms"]}
    assert held["kv2-token"] < held["first:1"] < held["full"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "--scheme NAME for a trial"),
        (("--scheme", "w8a8-tensr"), "did you mean 'w8a8-tensor'"),
        (("--scheme", "w8a8-tensor,w4", "--explain", "--plan"), "--explain goes with a single --scheme"),
        (("--scheme", "w99a8-tensor"), "from 1 to 16"),
        (("--scheme", "w4,w4"), "--scheme names w4 twice"),
        (("--scheme", "w4,"), "--scheme 'w4,' has an empty name"),
        (("--scheme", "kv0-token"), "from 1 to 16"),
        (("--scheme", "w4", "--protect", "first:1"), "--protect prefix:bos"),
        (("--scheme", "w4", "--protect", "prefix:nowhere"), "no folder nowhere"),
        (("--scheme", "w4", "--protect", "prefix:5000"), "--protect prefix:bos"),
        (("--scheme", "w4", "--skip", "dwn_proj"), "did you mean 'down_proj'"),
        (("--scheme", "kv2-token", "--skip", "down_proj"), "no linear map"),
        (("--hazards", "--skip", "down_proj"), "--skip goes with a --scheme"),
        (("--hazards", "--protect", "first:x"), "names no tokens"),
        (("--hazards", "--protect", "frst:4"), "did you mean"),
        (("--hazards", "--protect", "positions:a"), "names no tokens"),
        (("--hazards", "--protect", "none", "--protect", "first:1"), "goes alone"),
        (("--hazards", "--context", "4"), "--scheme of caches"),
        (("--scheme", "w8a8-tensor", "--protect", "ids:9999"), "no token of the texts"),
        (("--scheme", "w8a8-tensor", "--protect", "measured", "--epsilon", "0.99"), "no sink"),
        (("--scheme", "kv2-token", "--protect", "first:1", "--context", "32"), "fewer than the texts'"),
        (("--hazards", "--protect", "first:1", "--bos", "double"), "two BOS"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    sinkscope: Command, model: Path, text: Path, tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    small = SMALL if "--scheme" in given else FEW
    answer = sinkscope("quantize", model, "--text", text, *small, *given, "--out", "found")
    assert said in answer.error
    assert not (tmp_path / "found").exists()


def test_the_help_lists_the_schemes(sinkscope: Command) -> None:
    said = sinkscope("quantize", "--help").out
    assert all(name in said for name in ("kv2-kivi", "w4-gptq", "w3-slim", "w4a4-token-duquant", "llm-int8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe", "deepseek_v3", "nano-encoder", "nano-hybrid"])
def test_other_models_are_quantized(sinkscope: Command, tmp_path: Path, name: str) -> None:
    where: object = name
    if not name.startswith("nano"):
        where = tmp_path / name
        FAMILIES[name].build("eager").save_pretrained(where)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message="left as they are")  # as on a terminal: a line on stderr
        answer = sinkscope("quantize", where, "--scheme", "w4a8-tensor", "--protect", "first:1", "--hazards", "--input",
                           "random", *SMALL, "--json", "--out", "found")  # fmt: skip
    assert answer.code == 0, answer.err
    nothing = answer.json["arms"][1]
    assert nothing["kl"] > 0
    assert answer.json["hazards"]["sites"]
    assert json.loads((tmp_path / "found" / "protected.json").read_text())["positions"] == [0]
    assert ("read directly" in answer.err) == (name == "nano-hybrid")


@pytest.mark.slow
def test_a_latent_cache_is_quantized_too(sinkscope: Command, tmp_path: Path) -> None:
    FAMILIES["deepseek_v3"].build("eager").save_pretrained(tmp_path / "mla")
    options = ("--scheme", "kv4-token", "--protect", "first:1", "--input", "random", "--json")
    answer = sinkscope("quantize", tmp_path / "mla", *SMALL, *options)
    assert answer.code == 0, answer.err
    assert answer.json["arms"][1]["kl"] > 0


def test_the_old_option_is_read_with_a_note(sinkscope: Command, model: Path, text: Path) -> None:
    answer = sinkscope("quantize", model, "--hazards", "--spare", "tokens:5", "--text", text, *FEW, "--json")
    assert answer.code == 0, answer.err
    assert "--spare is now --protect: --protect ids:5" in answer.err
    assert answer.json["hazards"]["protected"] in ("ids:5", "none")


@pytest.mark.slow
def test_several_schemes_end_in_one_sentence(sinkscope: Command, model: Path, text: Path, tmp_path: Path) -> None:
    schemes = ("w8a8-token", "w2", "kv8-token")
    given = ("quantize", model, "--text", text, *FEW, "--controls", 1, "--protect", "first:1", "--out", "found")
    answer = sinkscope(*given, "--scheme", ",".join(schemes))
    assert answer.code == 0, answer.err
    folder = tmp_path / "found"
    stored = json.loads((folder / "schemes.json").read_text())
    assert [row["scheme"] for row in stored["schemes"]] == list(schemes)
    assert stored["schemes"][1]["protected"] == ""  # weights alone know no tokens
    assert " ".join(answer.out.split()).find(" ".join(stored["sentence"].split())) >= 0
    for name in schemes:
        trial = load_trial(folder / name / "trial.nc")
        assert trial.baseline == name
        assert trial.notes()  # few texts
        assert all(" ".join(note.split()) in " ".join(answer.out.split()) for note in trial.notes())
    refused = sinkscope(*given, "--scheme", "w8a8-token,w4", "--hazards")
    assert refused.code == 2
    assert "goes with a single --scheme" in refused.err


@pytest.mark.slow
def test_a_rescue_is_a_sentence_a_file_and_part_of_the_json(
    sinkscope: Command, model: Path, text: Path, tmp_path: Path
) -> None:
    given = (
        "quantize",
        model,
        "--text",
        text,
        "--tokens",
        TOKENS,
        "--samples",
        4,
        "--protect",
        "none",
        "--out",
        "found",
    )
    answer = sinkscope(*given, "--scheme", "w4a8-tensor", "--rescue", 50, "--json")
    assert answer.code == 0, answer.err
    stored = json.loads((tmp_path / "found" / "rescue.json").read_text())
    assert answer.json["rescue"] == stored
    assert stored["share"] == 0.5
    assert stored["runs"] <= 20
    assert "linear map" in stored["sentence"]
    refused = sinkscope(*given, "--scheme", "kv4-token", "--rescue", 50)
    assert refused.code == 2
    assert "--scheme of linear maps" in refused.err
