"""Observing changes nothing, counts what it should, and leaves everything as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
import xarray as xr
from torch import nn
from transformers import AttentionInterface, Cache, LlamaForCausalLM

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.dispatch import KernelLse
from sinkscope.measurement import AttentionReceived, HiddenNorms, Measurement, QueryKeyValueNorms, measure, observe
from sinkscope.measurement.observers.observer import Hidden, Piece
from tests.collector import left_by
from tests.families.registry import FAMILIES
from tests.measurement.conftest import EXPERTLESS, build
from tests.shapes import unchecked


def state(model: nn.Module) -> tuple:
    """Everything that observing touches."""
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    return vars(AttentionInterface)["get_interface"], vars(Cache)["reorder_cache"], hooks, stance(), str(model.config)


def stance() -> str:
    return torch._dynamo.eval_frame._stance.stance


@pytest.fixture
def llama() -> LlamaForCausalLM:
    return build("llama")


def test_everything_is_restored(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    before = state(llama)
    with observe(llama, *EXPERTLESS):
        assert vars(AttentionInterface)["get_interface"] is not before[0]
        assert stance() == "force_eager"
        llama(ids)
    assert state(llama) == before


def test_observers_come_alone_or_as_a_list(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    with (
        observe(llama, AttentionReceived(), HiddenNorms()) as alone,
        observe(llama, [AttentionReceived(), HiddenNorms()]) as listed,
    ):
        llama(ids)
    assert alone.measurement().data.identical(listed.measurement().data)


def test_everything_is_restored_after_an_exception(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    before = state(llama)
    with pytest.raises(ZeroDivisionError), observe(llama, *EXPERTLESS):
        assert llama(ids).logits.shape[0] / 0
    assert state(llama) == before
    with pytest.raises(IndexError), observe(llama, *EXPERTLESS):
        llama(ids + 1000)
    assert state(llama) == before


def test_a_model_that_can_not_be_observed_leaves_nothing_behind() -> None:
    before = vars(AttentionInterface)["get_interface"]
    with pytest.raises(UnsupportedModelError), observe(nn.Linear(2, 2)):
        pass
    assert vars(AttentionInterface)["get_interface"] is before


def test_observations_nest_and_end_in_any_order(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    before = state(llama)
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    outer = first.enter_context(observe(llama, AttentionReceived()))
    llama(ids)
    inner = second.enter_context(observe(llama, AttentionReceived([0])))
    llama(ids)
    first.close()
    llama(ids[:2])
    second.close()
    assert state(llama) == before
    assert outer.measurement().data.sizes["sample"] == 6
    assert inner.measurement().data.sizes["sample"] == 5


def test_what_was_seen_is_freed_with_its_observation(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    """Not when the collector comes by: until then it holds memory in the gaps of which no forward pass fits."""

    def look() -> None:
        with observe(llama, *EXPERTLESS) as seen:
            llama(ids)
        seen.measurement()

    assert left_by(look) == 0


def test_other_models_are_untouched(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    other = build("mistral")
    with observe(llama, AttentionReceived()) as seen:
        other(ids)
        with pytest.raises(InputError, match="nothing was observed"):
            seen.measurement()
        with observe(other, AttentionReceived()) as seen_other:
            llama(ids[:1])
            other(ids[:2])
    assert seen.measurement().data.sizes["sample"] == 1
    assert seen_other.measurement().data.sizes["sample"] == 2


def test_a_pass_that_fails_counts_nothing(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    with observe(llama, AttentionReceived(), HiddenNorms()) as seen:
        llama(ids)
        llama.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llama(ids)
    assert seen.measurement().data.sizes["sample"] == 3


def test_gradients_are_what_they_were(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    def gradient() -> torch.Tensor:
        llama.zero_grad()
        llama(ids, labels=ids).loss.backward()
        return llama.model.layers[0].self_attn.q_proj.weight.grad.clone()

    plain = gradient()
    with observe(llama, *EXPERTLESS):
        assert torch.equal(gradient(), plain)


def test_recomputation_by_gradient_checkpointing_is_not_counted(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    wanted = measure(llama, ids)
    llama.train()
    enable = getattr(llama, "activation_checkpointing_enable", None) or llama.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    calls = []
    llama.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    with observe(llama, AttentionReceived(), HiddenNorms(), QueryKeyValueNorms()) as seen:
        llama(ids, labels=ids, use_cache=False).loss.backward()
    assert len(calls) == 2, "the layer must really have run twice"
    found = seen.measurement()
    assert found.data.drop_attrs().equals(wanted.data.drop_attrs())


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_logits_are_bit_identical_in_every_gradient_mode(
    llama: LlamaForCausalLM, ids: torch.Tensor, mode: type
) -> None:
    with mode():
        plain = llama(ids).logits
        with observe(llama, *EXPERTLESS):
            assert torch.equal(llama(ids).logits, plain)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_the_kernels_log_sum_exp_is_seen_in_every_gradient_mode(mode: type) -> None:
    query, key = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8)

    def attend(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(**given, is_causal=True, enable_gqa=True)

    with mode():
        given = {"query": query, "key": key, "value": key}
        with KernelLse() as kernel:
            output = attend(given)
        assert torch.equal(output, attend(given))
    scores = query @ key.repeat_interleave(2, 1).mT / 8**0.5
    wanted = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).logsumexp(-1)
    assert kernel.lse is not None
    torch.testing.assert_close(kernel.lse, wanted)


def test_statistics_stay_in_fp32_under_autocast(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        plain = llama(ids).logits
        with observe(llama, *EXPERTLESS) as seen:
            assert torch.equal(llama(ids).logits, plain)
    received = seen.measurement().data["attention_received"]
    total = (received * (24 - received["position"])).sum("position")
    assert float(abs(total - 24).max()) < 1e-4, "rows of fp32 weights sum to one"


def test_products_that_a_user_allowed_to_be_shorter_stay_whole(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    wanted = measure(llama, ids).data.drop_attrs()
    seen: list[str] = []

    class Spy(HiddenNorms):
        def on_hidden(self, hidden: Hidden) -> Iterator[Piece]:
            seen.append(torch.backends.mkldnn.matmul.fp32_precision)
            yield from super().on_hidden(hidden)

    torch.set_float32_matmul_precision("medium")
    try:
        found = measure(llama, ids, [AttentionReceived(), Spy()]).data
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"ieee"}
    # The model's own products are as short as they were allowed to be, on processors that have such.
    assert float(abs(found["attention_received"] - wanted["attention_received"]).max()) < 1e-2


def test_dropout_is_noted(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    for layer in llama.model.layers:
        layer.self_attn.attention_dropout = 0.5
    llama.train()
    with observe(llama, AttentionReceived()) as seen:
        llama(ids)
    assert seen.measurement().record["not_verified"] == ["attention dropout is on"]


def test_a_layer_that_is_never_called_is_an_error(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    llama.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with observe(llama, AttentionReceived()) as seen:
        llama(ids)
    with pytest.raises(UnsupportedModelError, match=r"'llama'.*model\.layers\.1\.self_attn was never called"):
        seen.measurement()


def test_a_stack_that_is_never_called_is_listed() -> None:
    family = FAMILIES["bart"]
    model, inputs = family.build("sdpa"), family.inputs()
    with observe(model, AttentionReceived()) as seen:
        outputs = model.model.encoder(inputs["input_ids"])
        model(encoder_outputs=outputs, decoder_input_ids=inputs["decoder_input_ids"])
    measurement = seen.measurement()
    assert measurement.record["not_measured"] == {"encoder": "was never called"}
    assert set(measurement.data["stack"].values.tolist()) == {"decoder", "cross"}


@pytest.mark.parametrize("observers", [("all",), (AttentionReceived(), AttentionReceived([0]))])
def test_what_are_no_observers_is_refused(
    llama: LlamaForCausalLM, observers: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users have no shape checks
    with pytest.raises(InputError, match=r"expected observers|given twice"):
        observe(llama, *observers).__enter__()


@pytest.mark.parametrize("positions", ["some", "first:", "first:0", "first:-1", [], [-1], [0.5]])
def test_positions_of_another_form_are_refused(positions: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match="expected 'all', 'first:8'"):
        AttentionReceived(positions)


def test_samples_of_several_passes_follow_each_other(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    with observe(llama, AttentionReceived()) as seen, torch.no_grad():
        llama(ids[:2])
        llama(ids[2:, :15])
    data = seen.measurement().data
    assert data["tokens"].values.tolist() == [[24, 24], [24, 24], [15, 15]]
    alone = measure(llama, ids[2:, :15], [AttentionReceived()])
    row = Measurement(data.isel(sample=[2], position=slice(0, 15)))
    assert float(abs(row.data["attention_received"] - alone.data["attention_received"]).max()) < 1e-6


@pytest.mark.release
@unchecked
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_models_are_observed_before_and_after_compilation() -> None:
    from torch._dynamo.testing import CompileCounter  # takes a second

    torch._dynamo.reset()  # after many models of a process, no more are compiled
    family = FAMILIES["llama"]
    model, ids = family.build("sdpa"), family.inputs()["input_ids"]

    def run(compiled: torch.nn.Module) -> tuple[torch.Tensor, xr.Dataset]:
        with observe(compiled, AttentionReceived(), HiddenNorms()) as seen, torch.no_grad():
            logits = compiled(ids).logits
        return logits, seen.measurement().data.drop_attrs()

    with torch.no_grad():
        plain = model(ids).logits
        _, wanted = run(model)
        before = run(torch.compile(model, backend="eager"))  # observed before the first compilation
        counter = CompileCounter()
        compiled = torch.compile(model, backend=counter)
        assert torch.equal(compiled(ids).logits, plain)
        frames = counter.frame_count
        assert frames > 0
        after = run(compiled)
        assert torch.equal(compiled(ids).logits, plain)
        assert counter.frame_count == frames, "compiled again, or no longer compiled"
        torch._dynamo.reset()
        model, counter = family.build("sdpa"), CompileCounter()
        model.compile(backend=counter)
        assert torch.equal(model(ids).logits, plain)
        assert counter.frame_count > 0
        own = run(model)
    for logits, data in (before, after, own):
        assert torch.equal(logits, plain)
        assert data.equals(wanted)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_the_first_token_mixes_with_nobody(name: str, ids: torch.Tensor) -> None:
    """Its softmax has one entry: its head outputs are its values, and no other text reaches its states."""
    model, other = build(name), ids.clone()
    other[:, 1:] = ids[:, 1:].flip(1) + 1
    found, changed = measure(model, ids, EXPERTLESS).data, measure(model, other, EXPERTLESS).data
    assert float(abs(found["output_norm"] - found["value_norm"]).isel(position=0).max()) < 1e-5
    for variable in ("hidden_norm", "hidden_max", "key_norm", "value_norm"):
        assert bool((found[variable] == changed[variable]).isel(position=0).all()), variable
        assert not bool((found[variable] == changed[variable]).isel(position=5).all()), variable
