"""Which tokens the loss counts, and the masks that data and loss ask for."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from sinkscope.attention import AttentionSpec, Causal, Document, VisiblePrefix, Window
from sinkscope.errors import InputError
from sinkscope.model import LabForCausalLM
from sinkscope.training.loading import load_recipe
from sinkscope.training.loss import Loss
from tests.training.helpers import trained


class Texts(Dataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(1, 13) + index
        return {"input_ids": ids, "labels": ids.clone()}


def test_prefix_tokens_are_read_and_not_predicted() -> None:
    windows = Texts()
    item = Loss(prefix=4).examples(windows)[1]
    assert torch.equal(item["input_ids"], windows[1]["input_ids"])
    assert item["labels"].tolist() == [-100] * 4 + list(range(6, 14))
    assert Loss().examples(windows) is windows
    assert Loss(prefix=4, leaky_validation=True).examples(windows, validating=True) is windows
    with pytest.raises(InputError, match="nothing to predict in a window of 12"):
        Loss(prefix=12).examples(windows)


def test_the_loss_is_the_papers_sum() -> None:
    """Mean over t = p+1..C of −log P(x_t | everything before, all of the prefix seen by all), without a shift lost."""
    torch.manual_seed(0)
    recipe = load_recipe("nano", ["loss.prefix=3", "context=12", "model.vocab_size=50"])
    config = recipe._lab_config(vocab_size=50)
    assert config.spec.mask == Causal() | VisiblePrefix(3)
    model = LabForCausalLM(config).eval()
    item = Loss(prefix=3).examples(Texts())[0]
    with torch.no_grad():
        found = model(item["input_ids"][None], labels=item["labels"][None]).loss
        logp = model(item["input_ids"][None]).logits[0].log_softmax(-1)
    expected = -sum(logp[t - 1, item["input_ids"][t]] for t in range(3, 12)) / 9
    torch.testing.assert_close(found, expected)


def test_masks_of_data_and_loss_join_the_operations_own() -> None:
    recipe = load_recipe("nano", ["data.packing=intra_document"])
    assert recipe.operation.mask == Causal() & Document()
    assert recipe.attention.mask == Causal()
    assert recipe.hash({}) != load_recipe("nano").hash({})
    windowed = load_recipe(
        "nano", ["attention={mask: {kind: and, first: {kind: causal}, second: {kind: window, size: 8}}}"]
    )
    assert windowed.operation.mask == Causal() & Window(8)


def test_a_window_comes_before_a_prefix_that_all_see() -> None:
    """`window` tokens, itself included; the prefix stays in sight."""
    assert load_recipe("nano", ["loss.window=16"]).operation.mask == Causal() & Window(16)
    both = load_recipe("nano", ["loss.window=3", "loss.prefix=2", "attention=sigmoid", "data.packing=intra_document"])
    wanted = ((Causal() & Document()) & Window(3)) | (VisiblePrefix(2) & Document())
    assert both.operation.mask == AttentionSpec(mask=wanted).mask
    assert both.attention.mask == Causal()


@pytest.mark.slow
def test_documents_that_do_not_see_each_other_are_trained_and_read(tiny, runs) -> None:
    """A recipe with intra-document masking trains, logs its sink, and its model reads a plain text as one document."""
    run = trained(tiny("data.packing=intra_document", "steps=2"), runs)
    assert run.model.config.spec.mask == Causal() & Document()
    ids = torch.randint(3, 60, (1, 9))
    plain = run.model(ids).logits
    assert torch.equal(run.model(ids, document_ids=torch.zeros(1, 9, dtype=torch.long)).logits, plain)
    apart = run.model(ids, document_ids=torch.tensor([[0] * 4 + [1] * 5])).logits
    torch.testing.assert_close(apart[:, :4], plain[:, :4])
    assert not torch.allclose(apart[:, 4:], plain[:, 4:])
    assert "sink/position_0" in run.log
