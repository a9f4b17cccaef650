"""Schemes by name: one grammar, each works on a tiny model, and the headline on nano."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.interventions import Intervention
from sinkscope.quantization import (
    GPTQ,
    SCHEMES,
    DuQuant,
    Grid,
    OutlyingColumns,
    QuantizationScheme,
    QuantizeLinear,
    RotateInputs,
    SliM,
    linear_maps,
)
from sinkscope.quantization.schemes import scheme_named
from sinkscope.sinks import First, Measured, Outliers
from sinkscope.trials import scheme_trial
from tests.families.registry import FAMILIES
from tests.quantization.quick import quick_searches  # noqa: F401  (fixture)
from tests.registering import forgetting


@pytest.fixture(scope="module")
def roomy_llama() -> LlamaForCausalLM:
    """Heads of 32 channels, maps of 128, and five layers, of which some schemes leave the outer four."""
    sizes = {"vocab_size": 101, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 5}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_of_the_list_is_its_grammars(name: str) -> None:
    assert scheme_named(name).name == name
    assert scheme_named(name).says == SCHEMES[name].says


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("w17", "from 1 to 16"),
        ("w8a17-token", "from 1 to 16"),
        ("kv2", "kv2-"),
        ("w8-smooth", "unknown scheme"),
        ("w4-gpqt", "did you mean 'w4-gptq'"),
        ("w1-slim", "mixes 0, 1 and 2 bits"),
        ("w16-slim", "from 2 to 15"),
    ],
)
def test_other_names_are_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        scheme_named(name)


def made(model: LlamaForCausalLM, name: str, ids: torch.Tensor, protect: First | None = None) -> Any:
    return scheme_named(name).make(model, {"input_ids": ids}, protect)


def test_a_name_makes_the_method_that_it_names(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (3, 24))
    maps = linear_maps(tiny_llama)
    plain = made(tiny_llama, "w3", ids)
    better = made(tiny_llama, "w3-gptq", ids)
    expected = GPTQ.of(tiny_llama, ids)
    for path, one in maps.items():
        wanted = expected.rounded(path, one.weight.detach(), Grid(3, symmetric=True))
        assert torch.equal(better.rounding.rounded(path, one.weight.detach(), better.weights), wanted)
    assert plain.rounding is None
    assert plain.weights == better.weights
    mixed = made(tiny_llama, "w3-slim", ids)
    widths = {one.weight.shape[-1] for one in maps.values()}
    assert all(width % mixed.weights.group == 0 for width in widths)
    assert isinstance(mixed.rounding, SliM)
    both = made(tiny_llama, "w4a4-token-rotated-gptq", ids)
    assert both.rounding.transform is both.transform  # the second is calibrated under the first
    assert both.transform == RotateInputs(skip=("lm_head",))
    assert made(tiny_llama, "llm-int8-2.5", ids) == OutlyingColumns(2.5)
    assert made(tiny_llama, "llm-int8", ids) == OutlyingColumns(6.0)


@pytest.mark.parametrize("name", ["w8a8-static", "w8a8-static-rotated", "w8a8-static-smooth", "w8a8-token", "w3-gptq"])
def test_what_choices_share_changes_nothing(tiny_llama: LlamaForCausalLM, name: str) -> None:
    ids, other = torch.randint(0, 101, (3, 24)), torch.randint(0, 101, (2, 24))
    shared, passes = scheme_named(name).on(tiny_llama, {"input_ids": ids}), []
    with ExitStack() as stack:
        stack.callback(tiny_llama.register_forward_hook(lambda *_: passes.append(1)).remove)
        for protect in (None, First(1), First(2)):
            fast = shared(protect)
            if protect is None:
                first = len(passes)
            slow = made(tiny_llama, name, ids, protect)
            with torch.no_grad():
                with fast.applied(tiny_llama):
                    found = tiny_llama(other).logits
                with slow.applied(tiny_llama):
                    expected = tiny_llama(other).logits
            assert torch.equal(found, expected)
        before = len(passes)
        shared(First(3))
    if name in ("w8a8-static", "w8a8-static-rotated", "w8a8-token"):
        assert len(passes) == before
        assert first > 0


def test_weights_leave_protected_tokens_out_of_calibration_alone(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (3, 24))
    found = made(tiny_llama, "w3-gptq", ids, First(2))
    assert found.protect is None  # served, weights know no tokens
    expected = GPTQ.of(tiny_llama, ids, protect=First(2)).hessians
    with_all = GPTQ.of(tiny_llama, ids).hessians
    for path, hessians in found.rounding.hessians.items():
        assert torch.equal(hessians[0], expected[path][0])
        assert not torch.equal(hessians[0], with_all[path][0])
    found = scheme_trial(tiny_llama, torch.randint(0, 101, (6, 40)), "w3-gptq", First(2), controls=1)
    assert not np.allclose(found.values("first:2"), found.values("w3-gptq"))


def test_maps_are_left_as_they_are_by_name(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (4, 16))
    every = [path.rpartition(".")[2] for path in linear_maps(tiny_llama)]
    for name in ("w2", "w2-gptq", "w4a4-tensor", "w4a4-static-smooth", "llm-int8"):
        scheme = scheme_named(name, tuple(dict.fromkeys(every)))
        with pytest.warns(UserWarning, match="nothing was rounded"):
            assert (scheme_trial(tiny_llama, ids, scheme, {}, in_sample=True).values(name) == 0).all()
    assert "down_proj" in scheme_named("w2", ("down_proj",)).make(tiny_llama, {"input_ids": ids}, None).skip  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="did you mean 'down_proj'"):
        scheme_trial(tiny_llama, ids, scheme_named("w2", ("dwn_proj",)), {})
    with pytest.raises(InputError, match="no linear map"):
        scheme_named("kv2-token", ("down_proj",))


def test_llm_int8_says_what_it_does_not_quantize(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (2, 16))
    with pytest.warns(UserWarning, match="nothing was rounded"):
        everything = scheme_trial(tiny_llama, ids, OutlyingColumns(0.0), {})
    assert everything.record["columns_kept"] == 1
    found = scheme_trial(tiny_llama, ids, "llm-int8-0.5", {})
    shares = OutlyingColumns(0.5).kept(tiny_llama, ids)
    assert 0 < found.record["columns_kept"] < found.record["columns_kept_most"] == max(shares.values())
    assert f"{100 * max(shares.values()):.0f} %" in found.verdict


def test_more_bits_cost_less(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (3, 24))
    costs = []
    for bits in (3, 5, 8):
        name = f"w{bits}a{bits}-tensor"
        costs.append(scheme_trial(tiny_llama, ids, name, {}).mean(name).value)
    assert costs[0] > 5 * costs[1] > 25 * costs[2] > 0
    assert scheme_trial(tiny_llama, ids, "w4", {}).mean("w4").value > 0


ROOMY = re.compile("w4-awq-g128|nvfp4|q[458]_[01]|iq4_nl|turboquant")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_searches")
@pytest.mark.parametrize("name", [name for name in SCHEMES if SCHEMES[name].protects != "nothing"])
def test_every_scheme_runs_with_tokens_protected(
    tiny_llama: LlamaForCausalLM, roomy_llama: LlamaForCausalLM, name: str
) -> None:
    model, context = roomy_llama if ROOMY.match(name) else tiny_llama, 64 if SCHEMES[name].caches else None
    found = scheme_trial(model, torch.randint(0, 101, (3, 72)), name, First(1), controls=1, context=context)
    assert found.mean(name).value > 0
    assert found.record["scheme"] == name


def test_a_scheme_of_ones_own(tiny_llama: LlamaForCausalLM) -> None:
    own = QuantizationScheme("mine", "as w4a4-token", SCHEMES["w8a8-token"].make)
    found = scheme_trial(tiny_llama, torch.randint(0, 101, (2, 40)), own, First(1), controls=1)
    assert found.record["scheme_says"] == "as w4a4-token"


@pytest.mark.slow
def test_duquant_by_its_name(tiny_llama: LlamaForCausalLM) -> None:
    assert isinstance(made(tiny_llama, "w4a4-token-duquant", torch.randint(0, 101, (2, 16))).transform, DuQuant)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe", "deepseek_v3", "bert", "t5", "jamba"])
def test_families_are_tried(name: str) -> None:
    if name not in FAMILIES:
        pytest.skip(f"no family '{name}' in the registry")
    family = FAMILIES[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="left as they are")  # a Mamba layer reads a weight directly
        found = scheme_trial(family.build("eager"), family.inputs(), "w4a8-tensor", First(1), controls=0)
    assert found.mean("w4a8-tensor").value > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a8-tensor", "a8-token", "a8-static", "a6-tensor-smooth"])
def test_activations_alone_are_rounded_under_a_name_of_their_own(name: str) -> None:
    model = ss.load("nano")
    ids = torch.randint(5, 2000, (4, 48), generator=torch.Generator().manual_seed(0))
    alone, whole = (
        scheme_trial(model, ids, each, First(1), calibrate_on=ids, controls=0).values(each)
        for each in (name, f"w16{name}")
    )
    np.testing.assert_array_equal(alone, whole)
    assert alone.mean() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nano", "nano-encoder", "nano-hybrid"])
def test_shipped_models_are_tried(name: str) -> None:
    model = ss.load(name)
    ids = torch.randint(5, 2000, (4, 48), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = 0
    said = pytest.warns(UserWarning, match="dt_proj") if name == "nano-hybrid" else nullcontext()
    with said:
        found = scheme_trial(model, ids, "w8a8-tensor", First(1), controls=0)
    assert found.mean("w8a8-tensor").value > 0
    assert bool(found.data["nats"].notnull().all()) == (name != "nano-encoder")


@pytest.mark.slow
def test_nanos_sink_is_what_a_shared_range_loses_to(nano_text: torch.Tensor) -> None:
    """Inequalities, not digits: the measured sink gives most of the cost back, random tokens nothing.

    Behind a second BOS attention is shared, and a head seldom gives one of the two over epsilon: outliers find both.
    """
    model = ss.load("nano")
    found = scheme_trial(model, nano_text, "w8a8-tensor", Measured(by="row"), controls=2)
    assert found.recovered("measured").value > 0.5
    for name in found.controls("measured"):
        assert abs(found.recovered(name).value) < 0.1
    second = torch.cat([nano_text[:, :64], nano_text[:, :1], nano_text[:, 64:-1]], 1)
    both = Measured(by="row") + Outliers()
    two = scheme_trial(model, second, "w8a8-tensor", both, controls=1)
    first = next(name for name in two.arms if name.startswith("first "))
    assert two.recovered(str(both)).value > 0.8 > 0.4 > two.recovered(first).value
    assert two.difference(first, str(both)).low > 0


@pytest.fixture
def nano_text() -> torch.Tensor:
    from sinkscope.data import build_inputs
    from sinkscope.model import load_tokenizer

    text = Path(re.__file__).parent  # python that stands wherever tests run
    return build_inputs(
        "natural",
        tokenizer=load_tokenizer("nano"),
        vocab_size=2048,
        tokens=128,
        samples=18,
        seed=0,
        text=text / "_parser.py",
    ).input_ids


TWO_BITS = Grid(2, symmetric=True)


@pytest.fixture
def planted() -> Iterator[None]:
    """Schemes of another package: a function, a class of interventions, and one that takes `skip`."""

    def two_bits(model: nn.Module, calibration: Any, protect: Any) -> Intervention:
        """Two bits everywhere. The rest of the docstring is not for the table."""
        return QuantizeLinear(TWO_BITS, TWO_BITS, protect=protect)

    def weights(model: nn.Module, calibration: Any, protect: Any, skip: tuple[str, ...] = ()) -> Intervention:
        """Two bits in weights."""
        return QuantizeLinear(Grid(2, symmetric=True), skip=("lm_head", *skip))

    @dataclass(frozen=True)
    class FirstBits(QuantizeLinear):
        """Two bits everywhere, as a class."""

        weights: Grid = TWO_BITS
        activations: Grid | None = TWO_BITS

    with forgetting():
        ss.scheme(two_bits)
        ss.scheme("two-weights", protects="nothing")(weights)
        ss.scheme(FirstBits)
        yield


@pytest.mark.parametrize("name", ["two-bits", "first-bits"])
def test_a_registered_scheme_is_one_among_others(planted: None, tiny_llama: LlamaForCausalLM, name: str) -> None:
    ids = torch.randint(0, 101, (6, 40), generator=torch.Generator().manual_seed(0))
    assert name in SCHEMES
    assert {"two-bits", "two-weights", "first-bits"} <= {*SCHEMES}
    mine = scheme_trial(tiny_llama, ids, name, First(1), controls=2)
    theirs = scheme_trial(tiny_llama, ids, "w2a2-token", First(1), controls=2)
    assert mine.record["scheme"] == name
    assert mine.record["scheme_says"].startswith("Two bits everywhere")
    for arm, other in ((name, "w2a2-token"), ("first:1", "first:1")):
        np.testing.assert_array_equal(mine.values(arm), theirs.values(other))
    assert name in str(mine.verdict)
    assert name in json.dumps(mine.plot().to_dict(), default=str)


def test_a_registered_scheme_takes_skip_where_its_function_does(planted: None, tiny_llama: LlamaForCausalLM) -> None:
    made = scheme_named("two-weights", ("down_proj",)).make(tiny_llama, {}, None)
    assert made == QuantizeLinear(Grid(2, symmetric=True), skip=("lm_head", "down_proj"))
    with pytest.raises(InputError, match="two-bits does not take linear maps to skip"):
        scheme_named("two-bits", ("down_proj",))
    with pytest.raises(InputError, match="did you mean 'two-bits'"):
        scheme_named("two-bit")


def test_a_scheme_is_imported_from_a_module_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama: LlamaForCausalLM
) -> None:
    (tmp_path / "toy_of_mine.py").write_text(
        "from sinkscope.quantization import Grid, QuantizeLinear\n"
        "def three(model, calibration, protect):\n"
        '    """Three bits."""\n'
        "    return QuantizeLinear(Grid(3), Grid(3), protect=protect)\n"
    )
    monkeypatch.chdir(tmp_path)
    try:
        found = scheme_named("toy_of_mine:three")
    finally:
        sys.modules.pop("toy_of_mine", None)
    assert (found.name, found.says) == ("three", "Three bits")
    assert found.make(tiny_llama, {}, First(1)) == QuantizeLinear(Grid(3), Grid(3), protect=First(1))


def test_what_is_no_scheme_is_refused() -> None:
    @dataclass(frozen=True)
    class Bare(Intervention):
        def attach(self, model: nn.Module, stack: ExitStack) -> None:
            pass

        def control(self, generator: torch.Generator, model: nn.Module, inputs: Any) -> Intervention:
            return self

    def make(model: nn.Module, calibration: Any, protect: Any) -> Intervention:
        return QuantizeLinear(Grid(2))

    with forgetting():
        for thing, says in ((3, "decorates a function"), (Bare, "with a field 'protect'"), (nn.Linear, "a subclass")):
            with pytest.raises(InputError, match=says):
                ss.scheme(thing)
        for name, says in (("w8a8-token", "own grammar"), ("kv5-token", "own grammar"), ("", "needs a name")):
            with pytest.raises(InputError, match=says):
                ss.scheme(name)(make)
        with pytest.raises(InputError, match="unexpected keyword argument 'fit'"):
            ss.scheme("mine", fit=True)(make)
        ss.scheme("mine")(make)
        with pytest.raises(InputError, match="is registered already"):
            ss.scheme("mine")(lambda model, calibration, protect: QuantizeLinear(Grid(3)))
        assert ss.scheme(make) is make  # as an entry point names it again
        assert "make" not in SCHEMES


def test_groups_and_asymmetric_ranges_have_names(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (3, 24))
    assert made(tiny_llama, "w4-g8-asym", ids).weights == Grid(4, group=8)
    assert made(tiny_llama, "w4-g8", ids).weights == Grid(4, group=8, symmetric=True)
    grouped = made(tiny_llama, "w3-gptq-g8", ids)
    assert isinstance(grouped.rounding, GPTQ)
    assert grouped.weights == Grid(3, group=8, symmetric=True)
    assert "8 inputs of an output, asymmetric" in scheme_named("w4-g8-asym").says
    with pytest.raises(InputError, match="groups are asymmetric and its own"):
        scheme_named("w3-slim-g8")
    with pytest.raises(InputError, match="groups of 7 do not divide"):
        scheme_trial(tiny_llama, ids, "w4-g7", {})
