"""The second collector: attention maps that a model returns, for families outside transformers' attention interface.

BLOOM, MPT, Falcon, GPT-J, DeBERTa and others compute attention in their own code. Under eager attention they return all
maps on request: O(layers · T²) memory, until the pass ends. Observers that need only weights read these; the others
also get queries, keys and values if these reproduce the map (`own`). The caller's output is unchanged: maps that the
caller did not request are removed again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import (
    Computed,
    Forward,
    Layer,
    Passes,
    axes,
    block_lists,
    family,
    following,
    following_softmaxes,
    no_attention,
    own_stack,
    unmasked,
)
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.masks import DenseMask
from sinkscope.measurement.calls.own import OwnCalls
from sinkscope.measurement.calls.reading import Refusal, on_device_of, real_tokens
from sinkscope.measurement.observers.observer import Observer

ENDING = "attentions"  # ending of the names under which maps are returned
STACKS = {"encoder_attentions": "encoder", "decoder_attentions": "decoder", "cross_attentions": "cross"}
ROWS = 64  # rows of a softmax's weights by which its map is recognized
ROUNDING = 1e-4  # largest deviation of a row's sum from one, besides the rounding of its dtype


@dataclass(frozen=True)
class Request:
    """The output that the caller requested: with attention maps or not, a tuple or a model output.

    `encoded`: the encoder ran earlier, so its maps do not belong to this pass.
    """

    maps: bool
    as_tuple: bool
    encoded: bool = False


@dataclass(frozen=True, eq=False)
class _Stack:
    """The maps of one stack, and which of its queries and keys are real tokens (None: all)."""

    name: str
    maps: list[Any]
    masks: list[DenseMask]
    start: int
    real: Bool[Tensor, "batch query"] | None
    real_keys: Bool[Tensor, "batch key"] | None

    def sees_future(self, mask: DenseMask) -> bool:
        """Whether a real query sees a later key."""
        later = mask.mask.triu(self.start + 1)
        return bool((later if self.real is None else later & self.real[:, None, :, None]).any())


@dataclass(frozen=True, eq=False)
class _Softmax:
    """One softmax: a few rows of its weights, and which keys no mask had hidden from its scores."""

    size: int
    rows: Float[Tensor, "row key"]
    visible: Bool[Tensor, "_ query key"]


class Softmaxes:
    """The keys visible to each softmax of a pass, looked up by the map that it made.

    A weight of 0 does not mean hidden: exp also gives 0 for a score 104 below the largest (17 below in float16).
    """

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: the model's, in which masks are made."""
        self._dtype = dtype
        self._taken: list[_Softmax] = []
        self._masks: list[DenseMask] = []

    def clear(self) -> None:
        """Forget the last pass."""
        self._taken.clear()
        self._masks.clear()

    def take(self, scores: Float[Tensor, "*rows key"], weights: Float[Tensor, "*rows key"]) -> None:
        """Keep the visible keys of a softmax over the last axis of (…, query, key)."""
        if scores.ndim < 3 or not scores.numel():
            return
        visible = unmasked(scores, self._dtype).reshape(-1, *scores.shape[-2:])
        # Layers share masks, so equal ones are kept once. Rows of weights are copied: a view would keep the whole map.
        same = (taken.visible for taken in self._taken if torch.equal(taken.visible, visible))
        self._taken.append(_Softmax(weights.numel(), _some_rows(weights).clone(), next(same, visible)))

    def mask(self, weights: Float[Tensor, "batch heads query key"]) -> DenseMask:
        """The mask of a map; layers share masks.

        If no softmax made the map, a query sees the keys that it gives weight to in some head.
        """
        visible = next((taken.visible for taken in self._taken if _made(taken, weights)), None)
        if visible is None:
            visible = (weights.detach() > 0).any(1, keepdim=True)
        else:
            visible = visible.view(weights.shape)
            if bool((visible == visible[:, :1]).all()):
                visible = visible[:, :1]
        known = next((mask for mask in self._masks if torch.equal(mask.mask, visible)), None)
        if known is None:
            self._masks.append(known := DenseMask(visible))
        return known


