"""A prefix in the cache: the model in full precision is unchanged by it, and what would be wrong is refused."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Passes, projections
from sinkscope.interventions import All
from sinkscope.model import LabConfig, LabForCausalLM, load, load_tokenizer
from sinkscope.quantization import Grid, Prefix, ProtectedInPass, fake_quantize
from sinkscope.sinks import Positions
from sinkscope.trials.changes import changed
from tests.families.registry import FAMILIES
from tests.interventions.conftest import hooks, logits

BOS = 1
PADS = torch.tensor([0, 4, 9])


def model_of(name: str, host: str = "sdpa") -> nn.Module:
    return FAMILIES[name].build(host)


def texts(rows: int = 3, tokens: int = 24) -> Tensor:
    ids = torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = BOS
    return ids


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("llama", "sdpa"),
        ("llama", "eager"),
        ("mistral", "sdpa"),
        ("gpt_oss", "eager"),
        ("gpt2", "sdpa"),
        ("gemma2", "eager"),
    ],
)
def test_the_bos_in_the_cache_changes_nothing(name, host):
    model, ids = model_of(name, host), texts()
    plain, count = logits(model, input_ids=ids), hooks(model)
    with Prefix.of(model, (BOS,), bos=BOS).applied(model):
        found = logits(model, input_ids=ids)
    assert found.shape == plain.shape
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    assert hooks(model) == count
    assert torch.equal(logits(model, input_ids=ids), plain)


def hybrid() -> LabForCausalLM:
    torch.manual_seed(0)
    config = LabConfig(
        vocab_size=101,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        attention_every=2,
        bos_token_id=0,
    )
    return LabForCausalLM(config).eval()


@pytest.mark.parametrize("make", [lambda: load("nano"), hybrid])
def test_so_do_lab_models_with_states_and_without(make):
    model, ids = make(), texts()
    ids[:, 0] = 0
    with Prefix.of(model, (0,)).applied(model):
        found = logits(model, input_ids=ids)
    torch.testing.assert_close(found, logits(model, input_ids=ids), rtol=1e-4, atol=1e-4)


def test_a_model_that_forgets_its_state_is_refused():
    """transformers' Mamba layers begin a scan over several tokens from an empty state, whatever the cache holds."""
    with pytest.raises(UnsupportedModelError, match="differently than in one pass"):
        Prefix.of(load("nano-hybrid"), (0,))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "nano"])
def test_padded_rows_read_behind_it_too(name, side):
    """Each row against itself alone; the mask has a column for each token of the prefix."""
    lab = name == "nano"
    model, bos = (load(name), 0) if lab else (model_of(name), BOS)
    ids, place = texts(), torch.arange(24)[None]
    mask = (place >= PADS[:, None]) if side == "left" else (place < 24 - PADS[:, None])
    for row, pad in enumerate(PADS.tolist()):
        ids[row, pad if side == "left" else 0] = bos
        if pad and side == "left":
            ids[row, :pad] = 2
    ids[ids == 0] = 0 if lab else 3
    prefix = Prefix.of(model, (5, 7, bos), bos=bos)
    with prefix.applied(model):
        found = logits(model, input_ids=ids, attention_mask=mask.long())
    for row in range(3):
        own = ids[row][mask[row]][None]
        alone = logits(model, input_ids=torch.cat([torch.tensor([[5, 7]]), own], 1))[:, 2:]
        torch.testing.assert_close(found[row][mask[row]], alone[0], rtol=1e-4, atol=1e-4)


def test_texts_without_a_bos_stand_behind_the_whole_prefix():
    model, ids = model_of("llama"), texts()[:, 1:]
    with Prefix.of(model, (5, 7, BOS), bos=BOS).applied(model):
        found = logits(model, input_ids=ids)
    whole = torch.cat([torch.tensor([[5, 7, BOS]]).expand(3, -1), ids], 1)
    torch.testing.assert_close(found, logits(model, input_ids=whole)[:, 3:], rtol=1e-4, atol=1e-5)


