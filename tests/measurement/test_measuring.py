"""`measure`: what it runs, what it refuses, what it leaves alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
import xarray as xr
from transformers import FNetConfig, FNetModel, LlamaForCausalLM, MaskFormerSwinConfig, MaskFormerSwinModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.inputs import check_padding, part
from sinkscope.measurement import AttentionReceived, Comparison, HiddenNorms, SlotReceived, every, measure
from sinkscope.measurement.measuring import read_inputs
from tests.families.registry import FAMILIES
from tests.measurement.conftest import MASKS, build


@pytest.fixture
def llama() -> LlamaForCausalLM:
    return build("llama")


def test_default_observers(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    data = measure(llama, ids).data
    assert set(data.data_vars) == {
        "attention_received",
        "hidden_norm",
        "query_norm",
        "key_norm",
        "value_norm",
        *MASKS,
    }
    everything = measure(llama, ids, "all")
    observed = {each["name"] for each in everything.record["observers"]}
    assert observed == {type(observer).__name__ for observer in every()} - {"ExpertPeaks"}
    assert "SpectralBands" not in observed
    assert set(data.data_vars) < set(everything.data.data_vars)
    assert "slot_received" in measure(build("gpt_oss"), ids, "all").data
    for name in ("attention_received", "hidden_norm", "value_norm"):
        assert data[name].dtype == "float32"


def test_plain_lists_of_ids_will_do(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    assert measure(llama, ids.tolist()).data.equals(measure(llama, ids).data)


@pytest.mark.parametrize(
    "kind",
    [
        lambda ids: ids,
        lambda ids: ids.numpy(),
        lambda ids: list(ids.numpy()),
        lambda ids: [{"input_ids": ids[:2]}, {"input_ids": ids[2:]}],
        lambda ids: [{"input_ids": ids[:1]}, {"input_ids": ids[1:2, :5]}, {"input_ids": ids[2:]}],
    ],
)
def test_as_many_samples_are_read_as_asked_for(kind: Any, llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    assert len(ids) > 2
    assert measure(llama, kind(ids)).record["samples"] == len(ids)
    assert measure(llama, kind(ids), samples=1).data.equals(measure(llama, ids[:1]).data)


def test_samples_of_inputs_that_are_not_row_by_row() -> None:
    ids = torch.arange(15).view(3, 5)
    places = torch.arange(45).view(3, 3, 5)  # one row for each axis of a rotation, not for each sample
    options = {"tokens": None, "samples": 2, "windows": None, "field": None}
    read = read_inputs({"position_ids": places, "input_ids": ids}, None, lambda: None, **options).inputs
    assert read["input_ids"].equal(ids[:2])
    assert read["position_ids"].equal(places[:, :2])
    assert part({"position_ids": places}, slice(2, 3), 3, None)["position_ids"].equal(places[:, 2:])
    with pytest.raises(InputError, match="'pixel_values' has 40 rows for 3 samples"):
        read_inputs({"pixel_values": torch.zeros(40, 12), "input_ids": ids}, None, lambda: None, **options)


def test_packed_documents_are_the_same_texts_in_batches_of_any_size(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    places = torch.arange(ids.shape[1]).where(torch.arange(ids.shape[1]) < 4, torch.arange(ids.shape[1]) - 4)
    inputs = {"input_ids": ids, "position_ids": places.expand_as(ids)}
    one, all_at_once = (measure(llama, inputs, batch_size=size) for size in (1, len(ids)))
    assert one.record["packed"]["documents"] == 2 * len(ids)
    assert Comparison(one, all_at_once).paired


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "uint16", "uint32", "uint64"])
def test_ids_may_be_any_whole_numbers(name: str, llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    found = measure(llama, {"input_ids": ids.to(getattr(torch, name))}, [AttentionReceived()]).data
    xr.testing.assert_identical(found, measure(llama, ids, [AttentionReceived()]).data)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"inputs_embeds": torch.zeros(3, 9, 31)}, r"inputs_embeds \(3, 9, 31\).*\(samples, tokens, 32\)"),
        ({"inputs_embeds": torch.zeros(3, 32)}, "inputs_embeds"),
        ({"inputs_embeds": torch.zeros(3, 9, 32, dtype=torch.long)}, "expected floats"),
        ({"input_ids": torch.ones(3, 9, dtype=torch.long), "position_ids": torch.arange(8)[None]}, "each of the 9"),
        ({"inputs_embeds": torch.zeros(3, 9, 32), "position_ids": torch.arange(10)[None]}, "each of the 9"),
    ],
)
def test_embeddings_and_positions_of_another_shape(
    inputs: dict[str, torch.Tensor], why: str, llama: LlamaForCausalLM
) -> None:
    with pytest.raises(InputError, match=why):
        measure(llama, inputs)


def test_it_caches_nothing_and_keeps_one_row_of_logits(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    outputs = []
    llama.register_forward_hook(lambda _, __, output: outputs.append(output))
    measure(llama, ids)
    assert outputs[0].past_key_values is None
    assert outputs[0].logits.shape == (3, 1, 97)
    measure(llama, {"input_ids": ids, "labels": ids})
    assert outputs[1].loss is not None


def test_it_runs_in_eval_mode_and_restores_each_modules_mode(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    llama.train()
    llama.model.layers[0].eval()
    modes = [module.training for module in llama.modules()]
    seen = []
    llama.model.layers[1].register_forward_hook(lambda module, *_: seen.append(module.training))
    measure(llama, ids)
    assert seen == [False]
    assert [module.training for module in llama.modules()] == modes
    assert not any(parameter.grad is not None for parameter in llama.parameters())


def test_progress_is_told_after_each_batch(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    told: list[tuple[int, int]] = []
    measure(llama, ids, batch_size=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 3), (3, 3)]


def test_the_record_says_what_stood_first(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    ids = ids.clone()
    ids[:, 4] = 7
    mask = torch.ones_like(ids)
    mask[:, :4] = 0
    record = measure(llama, {"input_ids": ids, "attention_mask": mask}, about={"kind": "natural"}, batch_size=2).record
    assert record["input"]["position_0"] == {"token_ids": [7], "distinct": 1}
    assert record["input"]["kind"] == "natural"
    assert (record["family"], record["dtype"], record["samples"], record["tokens"]) == ("llama", "float32", 3, 20)
    assert set(record["versions"]) == {"sinkscope", "torch", "transformers", "python"}


def test_extra_inputs_go_to_the_model() -> None:
    family = FAMILIES["vit"]
    assert measure(family.build(), family.inputs(), batch_size=2).data.sizes["sample"] == 3


BAD = {
    "ids above the vocabulary": (lambda ids: ids + 90, r"token id \d+ \(sample \d, position \d+\).*vocabulary of 97"),
    "negative ids": (lambda ids: -ids, "outside the vocabulary"),
    "ids that are no whole numbers": (lambda ids: ids.float(), "whole numbers"),
    "no samples": (lambda ids: ids[:0], "empty"),
    "no tokens": (lambda ids: ids[:, :0], "empty"),
    "one row without a batch": (lambda ids: ids[0], r"\(samples, tokens\)"),
    "more tokens than positions": (lambda ids: ids.repeat(1, 3), "72 tokens, but the model has positions for 64"),
    "an empty dict": (lambda ids: {}, "empty"),
    "a mask longer than the ids": (
        lambda ids: {"input_ids": ids, "attention_mask": torch.ones(3, 30)},
        r"attention_mask \(3, 30\) does not fit input_ids \(3, 24\)",
    ),
    "a mask of fewer rows than the ids": (
        lambda ids: {"input_ids": ids, "attention_mask": torch.ones(2, 24)},
        r"attention_mask \(2, 24\) does not fit input_ids \(3, 24\)",
    ),
    "a mask of one row": (
        lambda ids: {"input_ids": ids, "attention_mask": torch.ones(1, 24)},
        r"attention_mask \(1, 24\) does not fit input_ids \(3, 24\)",
    ),
    "a mask without rows": (
        lambda ids: {"input_ids": ids, "attention_mask": torch.ones(24)},
        r"attention_mask \(24,\) does not fit input_ids \(3, 24\)",
    ),
    "rows that do not fit": (
        lambda ids: {"input_ids": ids, "position_ids": torch.arange(24).expand(2, 24)},
        "'position_ids' has 2 rows for 3 samples",
    ),
    "no id where one belongs": (lambda ids: [[1, None]], r"expected token ids \(N, T\)"),
}


def test_a_mask_may_have_one_row_for_all_codebooks_of_a_sample() -> None:
    ids = {"input_ids": torch.ones(2, 7), "decoder_input_ids": torch.ones(8, 10)}
    check_padding({**ids, "decoder_attention_mask": torch.ones(2, 10)}, 2)
    with pytest.raises(InputError, match="does not fit decoder_input_ids"):
        check_padding({**ids, "decoder_attention_mask": torch.ones(4, 10)}, 2)


@pytest.mark.parametrize("case", BAD)
def test_bad_inputs_are_refused(
    case: str, llama: LlamaForCausalLM, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users have no shape checks
    make, message = BAD[case]
    with pytest.raises(InputError, match=message):
        measure(llama, make(ids), batch_size=2)


@pytest.mark.parametrize(
    ("observers", "said"),
    [
        ([], "expected a list of observers"),
        ("every", "unknown observer 'every': choose from all, few, HiddenNorms"),
        (["HidenNorms"], "unknown observer 'HidenNorms': did you mean 'HiddenNorms'"),
        (["no_such_module:Mine"], "'no_such_module:Mine': module 'no_such_module' cannot be imported"),
        (["sinkscope.measurement:Mine"], "'sinkscope.measurement:Mine': .*Mine"),
        (["sinkscope.measurement:measure"], "'sinkscope.measurement:measure': .* is not a class of observers"),
    ],
)
def test_bad_observers_are_refused(llama: LlamaForCausalLM, ids: torch.Tensor, observers: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        measure(llama, ids, observers)


def test_names_stand_beside_observers(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    def asked(observers: Any) -> list[dict[str, Any]]:
        return measure(llama, ids[:1], observers).record["observers"]

    everything, some = asked("all"), asked(["all", AttentionReceived(positions="first:2")])
    assert [one["name"] for one in asked(["HiddenNorms", "sinkscope.measurement:SelfAttention"])] == [
        "HiddenNorms",
        "SelfAttention",
    ]
    assert sorted(one["name"] for one in some) == sorted(one["name"] for one in everything)
    received = next(one for one in some if one["name"] == "AttentionReceived")
    assert received["positions"] == "first:2"
    assert asked("HiddenNorms") == asked([HiddenNorms()])


def test_two_observers_of_one_name_do_not_write_over_each_other(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    @dataclass(frozen=True)
    class Mine(HiddenNorms):
        pass

    with pytest.raises(InputError, match="HiddenNorms and Mine both yield 'hidden_norm': ask for one of them"):
        measure(llama, ids, [HiddenNorms(), Mine()])


@pytest.mark.parametrize("value", [0, "auto", 2.5, None])
def test_a_batch_size_that_is_no_number_of_samples_is_refused(
    llama: LlamaForCausalLM, ids: torch.Tensor, value: Any
) -> None:
    with pytest.raises(InputError, match=f"batch_size = {value!r}"):
        measure(llama, ids, batch_size=value)


@pytest.mark.parametrize("given", [{"tokens": 4}, {"windows": "packed"}, {"field": "x"}])
def test_arguments_of_texts_are_refused_where_there_are_none(
    llama: LlamaForCausalLM, ids: torch.Tensor, given: dict[str, Any]
) -> None:
    for inputs in (ids, {"input_ids": ids}, iter(ids.tolist())):
        with pytest.raises(InputError, match=f"^{next(iter(given))} goes with texts=…"):
            measure(llama, inputs, **given)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_are_named(llama: LlamaForCausalLM, ids: torch.Tensor, value: float) -> None:
    with torch.no_grad():
        llama.model.layers[1].mlp.up_proj.weight[3, 4] = value
    with pytest.raises(InputError, match=r"first in 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        measure(llama, ids)


def test_large_weights_are_not_broken(ids: torch.Tensor) -> None:
    model = build("llama").half()
    with torch.no_grad():
        model.lm_head.weight.fill_(60000.0)
    measured = measure(model, ids, [AttentionReceived()])
    assert bool(measured.data["attention_received"].isel(position=0).notnull().all())


def test_activations_that_overflow_are_named_by_place(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    llama.model.layers[0].mlp.register_forward_hook(lambda _, __, output: output * float("inf"))
    with pytest.warns(UserWarning, match="NaN or infinite in 3 samples, first at depth 1 of the decoder"):
        measured = measure(llama, ids)
    assert measured.record["non_finite"]["first"] == "depth 1 of the decoder"
    received = measured.data["attention_received"]
    assert bool(received.isel(layer=0).notnull().all())
    assert bool(received.isel(layer=1).isnull().all()), "what the broken layer gave counts nowhere"
    assert not np.isinf(measured.data["hidden_norm"].values).any()
    with pytest.warns(UserWarning, match=r"first at layer 'model\.layers\.1\.self_attn'"):
        measure(llama, ids, [AttentionReceived()])


def test_a_sample_that_overflows_leaves_the_others(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    sound = measure(llama, ids[:2]).data

    def overflow(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        return output.index_fill(0, torch.tensor([2]), torch.inf)

    llama.model.layers[0].mlp.register_forward_hook(overflow)
    with pytest.warns(UserWarning, match="in 1 sample,"):
        broken = measure(llama, ids).data
    np.testing.assert_allclose(broken["attention_received"][:2], sound["attention_received"], atol=1e-6)


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_halved(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    wanted = measure(llama, ids, batch_size=1).data.drop_attrs()

    def crowded(module: object, args: tuple, kwargs: dict) -> None:
        if len(kwargs["input_ids"]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    llama.register_forward_pre_hook(crowded, with_kwargs=True)
    with pytest.warns(UserWarning, match="out of memory with 3 samples at once: going on with 1"):
        found = measure(llama, ids, batch_size=3).data.drop_attrs()
    xr.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.slow
def test_a_single_sample_that_does_not_fit_is_an_error(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    def crowded(module: object, args: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    llama.register_forward_pre_hook(crowded)
    with pytest.raises(InputError, match="out of memory with a single sample of 24 tokens"):
        measure(llama, ids, batch_size=1)


def test_token_ids_and_texts_are_kept(llama: LlamaForCausalLM) -> None:
    class Letters:
        all_special_ids = (3,)

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [chr(97 + token) for token in ids]

    given = torch.tensor([[0, 3, 4, 5], [6, 7, 8, 9]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    measured = measure(llama, {"input_ids": given, "attention_mask": mask}, tokenizer=Letters())
    assert measured.data["token_id"].values.tolist() == [[3, 4, 5, -1], [6, 7, 8, 9]]
    assert measured.record["token_text"] == {str(token): chr(97 + token) for token in range(3, 10)}
    assert measured.record["special_tokens"] == [3]


def test_slots_alone_on_a_model_without_any(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    measurement = measure(llama, ids, [SlotReceived()])
    assert set(measurement.data.data_vars) == {"tokens", "queries", "most_queries"}
    with pytest.raises(InputError, match="no layer has slots"):
        measurement.slot_rate()


def test_a_list_of_dicts_is_measured_one_behind_the_other(llama: LlamaForCausalLM, ids: torch.Tensor) -> None:
    steps: list[tuple[int, int]] = []
    parts = [{"input_ids": ids[:2]}, {"input_ids": ids[2:, :11]}]
    both = measure(llama, parts, batch_size=1, progress=lambda done, total: steps.append((done, total))).data
    assert steps == [(1, 3), (2, 3), (3, 3)]
    for rows, own in ((slice(0, 2), parts[0]), (slice(2, 3), parts[1])):
        alone = measure(llama, own, batch_size=1).data["attention_received"]
        found = both["attention_received"].isel(sample=rows)
        length = own["input_ids"].shape[1]
        assert np.array_equal(found.values[..., :length], alone.values)
        assert np.isnan(found.values[..., length:]).all()
    assert both["tokens"].values[2].tolist() == [11] * both.sizes["layer"]


class WithoutMaps(FNetModel):
    """A model that says itself that it has no maps, as the wrappers around timm do."""

    def forward(self, input_ids, output_attentions=None, **kwargs):
        if output_attentions:
            raise ValueError("Cannot set `output_attentions` for this model.")
        return super().forward(input_ids, **kwargs)


def test_a_model_that_refuses_to_give_maps_is_refused() -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    model = WithoutMaps(FNetConfig(**sizes)).eval()
    with pytest.raises(
        UnsupportedModelError, match=r"own code ends in an error when .* \(ValueError: Cannot set"
    ) as said:
        measure(model, torch.arange(10)[None])
    assert "\n" not in str(said.value)


def test_a_model_whose_own_code_fails_on_maps_is_refused() -> None:
    """Not with its traceback; and an input that it cannot read at all keeps the error that it raises."""
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4]}
    model = MaskFormerSwinModel(MaskFormerSwinConfig(**sizes, window_size=4)).eval()
    images = {"pixel_values": torch.randn(2, 3, 32, 32)}
    model(**images)
    with pytest.raises(TypeError, match="not subscriptable"):
        model(**images, output_attentions=True)
    with pytest.raises(UnsupportedModelError, match=r"own code ends in an error when .* \(TypeError: ") as said:
        measure(model, images)
    assert "\n" not in str(said.value)
    with pytest.raises(ValueError, match="You have to specify pixel_values"):
        measure(model, {"pixels": images["pixel_values"]})
