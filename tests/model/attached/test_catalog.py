"""The whole catalog on a Llama: equal to the lab model of the same operation, which shares none of the plumbing."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaForCausalLM

import sinkscope as ss
from sinkscope.attention import CATALOG
from sinkscope.errors import UnsupportedModelError
from sinkscope.model import LabConfig, LabForCausalLM
from tests.attention.variants import KINDS
from tests.collector import left_by
from tests.model.attached.hosts import host, output

SIZES = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
LAB_ONLY = {"forgetting_gate", "differential", "first_key_logit"}
NAMES = [name for name in CATALOG if name not in LAB_ONLY]
TOKENS = 19


@cache
def pair(name: str) -> tuple[LabForCausalLM, LlamaForCausalLM]:
    """A lab model, and a Llama with the same weights and the same operation attached."""
    torch.manual_seed(0)
    lab = LabForCausalLM(LabConfig(**SIZES, **HEADS, attention=name)).eval()
    with torch.no_grad():
        for path, parameter in lab.named_parameters():
            if "q_proj" in path or "k_proj" in path:
                parameter.mul_(4.0)
            if ".operation." in path:
                parameter.normal_()
    plain = LabForCausalLM(LabConfig(**SIZES, **HEADS))
    plain.load_state_dict({path: value for path, value in lab.state_dict().items() if ".operation." not in path})
    llama = plain.to_llama().eval()
    llama.generation_config.eos_token_id = None
    ss.attach(llama, name, start="as_is")
    llama.load_state_dict(lab.state_dict())
    return lab, llama


def ids(samples: int = 2) -> Tensor:
    return torch.randint(1, 61, (samples, TOKENS), generator=torch.Generator().manual_seed(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_lab(name: str) -> None:
    lab, llama = pair(name)
    with torch.no_grad():
        torch.testing.assert_close(llama(ids()).logits, lab(ids()).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_cache_changes_nothing(name: str) -> None:
    """Token by token, and in chunks, and for rows of unequal length: the full forward."""
    _, llama = pair(name)
    tokens = ids()
    with torch.no_grad():
        whole, past = llama(tokens).logits, DynamicCache()
        parts = [llama(part, past_key_values=past).logits for part in tokens.split([7, 1, 1, 6, 4], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, atol=5e-5, rtol=1e-5)
        mask = torch.ones_like(tokens)
        mask[1, :5] = 0
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        padded = llama(tokens, attention_mask=mask, position_ids=positions).logits[1:, 5:]
        torch.testing.assert_close(padded, llama(tokens[1:, 5:]).logits, atol=5e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_the_operation(name: str) -> None:
    _, llama = pair(name)
    loss = llama(ids(), labels=ids()).loss
    learned = {path: p for path, p in llama.named_parameters() if ".operation." in path}
    grads = torch.autograd.grad(loss, [llama.model.embed_tokens.weight, *learned.values()])
    silent = [path for path, grad in zip(["embeddings", *learned], grads, strict=True) if not grad.any()]
    assert silent == []


@pytest.mark.parametrize("name", sorted(LAB_ONLY))
def test_what_only_the_lab_can_do_is_refused(name: str, tiny_llama: LlamaForCausalLM) -> None:
    state = list(tiny_llama.state_dict())
    with pytest.raises(UnsupportedModelError, match=r"family 'llama': .* which only lab models do"):
        ss.attach(tiny_llama, name)
    assert list(tiny_llama.state_dict()) == state


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (*KINDS, "gated_head", "qk_norm") if name in NAMES])
def test_it_is_freed_with_its_last_reference(name: str) -> None:
    """Nothing of it stays until the collector runs, such as maps whose hooks hold them."""
    assert left_by(lambda: ss.attach(LabForCausalLM(LabConfig(**SIZES, **HEADS)).to_llama(), name)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_left_padding_without_position_ids_moves_what_is_not_shift_invariant(name: str) -> None:
    model = host("llama")
    ss.attach(model, name, start="as_is", seed=0)
    ids = torch.randint(1, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    padded = {
        "input_ids": functional.pad(ids, (7, 0)),
        "attention_mask": functional.pad(torch.ones_like(ids), (7, 0)),
    }
    alone = output(model, {"input_ids": ids})
    moved = (output(model, padded)[:, 7:] - alone).abs().max() / alone.abs().max()
    assert bool(moved < 1e-5) == CATALOG[name].is_shift_invariant, float(moved)
    told = padded | {"position_ids": torch.arange(-7, 12).clamp(min=0).expand(2, -1)}
    torch.testing.assert_close(output(model, told)[:, 7:], alone, atol=2e-5, rtol=1e-4)
