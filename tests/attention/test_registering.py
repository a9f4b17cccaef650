"""Operations from outside the package: pieces in open unions, lines in the catalog, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar, Literal

import pytest
import torch
from torch import nn

import sinkscope as ss
from sinkscope.attention import (
    CATALOG,
    ENTRIES,
    AttentionSpec,
    Causal,
    Document,
    FirstKeyLogit,
    KeySlot,
    MaskPiece,
    NormalizerPiece,
    OutputPiece,
    Sigmoid,
    SimilarityPiece,
    Sizes,
    SlotPiece,
    SlotTerms,
    Softmax,
    ZeroSlot,
    attend,
    explain,
    name_of,
    named,
    resolve,
    sections,
)
from sinkscope.attention.pieces import PLACES
from tests.registering import forgetting


@pytest.fixture(autouse=True)
def only_here() -> Iterator[None]:
    with forgetting():
        yield


@pytest.fixture
def powered() -> type:
    @ss.operation
    class Powered(NormalizerPiece):
        """w_j = |s_j|^power / (Σ_visible |s_i|^power + 1e-8)."""

        power: float = 2.0
        kind: Literal["powered"] = "powered"
        needs_every_key: ClassVar[bool] = False

        def weights(self, scores, visible, count):
            powers = scores.abs().pow(self.power).masked_fill(~visible, 0.0)
            return powers / (powers.sum(-1, keepdim=True) + 1e-8)

    return Powered


class _Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.relu(), (-x).relu()], -1)


class _Half(nn.Module):
    def forward(self, context: object) -> SlotTerms:
        return SlotTerms(logit=torch.zeros(4) + 0.5)


class _Negated(nn.Module):
    def forward(self, output: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
        return -output


def pieces() -> dict[str, object]:
    """One registered piece of each place."""

    @ss.operation
    class Signs(SimilarityPiece):
        """φ(x) = [relu(x), relu(−x)]."""

        kind: Literal["signs"] = "signs"

        def build(self, sizes: Sizes) -> nn.Module:
            return _Doubled()

    @ss.operation
    class HalfSlot(SlotPiece):
        """A constant logit of a half."""

        kind: Literal["half"] = "half"

        def build(self, sizes: Sizes) -> nn.Module:
            return _Half()

    @ss.operation
    class Negated(OutputPiece):
        """y = −A V."""

        kind: Literal["negated"] = "negated"
        as_wide_as_heads: ClassVar[bool] = False

        def build(self, sizes: Sizes) -> nn.Module:
            return _Negated()

    @ss.operation
    class Even(MaskPiece):
        """Keys at even places, and a query's own."""

        kind: Literal["even"] = "even"

        def visible(self, query, key):
            own = key.order[:, None, :] == query.order[:, :, None]
            return (key.order[:, None, :] % 2 == 0) | own

    return {"similarity": Signs(), "slots": (HalfSlot(),), "output": (Negated(),), "mask": Causal() & Even()}


def qkv(tokens: int = 37) -> tuple[torch.Tensor, ...]:
    shapes = ((2, 4, tokens, 8), (2, 2, tokens, 8), (2, 2, tokens, 8))
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


def test_a_piece_is_a_value_like_its_kin(powered: type) -> None:
    spec = AttentionSpec(normalizer=powered(power=3.0), slots=(KeySlot(value="learned"),))
    assert spec == AttentionSpec(normalizer=powered(3.0), slots=(KeySlot(value="learned"),))
    assert hash(spec) != hash(AttentionSpec(normalizer=powered(2.0)))
    with pytest.raises(ss.InputError, match="unknown powered field 'pwer': did you mean 'power'"):
        powered(pwer=1.0)
    with pytest.raises(ss.InputError, match="field 'power' = 'x'"):
        powered(power="x")


