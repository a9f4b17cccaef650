"""A recipe whose targets can be seen, or whose documents cannot be told apart, is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sinkscope.attention import AttentionSpec, Causal, Document, VisiblePrefix, Window
from sinkscope.errors import InputError
from sinkscope.training import LAB, Recipe, load_recipe
from sinkscope.training.start import lab_model
from tests.training.helpers import trained

PREFIX = "attention={mask: {kind: or, first: {kind: causal}, second: {kind: prefix, length: 5}}}"
DOCUMENTS = "attention={mask: {kind: and, first: {kind: causal}, second: {kind: document}}}"
MASKED = ("model.is_causal=false", "loss.masked.share=0.15")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (("model.is_causal=false",), r"every token sees the next one.*set loss\.masked\.share=0\.15"),
        (("loss.masked.share=0.15",), r"a causal model sees one: set model\.is_causal=false"),
        ((*MASKED, "loss.prefix=3"), "in a bidirectional model .* every token sees all"),
        ((PREFIX,), r"shows the first 5 tokens to each other.*set loss\.prefix=5"),
        ((PREFIX, "loss.prefix=4"), r"set loss\.prefix=5"),
        ((f"attention=[softmax, {PREFIX.removeprefix('attention=')}]",), r"set loss\.prefix=5"),
        ((DOCUMENTS,), r"do not number theirs: set data\.packing=intra_document"),
        ((f"attention=[softmax, {DOCUMENTS.removeprefix('attention=')}]",), "do not number theirs"),
        (("loss.masked={share: 0.5, mask: 0.7, random: 0.4}", "model.is_causal=false"), "together they are at most 1"),
        (("loss.masked.share=1", "model.is_causal=false"), "less than 1"),
        (("loss.masked.shre=0.2", "model.is_causal=false"), "did you mean 'loss.masked.share'"),
    ],
)
def test_it_is_refused(changes: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refused:
        load_recipe("nano", changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        MASKED,
        (PREFIX, "loss.prefix=5"),
        (DOCUMENTS, "data.packing=intra_document"),
        (DOCUMENTS, "model.restart_positions=true"),
        (PREFIX.replace("5", "1"),),  # the first token is never predicted
        ("attention={mask: {kind: window, size: 4}}",),
    ],
)
def test_what_fits_is_not(changes: tuple[str, ...]) -> None:
    assert load_recipe("nano", changes).hash({}) != load_recipe("nano").hash({})


def test_what_does_not_fit_the_sizes_is_refused_whenever_it_is_built() -> None:
    """Though recipes that say the same of the model share what is known of it."""
    for _ in range(2):
        with pytest.raises(InputError, match="reads 5000 channels: the block's input has 128"):
            load_recipe("nano", ["attention={name: gated_head, reads: 5000}"])


def test_a_mask_joined_with_causality_is_one_run_with_the_mask_so_written() -> None:
    joined = load_recipe("nano", ["attention={mask: {kind: window, size: 4}}"])
    written = load_recipe(
        "nano", ["attention={mask: {kind: and, first: {kind: causal}, second: {kind: window, size: 4}}}"]
    )
    assert joined.hash({}) == written.hash({})
    assert load_recipe("nano", ["attention={mask: {kind: full}}"]).hash({}) == load_recipe("nano").hash({})
    assert joined.lab_config.__self__._resolved().config.spec.mask == Causal() & Window(4)


def test_a_document_does_not_see_another_one_s_prefix(tiny: Callable[..., Recipe]) -> None:
    """Tokens of the window's first document move no logit of another, whatever the prefix."""
    recipe = tiny("data.packing=intra_document", "loss.prefix=6", "context=24")
    assert recipe.operation.mask == AttentionSpec(mask=(Causal() & Document()) | (VisiblePrefix(6) & Document())).mask
    data = LAB.data(recipe)
    model = lab_model(recipe, data.tokenizer).eval()
    documents = torch.tensor([[0] * 10 + [1] * 14])
    ids = torch.randint(3, 60, (1, 24), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[:, :10] = (ids[:, :10] + 5) % 60
    with torch.no_grad():
        one, two = (model(each, document_ids=documents).logits[0] for each in (ids, other))
        later = ids.clone()
        later[:, 5] = 7
        prefixed = model(later, document_ids=documents).logits[0]
    assert torch.equal(one[10:], two[10:])
    assert not torch.allclose(one[2], prefixed[2])  # in its own document a prefix is seen by all
    plain, apart = tiny("loss.prefix=6"), tiny("loss.prefix=6", "data.packing=intra_document")
    assert plain.decisive().keys() == apart.decisive().keys() - {"corrections"}


@pytest.mark.slow
def test_layers_of_a_recipe_may_differ(tiny: Callable[..., Recipe], runs: Path) -> None:
    """A list trains, names its run, and is one run with the list that it stands for."""
    window = {"mask": {"kind": "window", "size": 4}}
    changes = ("model.num_hidden_layers=4", "steps=2")
    recipe = tiny(*changes, f"attention=[{window}, sigmoid]")
    assert recipe.hash({}) == tiny(*changes, f"attention=[{window}, sigmoid, {window}, sigmoid]").hash({})
    assert recipe.hash({}) != tiny(*changes, f"attention=[sigmoid, {window}]").hash({})
    assert tiny("attention=[sigmoid, sigmoid]").hash({}) == tiny("attention=sigmoid").hash({})
    assert Recipe(**recipe.model_dump(mode="json")) == recipe
    run = trained(recipe, runs)
    assert run.path.name.startswith("tiny-custom+sigmoid-")
    assert [spec.mask for spec in run.model.config.specs] == [Causal() & Window(4), Causal()] * 2
    with pytest.raises(InputError, match="a list of 3 operations for 2 layers"):
        tiny("attention=[softmax, sigmoid, softmax]")


def test_corrections_rename_the_runs_they_change_and_no_others() -> None:
    def corrected(*changes: str) -> list[str]:
        return load_recipe("nano", changes).decisive().get("corrections", [])

    random = "data.interventions=[{kind: random_tokens, start: 0, stop: 1}]"
    fixed = "data.interventions=[{kind: fixed_token, position: 2, token: 0}]"
    assert corrected() == corrected(fixed) == corrected("optimizer.name=muon") == corrected("loss.prefix=3") == []
    assert corrected("data.packing=intra_document", "optimizer.name=muon", "model.weight_reparam=sigma") == []
    assert len(corrected(random)) == 1
    assert len(corrected("data.packing=intra_document", "loss.prefix=3")) == 1
    for option in ("model.sink_tokens=1", "model.position=relative_t5", "attention=kv_bias", "model.attention_every=2"):
        assert len(corrected("optimizer.name=muon", option)) == 1, option
