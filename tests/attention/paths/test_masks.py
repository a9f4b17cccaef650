"""Softmax under a mask: in blocks of queries, equal to the reference, and in memory that grows with T, not with T²."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import sinkscope.attention as zoo
from sinkscope.attention.paths import flash, sdpa

from ..problems import HEADS, assert_close, build

CAUSAL = zoo.Causal()
MASKS: dict[str, zoo.Mask] = {
    "causal": CAUSAL,
    "window of one": CAUSAL & zoo.Window(1),
    "window": CAUSAL & zoo.Window(13),
    "window beyond a block": CAUSAL & zoo.Window(50),
    "window to both sides": zoo.Window(11),
    "document": CAUSAL & zoo.Document(),
    "documents without order": zoo.Document(),
    "prefix": CAUSAL | zoo.VisiblePrefix(5),
    "window beside first tokens": CAUSAL & (zoo.Window(7) | zoo.VisiblePrefix(4)),
    "prefix of a document": (CAUSAL | zoo.VisiblePrefix(3)) & zoo.Document(),
    "without": CAUSAL & zoo.Without((0, 5)),
    "full": zoo.Full(),
}
SPECS = ("softmax", "sink_logit", "kv_bias", "softmax_off_by_one", "differential")
PADDING: dict[str, tuple[slice, ...] | None] = {
    "none": None,
    "left": (slice(0, 38), slice(0, 5), slice(0, 0)),
    "right": (slice(0, 0), slice(41, None), slice(74, None)),
}
KEYS = 77  # three blocks of 32, the last an odd one


def padded(name: str) -> Tensor | None:
    """What counts in each of three rows."""
    if (parts := PADDING[name]) is None:
        return None
    real = torch.ones(3, KEYS, dtype=torch.long)
    for row, part in zip(real, parts, strict=True):
        row[part] = 0
    return real


def bound(mask: str, padding: str = "none", queries: int = KEYS) -> zoo.Visibility:
    places, random = torch.arange(KEYS), torch.Generator().manual_seed(3)
    numbers = torch.stack([torch.bucketize(places, torch.tensor(row)) for row in ([7, 41], [32, 64], [1, 74])])
    if "without order" in mask:
        numbers = torch.randint(0, 5, (3, KEYS), generator=random)
        numbers[0] = 7 - numbers[0].sort().values  # numbers that fall, each document in one piece
    return zoo.Visibility.of(MASKS[mask], queries, KEYS, attention_mask=padded(padding), documents=numbers)


def both_ways(name: str, visibility: zoo.Visibility, kv_heads: int, path: str) -> list[Tensor]:
    """The output, and the gradients of everything; float64, so that nothing but a wrong formula shows."""
    torch.manual_seed(0)
    operation = build(zoo.CATALOG[name], kv_heads).double()
    for parameter in operation.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    queries = visibility.query.count
    keys = visibility.key.count
    shapes = ((HEADS, queries), (kv_heads, keys), (kv_heads, keys))
    given = [torch.randn(3, heads, n, 8, dtype=torch.float64, requires_grad=True) for heads, n in shapes]
    output = operation(*given, visibility, path=path).output
    return [output, *torch.autograd.grad(output, [*given, *operation.parameters()], torch.randn_like(output))]


HEADS_AND_QUERIES = ((4, KEYS), (2, 41), (2, 5))
CASES = [
    (name, mask, padding, heads_and_queries)
    for name in SPECS
    for mask in MASKS
    for (i, padding), (j, heads_and_queries) in product(enumerate(PADDING), enumerate(HEADS_AND_QUERIES))
    if name == "softmax" or i == j
]
"""Everything crosses under softmax. What the others add, further columns and differences, knows only the mask."""


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("name", "mask", "padding", "heads_and_queries"), CASES, ids=str)
def test_blocks_equal_the_reference(name, mask, padding, heads_and_queries):
    kv_heads, queries = heads_and_queries
    visibility = bound(mask, padding, queries)
    found, expected = (both_ways(name, visibility, kv_heads, path) for path in ("sdpa", "reference"))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_blocks_of_the_size_in_use_equal_the_reference(name, monkeypatch):
    """On the flash kernel, and without it."""
    keys = 2 * flash.ROWS + 45
    places, real = torch.arange(keys), torch.ones(3, keys, dtype=torch.long)
    real[0, : flash.ROWS + 24] = 0
    documents = torch.stack([places // 150, places // 301, places // 401])
    mask = CAUSAL & (zoo.Window(300) | zoo.VisiblePrefix(4)) & zoo.Document()
    visibility = zoo.Visibility.of(mask, keys, keys, attention_mask=real, documents=documents)
    found = [both_ways(name, visibility, 2, "sdpa")]
    monkeypatch.setattr(flash, "DEVICES", ())
    found.append(both_ways(name, visibility, 2, "sdpa"))
    for one, other, expected in zip(*found, both_ways(name, visibility, 2, "reference"), strict=True):
        assert_close(one, expected, 1e-9)
        assert_close(other, expected, 1e-9)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask", ["window", "document", "prefix"])
@pytest.mark.parametrize("name", ["softmax", "sink_logit", "kv_bias", "differential"])
def test_blocks_where_there_is_no_flash_kernel(name, mask, monkeypatch):
    """What other devices take: SDPA in blocks, slots as further keys, recomputed in the backward pass."""
    visibility = bound(mask, "left")
    expected = both_ways(name, visibility, 2, "reference")
    monkeypatch.setattr(flash, "DEVICES", ())
    monkeypatch.setattr(sdpa, "flash", flash)
    for one, other in zip(both_ways(name, visibility, 2, "sdpa"), expected, strict=True):
        assert_close(one, other, 1e-9)


def test_samples_of_different_documents_go_one_by_one():
    """Or else the blocks of all would reach as far as the longest document of any."""
    places = torch.arange(1024)
    apart = torch.stack([places // 128, (places > 900).long()])
    alike = torch.stack([places // 128, places // 128])
    parts, reached = [], []
    for numbers in (apart, alike):
        visibility = zoo.Visibility.of(CAUSAL & zoo.Document(), 1024, 1024, documents=numbers)
        blocks = list(flash._Map(visibility, 1.0).blocks(2))
        parts.append([samples for samples, _ in blocks])
        reached.append([block.keys.stop - block.keys.start for _, block in blocks])
    assert parts == [[slice(0, 1)] * 4 + [slice(1, 2)] * 4, [slice(0, 2)] * 4]
    assert reached == [[256] * 4 + [256, 512, 768, 1024], [256] * 4]


class Largest(TorchDispatchMode):
    """Elements of the largest memory behind any operator's result."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, operator: Any, types: Sequence[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, Tensor):  # its memory, of which an expanded view shows more than there is
                self.elements = max(self.elements, part.untyped_storage().nbytes() // part.element_size())
        return result


def largest(run: Callable[[], Tensor]) -> int:
    with Largest() as mode:
        run().sum().backward()
    return mode.elements


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("softmax", CAUSAL & zoo.Window(64)),
        ("sink_logit", CAUSAL & zoo.Window(64)),
        ("softmax", CAUSAL & zoo.Document()),
        ("softmax", CAUSAL | zoo.VisiblePrefix(9)),
        ("kv_bias", CAUSAL & zoo.Document()),
        ("differential", CAUSAL),
        ("differential", CAUSAL & zoo.Window(64)),
    ],
)
def test_no_tensor_grows_with_the_square_of_the_context(name, mask, fits, monkeypatch):
    if not fits:
        monkeypatch.setattr(flash, "DEVICES", ())
    operation = build(zoo.CATALOG[name])
    sizes = []
    for tokens in (128, 512):
        query, key = (torch.randn(1, heads, tokens, 8, requires_grad=True) for heads in (HEADS, 2))
        documents = torch.arange(tokens)[None] // 25
        visibility = zoo.Visibility.of(mask, tokens, tokens, documents=documents)
        sizes.append(largest(lambda q=query, k=key, seen=visibility: operation(q, k, k, seen, path="sdpa").output))
    assert sizes[1] <= 4.2 * sizes[0]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("padding", ["none", "left"])