def test_every_place_is_open_and_round_trips_through_json(powered: type) -> None:
    every = pieces()
    similar = AttentionSpec(similarity=every.pop("similarity"))
    assert AttentionSpec.from_dict(json.loads(json.dumps(similar.to_dict()))) == similar
    spec = AttentionSpec(normalizer=powered(3.0), **every)
    plain = json.loads(json.dumps(spec.to_dict()))
    assert plain["normalizer"] == {"power": 3.0, "kind": "powered", "registered_by": __name__.partition(".")[0]}
    assert plain["slots"] == [{"kind": "half", "registered_by": __name__.partition(".")[0]}]
    assert AttentionSpec.from_dict(plain) == spec
    assert "registered_by" not in json.dumps(CATALOG["kv_bias"].to_dict())


@pytest.mark.parametrize("place", ["similarity", "slots", "output", "mask", "normalizer"])
def test_paths_agree_in_values_and_gradients(place: str, powered: type) -> None:
    known = {**pieces(), "normalizer": powered()}
    spec = AttentionSpec(**{place: known[place]})
    q, k, v = qkv()
    found = []
    for path in ("reference", "fast", "auto"):
        output = attend(q, k, v, spec, path=path).output
        found.append((output, *torch.autograd.grad(output.square().sum(), (q, k, v))))
    for other in found[1:]:
        for ours, wanted in zip(other, found[0], strict=True):
            torch.testing.assert_close(ours, wanted, atol=2e-4, rtol=1e-4)
    assert explain(spec, q).path in ("fast", "reference")


def test_a_map_of_features_is_not_left_out_by_a_kernel() -> None:
    spec = AttentionSpec(similarity=pieces()["similarity"])
    q, k, v = qkv()
    wanted = torch.softmax(
        (_Doubled()(q) @ _Doubled()(k).repeat_interleave(2, 1).mT / 8**0.5).masked_fill(
            ~torch.ones(37, 37, dtype=torch.bool).tril(), -torch.inf
        ),
        -1,
    )
    torch.testing.assert_close(attend(q, k, v, spec).output, wanted @ v.repeat_interleave(2, 1), atol=1e-5, rtol=1e-4)
    with pytest.raises(ss.InputError, match="'signs' maps queries and keys"):
        attend(q, k, v, spec, path="sdpa")


def test_an_unknown_kind_names_the_package_that_registers_it(powered: type) -> None:
    plain = AttentionSpec(normalizer=powered()).to_dict()
    plain["normalizer"]["registered_by"] = "sinkscope_absent"
    PLACES["normalizer"].kinds.added.clear()
    with pytest.raises(
        ss.InputError, match=r"the normalizer 'powered' .* by the package 'sinkscope_absent', which was not"
    ):
        AttentionSpec.from_dict(plain)


def test_a_misspelled_kind_is_told_the_nearest_one(powered: type) -> None:
    with pytest.raises(ss.InputError, match="unknown kind of normalizer 'powred': did you mean 'powered'"):
        AttentionSpec.from_dict({"normalizer": {"kind": "powred"}})


def test_a_class_that_was_not_registered_is_refused() -> None:
    class Mine(NormalizerPiece):
        kind: Literal["mine"] = "mine"

    with pytest.raises(ss.InputError, match=r"Mine is not registered: decorate it with @sinkscope\.operation"):
        AttentionSpec(normalizer=Mine())


def test_a_piece_that_derives_from_ones_own_has_fields_of_its_own(powered: type) -> None:
    class Shifted(powered):
        """Powers of s + shift."""

        shift: float = 0.5
        kind: Literal["shifted"] = "shifted"

    made = ss.operation(Shifted)
    assert AttentionSpec(normalizer=made(shift=0.25)).normalizer.shift == 0.25
    assert ss.operation(made) is made
    with pytest.raises(ss.InputError, match="shift"):
        made(shift="much")


