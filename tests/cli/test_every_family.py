"""Commands on every family's tiny model: each ends in a result, or in one line that says why not."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.families.registry import FAMILIES

ROWS = ("--input", "random", "--samples", 4, "--tokens", 32)
TEXTS = ("--samples", 6, "--tokens", 24)
COMMANDS = {
    "measure": ROWS,
    "measure --plan": (*ROWS, "--plan"),
    "check": ("--texts", 4, "--full"),
    "check --plan": ("--full", "--plan"),
    "intervene": (*ROWS, "--on", "first:1", "--controls", 1),
    "cache": (*TEXTS, "--budget", 12, "--controls", 1),
    "quantize": (*ROWS, "--scheme", "w8a8-token"),
    "quantize --hazards": (*ROWS, "--hazards"),
    "quantize --rescue": (*ROWS, "--scheme", "a8-tensor", "--rescue", 90),
    "quantize caches": (*ROWS, "--scheme", "kv4-token"),
    "calibrate": ("--samples", 8, "--tokens", 12, "--method", "act"),
    "generate": ("--prompt", "a cat", "--max-tokens", 6),
    "export": (),
}


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer of single letters, of fewer tokens than the tiny models have."""
    known = dict.fromkeys(("<pad>", "<unk>", "<s>", "</s>", *string.ascii_letters, *string.digits, *" .,;:!?'\n-"))
    backend = Tokenizer(models.WordLevel({token: number for number, token in enumerate(known)}, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@pytest.mark.release
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.kind in ("tokens", "pairs")])
def test_every_command_ends_in_a_result_or_a_line(sinkscope, tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    if not family.exists:
        pytest.skip(f"the installed transformers has no {family.config}")
    letters().save_pretrained(tmp_path / "model")
    family.build().save_pretrained(tmp_path / "model")
    for number, (command, options) in enumerate(COMMANDS.items()):
        out = () if command.startswith("generate") else ("--out", f"out-{number}")
        answer = sinkscope(command.split()[0], tmp_path / "model", *options, *out)
        assert answer.code == 0 or answer.error, (command, answer.err)