def test_spans_hold_all_that_is_visible(mask, padding):
    """Per query, and closely where a mask is made of windows and documents in one piece."""
    for queries in (KEYS, 40):
        visibility = bound(mask, padding, queries)
        dense = visibility.dense()[:, 0]
        if (spans := visibility.spans) is None:
            assert mask == "full"
            continue
        columns = torch.arange(KEYS)
        inside = (columns >= spans[0][..., None]) & (columns < spans[1][..., None])
        assert not (dense & ~inside).any()
        if mask in ("window of one", "window", "window to both sides") and padding == "none":
            assert torch.equal(inside.expand_as(dense), dense)
        if mask == "document" and padding == "none":
            assert torch.equal(inside & (columns <= visibility.query.order[..., None]), dense)


def test_order_that_does_not_rise_has_no_spans():
    """A binary search in it would lose keys."""
    shuffled = zoo.TokenAxis(torch.randperm(KEYS, generator=torch.Generator().manual_seed(0))[None])
    assert zoo.Visibility(CAUSAL & zoo.Window(9), shuffled, zoo.TokenAxis.plain(KEYS)).spans is not None
    assert zoo.Visibility(CAUSAL & zoo.Window(9), zoo.TokenAxis.plain(KEYS), shuffled).spans is None


def test_explain_names_what_computes_a_mask(monkeypatch):
    """And how much memory that takes."""
    told = zoo.explain("softmax", "cpu", mask=CAUSAL & zoo.Window(256))
    ran = []
    kernel = flash.attention
    monkeypatch.setattr(flash, "attention", lambda *given: ran.append(1) or kernel(*given))
    query = torch.randn(1, 2, 300, 8)
    for mask, blocks in ((CAUSAL, 0), (CAUSAL & zoo.Window(256), 1), (zoo.Full(), 0), (zoo.Window(3), 1)):
        ran.clear()
        zoo.attend(query, query, query, "softmax", mask=mask)
        assert [len(ran), "256 queries at a time" in zoo.explain("softmax", query, mask=mask).reason] == [blocks] * 2
    assert (told.kernel, told.memory) == ("sdpa", "O(T)")
    assert "recomputed backward" in zoo.explain("softmax", "cuda", mask=CAUSAL & zoo.Window(256)).reason
    assert zoo.explain("forgetting_gate", query[:, :, :9]).memory == "O(T²)"
    assert "O(T²) memory" in str(zoo.explain("forgetting_gate", query[:, :, :9]))