def test_what_would_be_taken_for_another_piece_is_refused() -> None:
    """A subclass of `Sigmoid` or `Softmax` would be computed by kernels that know these."""

    class Louder(Sigmoid):
        kind: Literal["louder"] = "louder"

    class Wider(Causal):
        kind: Literal["wider"] = "wider"

    for kind, own in ((Louder, "Sigmoid"), (Wider, "Causal")):
        with pytest.raises(ss.InputError, match=f"derives from sinkscope's {own}, and paths that are exact for that"):
            ss.operation(kind)

    class Nameless(NormalizerPiece):
        pass

    class Taken(NormalizerPiece):
        kind: Literal["softmax"] = "softmax"

    with pytest.raises(ss.InputError, match="Nameless: needs a kind"):
        ss.operation(Nameless)
    with pytest.raises(ss.InputError, match="normalizer 'softmax' is one of sinkscope's own"):
        ss.operation(Taken)
    with pytest.raises(ss.InputError, match=r"derives from one of .*NormalizerPiece"):
        ss.operation(dict)


def test_meaningless_with_a_registered_map(powered: type) -> None:
    known = pieces()
    signs = known["similarity"]
    with pytest.raises(ss.InputError, match="key slots need the dot product"):
        AttentionSpec(similarity=signs, slots=(KeySlot(),))
    with pytest.raises(ss.InputError, match="what 'signs' would make of it is not known"):
        AttentionSpec(similarity=signs, slots=known["slots"])
    with pytest.raises(ss.InputError, match="a further channel of the dot product, which 'signs' would map"):
        AttentionSpec(similarity=signs, first_key=FirstKeyLogit())
    assert AttentionSpec(similarity=signs, slots=(ZeroSlot(),)).slots


def test_caches_refuse_what_does_not_say_that_it_may_lose_keys(powered: type) -> None:
    assert AttentionSpec(normalizer=powered()).needs_every_key is None
    assert AttentionSpec(output=pieces()["output"]).needs_every_key == "negated"
    assert AttentionSpec(mask=pieces()["mask"]).needs_every_key == "even"
    assert AttentionSpec(mask=Causal() & Document()).needs_every_key is None


def test_a_line_of_the_catalog(powered: type) -> None:
    @ss.operation(formula="A = |s|^p / Σ |s|^p", rows="tokens sum to 1", source="ours")
    def my_powers(power=2.0):
        return AttentionSpec(normalizer=powered(power=power))

    assert CATALOG["my_powers"] == resolve("my_powers") == AttentionSpec(normalizer=powered())
    assert resolve({"name": "my_powers", "power": 3.0}) == AttentionSpec(normalizer=powered(3.0))
    assert name_of(AttentionSpec(normalizer=powered(3.0))) == "my_powers(power=3.0)"
    written = named(AttentionSpec(normalizer=powered(3.0)))
    assert written == {"name": "my_powers", "power": 3.0, "registered_by": __name__.partition(".")[0]}
    assert resolve(written) == AttentionSpec(normalizer=powered(3.0))
    assert named(AttentionSpec(normalizer=Softmax())) == {"name": "softmax"}
    assert sections()[-1].title == "From other packages"
    with pytest.raises(ss.InputError, match="unknown option of 'my_powers' 'pwer'"):
        resolve({"name": "my_powers", "pwer": 1})
    ENTRIES.added.clear()
    with pytest.raises(ss.InputError, match="the attention operation 'my_powers' is registered by the package"):
        resolve(written)


def test_what_makes_no_line_is_refused() -> None:
    def sigmoid():
        return AttentionSpec()

    def nothing():
        return 3

    def mine():
        return AttentionSpec()

    with pytest.raises(ss.InputError, match="attention operation 'sigmoid' is one of sinkscope's own"):
        ss.operation(sigmoid)
    with pytest.raises(ss.InputError, match="'nothing': its function makes 3"):
        ss.operation(nothing)
    with pytest.raises(ss.InputError, match=r"'mine'.*unexpected keyword argument 'formla'"):
        ss.operation(formla="x")(mine)  # type: ignore[call-overload]
