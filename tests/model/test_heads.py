"""Outputs of heads: side by side before one map, or added (Gu et al. 2025, Table 12)."""

from __future__ import annotations

import torch

import sinkscope as ss
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.model.attention import AddedHeads

IDS = torch.arange(1, 12)[None]


def model(**fields: object) -> LabForCausalLM:
    sizes = {"vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40}
    return LabForCausalLM(LabConfig(**sizes | {"num_attention_heads": 4} | fields)).eval()


def test_added_heads_are_a_loop_over_heads():
    """O = Σ_h A_h V_h W_O."""
    added, heads = AddedHeads(3, 4, 5), torch.randn(2, 7, 3, 4)
    torch.nn.init.normal_(added.weight)
    expected = sum(heads[:, :, head] @ added.weight.T for head in range(3))
    torch.testing.assert_close(added(heads.flatten(-2)), expected)


@torch.no_grad()
def test_concatenation_of_identical_blocks_is_addition():
    added, concatenated = model(head_combination="add"), model()
    state = added.state_dict()
    for name in [name for name in state if "o_proj" in name]:
        assert state[name].shape == (24, 6)
        state[name] = state[name].repeat(1, 4)
    concatenated.load_state_dict(state)
    torch.testing.assert_close(concatenated(IDS).logits, added(IDS).logits, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_one_head_is_the_same_either_way():
    added, concatenated = (
        model(head_combination=kind, num_attention_heads=1, num_key_value_heads=1) for kind in ("add", "concat")
    )
    concatenated.load_state_dict(added.state_dict())
    assert torch.equal(concatenated(IDS).logits, added(IDS).logits)
    assert torch.equal(added.to_llama().lm_head.weight, added.lm_head.weight)


def test_a_shared_map_starts_by_the_width_of_a_head():
    torch.manual_seed(0)
    wide = LabForCausalLM(LabConfig(hidden_size=256, num_attention_heads=4, vocab_size=8, head_combination="add"))
    assert abs(wide.model.layers[0].self_attn.o_proj.weight.std().item() / (2 / (5 * 64)) ** 0.5 - 1) < 0.05


@torch.no_grad()
def test_what_heads_write_is_measured_head_by_head():
    """The lengths that `HeadOutputs` reads at the output map are those of Σ_j A_tj v_j, summed or not."""
    lab, seen = model(head_combination="add"), []
    attention = lab.model.layers[1].self_attn
    attention.o_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    measured = ss.measure(lab, IDS, observers=[ss.measurement.HeadOutputs()]).data["output_norm"].values[0, 1]
    value = attention.v_proj.register_forward_hook(lambda module, args, output: seen.append(output))
    maps = lab(IDS, output_attentions=True).attentions[1][0]
    value.remove()
    values = seen[-2][0].unflatten(-1, (4, 6)).transpose(0, 1)
    torch.testing.assert_close(torch.from_numpy(measured), (maps @ values).norm(dim=-1), atol=1e-5, rtol=1e-4)
