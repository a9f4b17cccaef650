"""Every field of every piece, and of the lab's configuration: a value is refused in one line, or means something."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.combination import Combination
from sinkscope.attention.masks import And, Or, Strict
from sinkscope.attention.operation import check_shapes
from sinkscope.errors import InputError
from sinkscope.model import LabConfig, LabForCausalLM

PIECES = [kind for kind in vars(zoo).values() if inspect.isclass(kind) and hasattr(kind, "__pydantic_fields__")]
NEEDED = {"alpha": 0.5, "p": 2.0, "size": 3, "length": 2, "places": (1,), "feature": "elu"}
STRANGE = [-1, 0, 1, 2.5, 10**6, -0.5, 1e30, math.inf, math.nan, "no", "", True, None, [], {}, (), (-1,), [1, 1]]
LINEAR = {"normalizer": zoo.Linear()}


def made(piece: type, /, **changed: object) -> object:
    fields = piece.__pydantic_fields__
    needed = {name: NEEDED[name] for name, field in fields.items() if field.is_required() and name in NEEDED}
    return piece(**{**needed, **changed})


def holder(piece: object) -> zoo.AttentionSpec | None:
    """A specification with this piece."""
    if isinstance(piece, zoo.AttentionSpec):
        return piece
    name = next((name for name, field in Combination.__pydantic_fields__.items() if accepted(name, piece)), None)
    if name is None:
        return None
    several = name in ("slots", "output")
    further = LINEAR if isinstance(piece, zoo.Kernel) else {}
    return zoo.AttentionSpec(**{**further, name: (piece,) if several else piece})


def accepted(name: str, piece: object) -> bool:
    try:
        zoo.AttentionSpec(**{name: (piece,) if name in ("slots", "output") else piece})
    except InputError as error:
        return "field" not in str(error) and "valid" not in str(error)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", PIECES, ids=lambda kind: kind.__name__)
def test_a_strange_value_is_refused_in_one_line_or_works(kind):
    if kind in (And, Or, Combination):
        return
    q, hidden = torch.randn(1, 4, 5, 8), torch.randn(1, 5, 32)
    for field in kind.__pydantic_fields__:
        for value in STRANGE:
            spec, operation, refusal = tried(lambda field=field, value=value: made(kind, **{field: value}))
            assert "\n" not in refusal, (field, value)
            assert len(refusal) < 400
            if spec is None or operation is None or value == 10**6:
                continue
            learned = operation.state_dict() or None
            found = zoo.attend(q, q, q, spec, learned, hidden=hidden, mask=zoo.Causal(), path="reference")
            assert found.output.shape == q.shape, (field, value)
            assert zoo.AttentionSpec.from_dict(spec.to_dict()) == spec


def tried(make: Callable[[], object]) -> tuple[zoo.AttentionSpec | None, zoo.Operation | None, str]:
    """The operation with a piece, or what is said against it."""
    try:
        spec = holder(make())
        return spec, None if spec is None else spec.build(heads=4, kv_heads=4, head_dim=8, hidden_size=32), ""
    except InputError as error:
        return None, None, str(error)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: zoo.Window(0), "window field 'size' = 0: input should be greater than or equal to 1"),
        (lambda: zoo.Window(1, 2, 3), "Window takes 2 values in order, got 3"),
        (lambda: zoo.Window(3, size=4), "Window got 'size' twice"),
        (lambda: zoo.Window(sise=3), "did you mean 'size'"),
        (lambda: zoo.ValueBias(initial_std=-1), "initial_std"),
        (lambda: zoo.HeadGate(reads="nothing", mlp_width=2), "a gate that reads nothing cannot use mlp_width"),
        (lambda: zoo.HeadGate(reads=0), "reads"),
        (lambda: zoo.HeadGate(reads=True), "reads"),
        (lambda: zoo.ClippedSoftmax(gamma=-0.025, alpha=2), "alpha decides gamma"),
        (lambda: zoo.resolve({"name": "clipped_softmax", "gamma": -0.025, "alpha": 2}), "alpha decides gamma"),
        (lambda: zoo.AttentionSpec(normalizer=zoo.Sigmoid(), slots=(zoo.ZeroSlot(),)), "changes nothing under"),
        (lambda: zoo.AttentionSpec(mask=zoo.Window(1) & Strict()), "no query would see anything"),
        (lambda: zoo.CATALOG["kv_bias"].build(heads=4, kv_heads=2, head_dim=8, hidden_size=0), "hidden_size = 0"),
        (lambda: zoo.AttentionSpec.from_dict([1]), "expected a spec's dict"),
        (lambda: zoo.resolve({"name": "gated_head", "reads": 40}).build(**SIZES), "reads 40 channels: the .* has 32"),
    ],
)
def test_refused_where_it_is_written(make, words):
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


SIZES = {"heads": 4, "kv_heads": 2, "head_dim": 8, "hidden_size": 32}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"query": (3, 4, 7, 8)}, "expected the same batch"),
        ({"value": (1, 2, 7, 8)}, "expected the same batch"),
        ({"query": (2, 4, 0, 8)}, "at least one query"),
        ({"query": (2, 4, 0, 8), "key": (2, 2, 0, 8), "value": (2, 2, 0, 8)}, "at least one query"),
    ],
)
def test_tensors_that_do_not_fit_each_other(changed, words):
    """Kernels would read memory that is not theirs, or end the process."""
    shapes = {"query": (2, 4, 7, 8), "key": (2, 2, 7, 8), "value": (2, 2, 7, 8)}
    with pytest.raises(InputError, match=words):
        check_shapes(
            zoo.CATALOG["softmax"],
            zoo.Sizes(**SIZES),
            **{name: torch.zeros(shape) for name, shape in (shapes | changed).items()},
        )


@pytest.mark.parametrize("path", ["auto", "reference"])
@pytest.mark.parametrize(
    "mask",
    [
        zoo.Visibility.of(zoo.Causal() & zoo.Window(3), 5, 5),
        zoo.Visibility.of(zoo.Causal() & zoo.Window(3), 9, 9),
        zoo.Visibility.of(zoo.Causal(), 7, 7, attention_mask=torch.ones(3, 7)),
        torch.ones(3, 1, 7, 7, dtype=torch.bool),
    ],
    ids=["shorter", "longer", "samples", "written"],
)
def test_a_mask_of_other_tokens(mask, path):
    q = torch.zeros(2, 4, 7, 8)
    with pytest.raises(InputError, match="expected 2 x 7 queries"):
        zoo.attend(q, q, q, "softmax", mask=mask, path=path)


@pytest.mark.parametrize("width", [4, 16])
@pytest.mark.parametrize("name", list(zoo.CATALOG))
def test_values_of_another_width_are_attended_to_or_refused(name, width):
    """The whole width on every path, or one line that names the piece."""
    random = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 4, 5, 8, generator=random), torch.randn(1, 2, 5, 8, generator=random)
    v, hidden = torch.randn(1, 2, 5, width, generator=random), torch.randn(1, 5, 32, generator=random)
    spec = zoo.CATALOG[name]
    parameters = spec.build(**SIZES).state_dict() or None
    if spec.as_wide_as_heads:
        with pytest.raises(InputError, match=f"values of width {width} for heads of width 8") as caught:
            zoo.attend(q, k, v, spec, parameters, hidden=hidden)
        assert "\n" not in str(caught.value)
        return
    outputs = [zoo.attend(q, k, v, spec, parameters, hidden=hidden, path=path).output for path in ("reference", "fast")]
    assert outputs[0].shape == (1, 4, 5, width)
    torch.testing.assert_close(outputs[1], outputs[0], atol=1e-5, rtol=1e-5)


TINY = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def configured(**fields: object) -> tuple[LabConfig | None, str]:
    """A configuration, or what is said against it."""
    try:
        return LabConfig(**{**TINY, **fields}), ""
    except InputError as error:
        return None, str(error)


@pytest.mark.slow
@pytest.mark.parametrize("field", [name for name in LabConfig.__annotations__ if name in LabConfig().to_dict()])
def test_a_strange_field_of_the_lab_is_refused_in_one_line_or_works(field):
    for value in STRANGE:
        if value == 10**6:  # a million layers mean something, but not here
            continue
        config, refusal = configured(**{field: value})
        assert "\n" not in refusal, (field, value)
        if config is not None:
            with torch.no_grad():
                logits = LabForCausalLM(config).eval()(torch.zeros(1, 3, dtype=torch.long)).logits
            assert logits.isfinite().all(), (field, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rms_norm_eps", -1),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", math.nan),
        ("restart_positions", "no"),
        ("is_causal", "x"),
        ("use_cache", 3),
        ("tie_word_embeddings", "no"),
        ("sink_tokens", True),
        ("rope_theta", math.inf),
        ("bos_token_id", -5),
        ("eos_token_id", [1, 99]),
        ("pad_token_id", 13),
    ],
)
def test_fields_of_the_lab_that_were_taken(field, value):
    with pytest.raises(InputError, match=f"LabConfig.{field} = "):
        LabConfig(**{**TINY, field: value})