class Collector:
    """Requests a model's attention maps, reads them, and restores the output that the caller requested."""

    def __init__(self, model: nn.Module) -> None:
        """Raises `UnsupportedModelError` for a model that has no maps to give, or none under its implementation."""
        parameters = inspect.signature(model.forward).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        self.family = family(model)
        takes = "output_attentions" in parameters or inspect.Parameter.VAR_KEYWORD in kinds
        if not isinstance(model, PreTrainedModel) or not takes:
            raise no_attention(model)
        if (name := model.config._attn_implementation) not in (None, "eager"):
            raise UnsupportedModelError(
                f"family '{self.family}' has attention of its own, which is read from the maps that it returns, and it "
                f"returns none under attn_implementation='{name}': load it with attn_implementation='eager'"
            )
        self._names, self._config = list(parameters), model.config
        self._encoder_decoder = bool(model.config.is_encoder_decoder)
        self._stack = own_stack(model)
        self.softmaxes = Softmaxes(model.dtype)
        self._paths = {stack: list(blocks) for stack, blocks in block_lists(model).items()}

    def ask(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Request]:
        """The arguments of a forward pass, all by name, that make the model return its maps; and the caller's
        request.
        """
        arguments = dict(zip(self._names, args, strict=False)) | dict(kwargs)
        self.softmaxes.clear()
        maps, named = arguments.get("output_attentions"), arguments.get("return_dict")
        request = Request(
            maps=bool(self._config.output_attentions if maps is None else maps),
            as_tuple=not (self._config.return_dict if named is None else named),
            encoded=arguments.get("encoder_outputs") is not None,
        )
        return arguments | {"output_attentions": True} | ({"return_dict": True} if request.as_tuple else {}), request

    def answer(self, output: Any, request: Request) -> Any:
        """The model's output as the caller wants it."""
        if not isinstance(output, ModelOutput):
            return output
        if not request.maps:
            output = type(output)(**{name: value for name, value in output.items() if not name.endswith(ENDING)})
        return output.to_tuple() if request.as_tuple else output

    def calls(self, output: Any, forward: Forward, encoded: bool = False) -> Iterator[AttentionCall]:
        """The maps of a forward pass, layer by layer, each as a call with weights instead of queries and keys.

        Raises `UnsupportedModelError`, naming the first layer, for maps whose rows are not weights that sum to one.
        """
        entries = output.items() if isinstance(output, Mapping) else ()
        returned = {name: list(maps) for name, maps in entries if name.endswith(ENDING) and maps}
        if encoded:
            returned.pop("encoder_attentions", None)
        if not returned:
            raise self._refusal("attention")(
                "it has no attention that can be observed, and returns no attention maps: nothing to measure"
            )
        for name, maps in returned.items():
            if name != ENDING and name not in STACKS:
                raise self._refusal(name)("its attention is more than one map of weights per layer")
            stack = self._read(STACKS.get(name, self._stack), name, maps, forward)
            for index, weights in enumerate(maps):
                yield self._call(weights, stack, index)

    def _read(self, name: str, key: str, maps: list[Any], forward: Forward) -> _Stack:
        """The maps of a stack, checked to be of its tokens."""
        refuse, sides = self._refusal(key), axes(name, self._encoder_decoder)
        start = forward.start(sides[0])
        for weights in maps:
            if not isinstance(weights, Tensor) or weights.ndim != 4 or len(weights) != forward.batch:
                raise refuse("returns something else than maps (sample, head, query, key) of its samples")
        sizes = {(weights.shape[2], weights.shape[3]) for weights in maps}
        queries, keys = sizes.pop()
        tokens = forward.ids.shape[1] if forward.ids is not None and sides[0] == "tokens" else queries
        # One shape was taken out, so anything left in `sizes` means maps of different shapes.
        if sizes or queries != tokens or (name != "cross" and keys != start + queries):
            raise refuse("returns maps of windows, of pooled or of added tokens, whose positions they do not tell")
        spans = slice(start, start + queries), slice(0, keys)
        masks = [self.softmaxes.mask(weights) for weights in maps]
        real, real_keys = (
            _seen(masks)[:, span]
            if axis in forward.elsewhere and axis == sides[1]
            else on_device_of(maps[0], real_tokens(forward, axis, span, refuse))
            for axis, span in zip(sides, spans, strict=True)
        )
        stack = _Stack(name, maps, masks, start, real, real_keys)
        # Maps named after a decoder in which queries see later keys are those of an encoder.
        looks_ahead = name == "decoder" and not self._encoder_decoder and any(map(stack.sees_future, masks))
        return replace(stack, name="encoder") if looks_ahead else stack

    def _call(self, weights: Tensor, stack: _Stack, index: int) -> AttentionCall:
        paths = self._paths.get(stack.name, [])
        layer = Layer(paths[index] if len(paths) == len(stack.maps) else f"{stack.name}.{index}", index, stack.name)
        self._check(weights, stack, layer)
        weights = weights.detach().float()
        if stack.real is not None:
            # A query of padding that sees nothing has equal weights under an additive mask.
            weights = weights.masked_fill(~stack.real[:, None, :, None], 0.0)
        keys, first_own = weights.shape[3], 0 if stack.name == "cross" else stack.start
        return AttentionCall(
            layer=layer,
            query=weights.new_empty(*weights.shape[:3], 0),
            key=weights.new_empty(*weights.shape[:2], keys, 0),
            value=weights.new_empty(*weights.shape[:2], keys, 0),
            mask=stack.masks[index],
            scaling=1.0,
            causal=stack.name != "cross" and not stack.sees_future(stack.masks[index]),
            query_start=stack.start,
            key_start=0,
            own_keys=slice(first_own, keys),
            real=stack.real,
            real_keys=stack.real_keys,
            collected=weights,
        )

    def _check(self, weights: Tensor, stack: _Stack, layer: Layer) -> None:
        """Check that finite rows of real tokens are probabilities; rows that are not finite are reported with the
        measurement.
        """
        rows = weights.sum(-1, dtype=torch.float32)
        counted = torch.isfinite(rows)
        if stack.real is not None:
            counted &= stack.real[:, None, :]
        allowed = ROUNDING + 2 * torch.finfo(weights.dtype).eps
        wrong = ((rows - 1).abs() > allowed) | (weights.amin(-1) < 0)
        if bool((wrong & counted).any()):
            raise self._refusal(layer.name)(
                "the map that it returns is no attention: rows do not sum to one (dropout does that too: model.eval())"
            )

    def _refusal(self, layer: str) -> Refusal:
        return Refusal(self.family, layer)


