"""Changes of what attention heads return, computed by their own attention function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, Invocation, OpenStream, family, has_attention, head_count, watching
from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.reweigh.call import Call, check_call

Head = tuple[int, int]
Change = Callable[[Call], Float[Tensor, "batch heads query value_dim"]]


class HeadChange(Intervention):
    """A change of heads whose effect is known for each call, so that heads can be scored by derivatives.

    `heads`: (layer, head), None for all of the changed stack. `controlled_by_heads`: whether the control of some heads
    is the same change in others.
    """

    heads: Sequence[Any] | None
    controlled_by_heads: ClassVar[bool] = False

    @abstractmethod
    def change(self, opened: OpenStream) -> Change:
        """What each head of a call would return under this change, whether it is in `heads` or not."""

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        recast(model, stack, self.heads, self.change)


class CallEditor(Editor):
    """An editor that first watches the calls of its modules: arguments, log-sum-exp, and the function itself."""

    def __init__(self, opened: OpenStream, modules: Collection[nn.Module]) -> None:
        self._opened, self._modules = opened, modules
        self._met: dict[nn.Module, Invocation] = {}
        self._trusted: dict[nn.Module, bool] = {}

    def edits(self, module: nn.Module) -> bool:
        return module in self._modules

    def watches(self, module: nn.Module) -> bool:
        return module in self._modules

    def attended(self, invocation: Invocation) -> None:
        self._met[invocation.module] = invocation

    def take(self, module: nn.Module) -> tuple[Invocation, Call]:
        """The call that was just watched. Raises as `check_call` does."""
        run = self._met.pop(module)
        check_call(module, dict(run.arguments), self._opened)
        self._opened.edited(module)
        return run, Call(self._opened, run, self._trusted)


class Recast(CallEditor):
    """Replaces the output of chosen heads by `change(call)`."""

    def __init__(self, opened: OpenStream, heads: Mapping[nn.Module, Sequence[int]], change: Change) -> None:
        super().__init__(opened, heads)
        self._heads, self._change = heads, change

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        run, call = self.take(module)
        heads = list(self._heads[module])
        # Another editor came first: its tensor is not the one that the function returned.
        if output is not run.output:
            heads = [head for head in heads if not _taken(module, head, output, run.output)]
        changed = self._change(call).to(output.dtype).transpose(1, 2)
        if len(heads) == output.shape[2]:
            return changed
        whole = output.clone()
        whole[:, :, heads] = changed[:, :, heads]
        return whole


def recast(
    model: nn.Module, stack: ExitStack, heads: Sequence[Head] | None, change: Callable[[OpenStream], Change]
) -> None:
    """Let `change(opened)` compute the output of these heads; None for all heads.

    Raises `InputError` for heads that do not exist, and `UnsupportedModelError` if no layer dispatches.
    """
    opened = opening(model, stack)
    editing_heads(opened, stack, heads_of(model, opened, heads), change(opened))


def editing_heads(
    opened: OpenStream, stack: ExitStack, heads: Mapping[nn.Module, Sequence[int]], change: Change
) -> None:
    """Let `change` compute the output of these heads; each of their layers must run in every pass."""
    required(opened, heads)
    # Registered twice: as a watcher it is shown the call, which `returned` then finds, since watchers come first.
    editor = Recast(opened, heads, change)
    opened.edit_attention(editor)
    stack.enter_context(watching(editor))


def opening(model: nn.Module, stack: ExitStack) -> OpenStream:
    """The changed stack. Raises `UnsupportedModelError` if no layer dispatches."""
    if not has_attention(model):
        raise UnsupportedModelError(
            f"family '{family(model)}' computes attention in custom code, where weights can be hidden but not "
            "reweighed: this works on families that dispatch through transformers' AttentionInterface"
        )
    return OpenStream(model, stack)


def required(opened: OpenStream, layers: Iterable[nn.Module]) -> None:
    """Each of these layers must be changed in every pass, and run once in it."""
    modules = list(layers)
    for attention in modules:
        opened.only_once(attention)
    opened.require(*([attention] for attention in modules))


def heads_of(model: nn.Module, opened: OpenStream, heads: Sequence[Head] | None) -> dict[nn.Module, Sequence[int]]:
    """Heads by the module of their layer. Raises `InputError` for a layer or head that does not exist."""
    layers = opened.stream.attention(model)
    if heads is None:
        return {module: tuple(range(head_count(model, module))) for module in layers}
    by_module: dict[nn.Module, list[int]] = {}
    for layer, head in heads:
        module = opened.stream.layer(layer)
        count = head_count(model, module)
        if head >= count:
            raise InputError(f"head {head} does not exist: layer {layer} has heads 0 to {count - 1}")
        by_module.setdefault(module, []).append(head)
    return dict(by_module)


def pairs(heads: Any) -> tuple[Head, ...] | None:
    """The heads of an intervention: None for all, otherwise different (layer, head), non-negative integers."""
    if heads is None:
        return None
    checked = tuple(tuple(head) if isinstance(head, Sequence) and not isinstance(head, str) else () for head in heads)
    for written, head in zip(heads, checked, strict=True):
        if len(head) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in head):
            raise InputError(f"head {written!r}: expected (layer, head), non-negative integers")
    if not checked or len(set(checked)) != len(checked):
        raise InputError("heads: expected at least one (layer, head), all different; None for all")
    return checked


def others_in(
    opened: OpenStream, chosen: Bool[Tensor, "batch *heads column"], among: Bool[Tensor, "batch column"], seed: int
) -> Bool[Tensor, "batch *heads column"]:
    """As many other columns of `among` as are chosen in it, at random for each row and head.

    Rows draw by `seed` and by what they say, so a row has the same columns in every batch and on every device.
    """
    by_head = chosen.reshape(len(chosen), -1, chosen.shape[-1])
    draws = torch.zeros(by_head.shape)
    for row, places, digest in zip(draws, among.cpu(), opened.passes.now.forward.digests, strict=True):
        generator = torch.Generator().manual_seed(seed + digest)
        row[:, places] = torch.rand(len(row), int(places.sum()), generator=generator)
    free = among[:, None] & ~by_head
    # argsort of argsort is the rank of a column by its draw; −1 puts those that are not free last.
    rank = draws.to(chosen.device).masked_fill(~free, -1.0).argsort(-1, descending=True).argsort(-1)
    return ((rank < (by_head & among[:, None]).sum(-1, keepdim=True)) & free).reshape(chosen.shape)


def _taken(module: nn.Module, head: int, output: Tensor, unchanged: Tensor) -> bool:
    """Whether another intervention zeroed this head, which then stays so. Raises if it was changed otherwise."""
    mine, theirs = unchanged[:, :, head], output[:, :, head]
    if torch.equal(mine, theirs):
        return False
    if not theirs.any():
        return True
    raise UnsupportedModelError(
        f"family '{family(module)}', {type(module).__name__}: another intervention changed the output of head {head}, "
        "and two such changes cannot be combined: name all positions in one, or choose other heads"
    )


@dataclass(frozen=True, eq=False)
class InRows(Intervention):
    """A `HeadChange` in different heads (layer, head) of each row; a pass has one row per set of heads.

    This is how random heads, drawn anew for each text, are run.
    """

    changes: HeadChange
    heads: Sequence[Sequence[Head]]

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = opening(model, stack)
        used = tuple(sorted({head for row in self.heads for head in row}))
        change, masks = self.changes.change(opened), dict[nn.Module, Tensor]()
        heads = heads_of(model, opened, used)
        numbers = {opened.stream.layer(layer): layer for layer, _ in used}
        all_heads = heads_of(model, opened, None)
        for module in heads:
            mask = torch.zeros(len(self.heads), len(all_heads[module]), dtype=torch.bool)
            for row, row_heads in enumerate(self.heads):
                mask[row, [head for layer, head in row_heads if layer == numbers[module]]] = True
            masks[module] = mask

        def changed(call: Call) -> Tensor:
            mask = masks[call.module].to(call.output.device)
            if len(mask) != len(call.output):
                raise InputError(f"heads for {len(mask)} rows, but a pass of {len(call.output)} rows")
            return torch.where(mask[..., None, None], change(call), call.output)

        editing_heads(opened, stack, heads, changed)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> InRows:
        raise InputError("InRows is a control itself and has none")

    def describe(self) -> dict[str, Any]:
        return {
            **self.changes.describe(),
            "name": "InRows",
            "heads": [[list(head) for head in row] for row in self.heads],
        }