def test_generate_is_unmodified():
    model, ids = model_of("llama"), texts()
    prefix = Prefix.of(model, (BOS,), bos=BOS)
    given = prefix.before(ids)
    assert torch.equal(given["input_ids"], ids)
    found = model.generate(**given, past_key_values=prefix.cache(3), max_new_tokens=8, do_sample=False)
    assert torch.equal(found, model.generate(ids, max_new_tokens=8, do_sample=False))
    longer = Prefix.of(model, (5, 7, BOS), bos=BOS)
    mask = (torch.arange(24)[None] < 24 - PADS[:, None]).long()
    given = longer.before(ids, mask)
    assert given["input_ids"].shape == given["attention_mask"].shape == (3, 26)
    assert given["input_ids"][:, :4].tolist() == [[5, 7, BOS, token] for token in ids[:, 1].tolist()]
    assert torch.equal(given["attention_mask"][:, 3:], mask[:, 1:])
    found = longer.cache(3)
    assert found.get_seq_length() == 3
    found.layers[0].keys.zero_()
    assert bool(longer.cache().layers[0].keys.any()), "a cache that was handed out is the caller's own"


class Rounded:
    """Activations of all maps rounded per tensor, but for what is protected and padding."""

    def __init__(self, positions: tuple[int, ...] | None) -> None:
        self.protect = None if positions is None else Positions(*positions)

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        protected = ProtectedInPass(model, self.protect, stack)
        passes = Passes(model)
        passes.attach(stack)
        for one in projections(model):
            one.edit_input(lambda x: fake_quantize(x, Grid(4, "tensor"), protected.exempt(x)), passes, stack)


def test_exempt_in_place_is_in_the_cache():
    model, ids = model_of("llama"), texts()
    prefix = Prefix.of(model, (BOS,), bos=BOS)
    with torch.no_grad(), ExitStack() as stack:
        Rounded((0,)).attach(model, stack)
        in_place = model(ids).logits
    with torch.no_grad(), prefix.applied(model), ExitStack() as stack:
        Rounded(None).attach(model, stack)
        in_cache = model(ids).logits
    torch.testing.assert_close(in_cache[:, 1:], in_place[:, 1:], rtol=1e-3, atol=1e-4)
    with torch.no_grad(), ExitStack() as stack:
        Rounded(None).attach(model, stack)
        assert not torch.allclose(model(ids).logits[:, 1:], in_cache[:, 1:], atol=1e-2)
    assert torch.equal(in_cache[:, 0], prefix.logits[-1].expand(3, -1))


def test_it_is_an_intervention_with_a_control():
    model, ids = model_of("llama"), texts()
    prefix = Prefix.of(model, (BOS,), bos=BOS)
    found = changed(model, ids, prefix, controls=2, position=3)
    assert found.mean("Prefix").value < 1e-7
    assert found.cost("Prefix", "nats").value == pytest.approx(0, abs=1e-6)
    assert min(found.mean(name).value for name in found.controls("Prefix")) > 1e-4
    assert found.record["arms"]["Prefix"]["ids"] == [BOS]
    with All((prefix,)).applied(model):
        torch.testing.assert_close(logits(model, input_ids=ids), logits(model, input_ids=ids))


def test_it_is_written_and_read_back(tmp_path):
    model, tokenizer = load("nano"), load_tokenizer("nano")
    prefix = Prefix.of(model, (5, 7, 0), tokenizer=tokenizer, found={"objective": "by hand"})
    prefix.save(tmp_path / "prefix")
    again = Prefix.load(tmp_path / "prefix", load("nano"), tokenizer)
    assert (again.ids, again.bos, again.tokens, again.found) == (prefix.ids, 0, prefix.tokens, prefix.found)
    assert torch.equal(again.logits, prefix.logits)
    for mine, theirs in zip(again.cache(2).layers, prefix.cache(2).layers, strict=True):
        assert torch.equal(mine.keys, theirs.keys)
        assert torch.equal(mine.values, theirs.values)
    described = json.loads((tmp_path / "prefix" / "prefix.json").read_text())
    assert described["prefix_token_ids"] == [5, 7, 0]
    assert (described["prefix_has_bos"], described["add_bos_token"]) == (True, False)
    assert described["keep_in_full_precision"]["positions"] == [0, 1, 2]


