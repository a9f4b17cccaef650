"""Tokens in another arrangement, and one more: what the model itself gives on such inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from sinkscope.errors import InputError
from sinkscope.interventions import ExtraToken, Rearrange
from sinkscope.measurement import AttentionReceived, measure
from tests.interventions.conftest import a_model, hooks, logits, stream


def ids(rows: int = 2, tokens: int = 9) -> Tensor:
    return torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize(
    ("how", "order"),
    [
        ("copy", [0, 1, 2, 3, 0, 5, 6, 7, 8]),
        ("swap", [4, 1, 2, 3, 0, 5, 6, 7, 8]),
        ("move", [1, 2, 3, 4, 0, 5, 6, 7, 8]),
    ],
)
def test_rearranged_ids_are_read_as_such_texts(name: str, how: str, order: list[int]) -> None:
    model, text = a_model(name), ids()
    with Rearrange(how, 0, 4).applied(model):  # type: ignore[arg-type]
        found = logits(model, input_ids=text)
    assert torch.equal(found, logits(model, input_ids=text[:, order]))
    assert hooks(model) == 0


def test_a_token_is_moved_to_the_front_too() -> None:
    model, text = a_model("llama"), ids()
    with Rearrange("move", 4, 1).applied(model), torch.no_grad():
        found = model(text).logits
    assert torch.equal(found, logits(model, input_ids=text[:, [0, 4, 1, 2, 3, 5, 6, 7, 8]]))


def test_the_control_takes_another_token_between_the_two_or_one_behind() -> None:
    model, inputs = a_model("llama"), {"input_ids": ids()}

    def sources(change: Rearrange) -> set[int]:
        return {change.control(torch.Generator().manual_seed(n), model, inputs).source for n in range(60)}

    assert sources(Rearrange("move", 2, 6)) == sources(Rearrange("move", 6, 2)) == {3, 4, 5}
    assert sources(Rearrange("swap", 2, 3)) == {4, 5, 6, 7, 8}


def test_labels_of_whole_rows_stay() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=90, **sizes)).eval()
    text, labels = ids(), torch.tensor([0, 1])
    with torch.no_grad():
        expected = model(text[:, [4, 1, 2, 3, 0, 5, 6, 7, 8]], labels=labels).loss
        with Rearrange("swap", 0, 4).applied(model):
            assert torch.equal(model(text, labels=labels).loss, expected)


@pytest.mark.parametrize("at", [0, 1, 9])
def test_an_extra_token_is_a_zero_embedding_whose_logits_are_not_shown(at: int) -> None:
    model, text = a_model("llama"), ids()
    with ExtraToken(at).applied(model):
        found = logits(model, input_ids=text, attention_mask=torch.ones_like(text))
        data = measure(model, text, [AttentionReceived()]).data
    embedded = model.model.embed_tokens(text)
    longer = torch.cat([embedded[:, :at], torch.zeros_like(embedded[:, :1]), embedded[:, at:]], 1)
    expected = logits(model, inputs_embeds=longer)
    torch.testing.assert_close(found, expected[:, [t for t in range(10) if t != at]], rtol=1e-5, atol=1e-6)
    assert data.sizes["position"] == 10


def test_an_extra_token_takes_over_what_a_token_has_above_the_base() -> None:
    model, text = a_model("llama"), ids()
    entries, base = ((1, 0, 5), (1, 0, 7)), (0.25, -0.5)
    with ExtraToken(1).applied(model):
        plain = stream(model, input_ids=text)[1]
    with ExtraToken(1, entries, base).applied(model):
        moved = stream(model, input_ids=text)[1]
    for (_, _, dim), number in zip(entries, base, strict=True):
        assert torch.equal(moved[:, 0, dim], torch.full_like(moved[:, 0, dim], number))
        torch.testing.assert_close(moved[:, 1, dim], plain[:, 1, dim] + plain[:, 0, dim] - number)
    rest = [dim for dim in range(plain.shape[-1]) if dim not in (5, 7)]
    assert torch.equal(moved[..., rest], plain[..., rest])
    assert torch.equal(moved[:, 2:], plain[:, 2:])


def test_bad_input_is_refused() -> None:
    model, text = a_model("llama"), ids()
    padded = torch.ones_like(text)
    padded[0, -2:] = 0
    for change in (Rearrange("copy", 0, 4), ExtraToken(1)):
        with change.applied(model), pytest.raises(InputError, match="rows are padded"):
            logits(model, input_ids=text, attention_mask=padded)
        with change.applied(model), pytest.raises(InputError, match="no input_ids"):
            logits(model, inputs_embeds=model.model.embed_tokens(text))
    with Rearrange("copy", 0, 9).applied(model), pytest.raises(InputError, match="position 9 is in no row"):
        logits(model, input_ids=text)
    with ExtraToken(1, ((1, 9, 2),), (0.0,)).applied(model), pytest.raises(InputError, match="position 9 is in no row"):
        logits(model, input_ids=text)
    with ExtraToken(1, ((1, 3, 99),), (0.0,)).applied(model), pytest.raises(InputError, match=r"99 .*0 to 31"):
        logits(model, input_ids=text)
    with ExtraToken(1).applied(model), pytest.raises(InputError, match="position_ids: one for each"):
        logits(model, input_ids=text, position_ids=torch.arange(9)[None])
    for change in (Rearrange("move", 0, 4), ExtraToken(1)):
        with change.applied(model), pytest.raises(InputError, match="labels: one for each"):
            logits(model, input_ids=text, labels=text)
    encoder = a_model("bert")
    whole = torch.randint(3, 90, (1, encoder.config.max_position_embeddings))
    with ExtraToken(1).applied(encoder), pytest.raises(InputError, match="the model has positions for"):
        logits(encoder, input_ids=whole)
    with pytest.raises(InputError, match="name the token from which it is taken"):
        ExtraToken(1, ((1, None, 2),), (0.0,))
    with pytest.raises(InputError, match="did you mean 'move'"):
        Rearrange("moved", 0, 4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one for each"):
        ExtraToken(1, ((1, 0, 5),), ())