def _seen(masks: list[DenseMask]) -> Bool[Tensor, "batch key"]:
    """Keys that some query of some layer sees: the real ones, if the inputs leave it open."""
    return torch.stack([mask.mask.any(2).any(1) for mask in masks]).any(0)


def _some_rows(weights: Float[Tensor, "*rows key"]) -> Float[Tensor, "row key"]:
    rows = weights.reshape(-1, weights.shape[-1])
    return rows[:: max(1, len(rows) // ROWS)]


def _made(taken: _Softmax, weights: Float[Tensor, "batch heads query key"]) -> bool:
    """Whether a softmax made this map, ignoring rows set to 0 (padding) and its dtype."""
    if taken.size != weights.numel() or taken.visible.shape[-2:] != weights.shape[-2:]:
        return False
    rows = _some_rows(weights.detach())
    same = (taken.rows.to(rows.dtype) == rows) | ~torch.isfinite(rows)
    return bool((same.all(-1) | (rows == 0).all(-1)).all())


ALONE = "the family has attention of its own, of which weights are all that can be read"


class ReturnedMaps:
    """Requests a model's maps in every pass, and restores the output that the caller requested.

    Raises `UnsupportedModelError` for a model that has no maps to give, or none under its implementation.
    """

    def __init__(self, model: nn.Module) -> None:
        self._collector, self._calls = Collector(model), OwnCalls(model)
        self._request = Request(maps=False, as_tuple=False)
        self._unread: dict[str, str] = {}  # reason → the first layer

    def follow(self, model: nn.Module, passes: Passes, stack: ExitStack, vectors: bool) -> None:
        """Read masks from the scores of softmaxes until `stack` closes; with `vectors`, keep products as well."""
        following_softmaxes(model, self._collector.softmaxes.take, stack)
        if not vectors:
            return

        def attended(module: nn.Module, computed: Computed | str) -> None:
            if passes.under_way is not None:
                self._calls.take(module, computed)

        stack.enter_context(following(model, attended))

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, all by name, that make the model return its maps."""
        self._calls.begin()
        asked, self._request = self._collector.ask(args, kwargs)
        return asked

    def calls(
        self, output: Any, forward: Forward, vectors: bool
    ) -> Iterator[tuple[AttentionCall, AttentionCall | None]]:
        """Each layer's map; with `vectors`, also a call with queries, keys and values if known."""
        for returned in self._collector.calls(output, forward, self._request.encoded):
            known = self._calls.call(returned) if vectors else None
            if isinstance(known, str):
                self._unread.setdefault(known, returned.layer.name)
                known = None
            yield returned, known

    def answer(self, output: Any) -> Any:
        """The model's output as the caller wants it."""
        return self._collector.answer(output, self._request)

    def not_measured(self, blind: Iterable[Observer]) -> dict[str, str]:
        """Why the `blind` observers, which need more than maps, have no numbers or not for every layer."""
        if not self._unread:
            return {}
        reasons = "; ".join(f"layer '{layer}': {reason}" for reason, layer in self._unread.items())
        return {type(observer).__name__: f"{ALONE}: {reasons}" for observer in blind}