def test_another_model_or_tokenizer_is_refused(tmp_path):
    model, other = model_of("llama"), FAMILIES["llama"].build("sdpa", seed=5)
    prefix = Prefix.of(model, (BOS,), bos=BOS)
    prefix.save(tmp_path / "prefix")
    with pytest.raises(InputError, match="token embeddings differ"):
        Prefix.load(tmp_path / "prefix", other)
    with pytest.raises(InputError, match="another model: family"), prefix.applied(model_of("gpt2")):
        pass
    nano, tokenizer = load("nano"), load_tokenizer("nano")
    Prefix.of(nano, (0,), tokenizer=tokenizer).save(tmp_path / "nano")

    class Other:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    with pytest.raises(InputError, match="another tokenizer"):
        Prefix.load(tmp_path / "nano", nano, Other())
    Prefix.load(tmp_path / "nano", nano.to(torch.bfloat16), tokenizer)  # cast weights are the same model


@pytest.mark.parametrize("broken", ["json", "tensors", "ids", "version"])
def test_a_broken_folder_is_refused(tmp_path, broken):
    model, folder = model_of("llama"), tmp_path / "prefix"
    Prefix.of(model, (BOS,), bos=BOS).save(folder)
    described = json.loads((folder / "prefix.json").read_text())
    if broken == "tensors":
        (folder / "prefix.safetensors").write_bytes(b"no tensors")
    else:
        changed = {"json": {}, "ids": {**described, "prefix_token_ids": [1, 2]}, "version": {**described, "version": 9}}
        (folder / "prefix.json").write_text(json.dumps(changed[broken]))
    with pytest.raises(InputError, match=r"prefix in"):
        Prefix.load(folder, model)


def test_states_are_used_and_not_written(tmp_path):
    prefix = Prefix.of(hybrid(), (0,))
    with pytest.raises(UnsupportedModelError, match="other than keys and values"):
        prefix.save(tmp_path / "prefix")
    assert list(tmp_path.iterdir()) == []


def refused(act: Any, said: str, error: type[Exception] = InputError) -> None:
    with pytest.raises(error, match=said):
        act()


def test_what_has_no_meaning_is_refused():
    model, ids = model_of("llama"), texts()
    room = model.config.max_position_embeddings
    refused(lambda: Prefix.of(model, ()), "at least one")
    refused(lambda: Prefix.of(model, (999,)), "outside the vocabulary")
    refused(lambda: Prefix.of(model, (BOS, 5, BOS), bos=BOS), "contains the BOS .1. 2 times")
    refused(lambda: Prefix.of(model, range(3, 3 + room)), "leaves no room")
    refused(lambda: Prefix.of(model_of("bert"), (5,)), "causal language model", UnsupportedModelError)
    refused(lambda: Prefix.of(model_of("t5"), (5,)), "causal language model", UnsupportedModelError)
    prefix = Prefix.of(model, (5, BOS), bos=BOS)
    refused(lambda: prefix.cache(0), "at least 1")
    twice = ids.clone()
    twice[1, 1] = BOS
    refused(lambda: prefix.before(twice), "row 1 begins with a BOS")
    mixed = ids.clone()
    mixed[0, 0] = 9
    refused(lambda: prefix.before(mixed), "row 1 begins with a BOS")
    refused(lambda: prefix.before(ids[:, :1]), "is the prefix alone")
    long = torch.randint(3, 90, (1, room - 1))
    refused(lambda: prefix.before(long), f"has {room} positions: give at most {room - 2}")
    mask = (torch.arange(24)[None] >= PADS[:, None]).long()
    refused(lambda: prefix.before(ids, mask), "padded on the left")
    with prefix.applied(model):
        refused(lambda: logits(model, input_ids=twice), "row 1 begins with a BOS")
        refused(lambda: model.generate(ids, max_new_tokens=2), r"prefix\.before")
        refused(lambda: model(ids, labels=ids), "labels")
        refused(lambda: model(inputs_embeds=torch.zeros(1, 3, 32)), "token ids")
        refused(lambda: model(ids, attention_mask=torch.ones(3, 1, 24, 24)), "one column per token")
        assert logits(model, input_ids=ids, logits_to_keep=1).shape[1] == 1
