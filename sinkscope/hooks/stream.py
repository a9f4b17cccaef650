"""The residual stream at a depth, read or edited during forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.attention import TokenAxis
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks.custom_attention import following
from sinkscope.hooks.dispatch import Editor, editing
from sinkscope.hooks.inputs import device_of, evaluating, part, samples_of
from sinkscope.hooks.modules import (
    MODALITIES,
    Block,
    Depth,
    attention_layers,
    blocks,
    family,
    has_attention,
    is_encoder_decoder,
    no_attention,
    own_stack,
    text_config,
)
from sinkscope.hooks.names import own_attention
from sinkscope.hooks.passes import Axis, Edit, Pass, Passes, arguments, axes

NO_STREAM = (
    "its blocks pass on no tensor (batch, position, width), so the residual stream can neither be read nor changed"
)


@dataclass(frozen=True, eq=False)
class Stream:
    """One stack of a model: the decoder, which writes the text, else the one that reads text, else the first.

    `layers`: its self-attention layers by running number, the rows of a measurement; `blocks`: block d − 1
    outputs depth d > 0.
    """

    family: str
    stack: str
    axis: Axis
    mask_name: str
    layers: tuple[nn.Module, ...]
    blocks: tuple[nn.Module, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Stream:
        """For a family outside the attention interface only the blocks are known, from its module lists.

        Raises `UnsupportedModelError` for a model without attention.
        """
        if isinstance(model, PreTrainedModel) and not has_attention(model):
            layers, first = own_attention(model), own_stack(model)
            stacks = {block.stack for block in blocks(model)}
        else:
            layers = attention_layers(model)
            stacks = {layer.stack for layer in layers.values()}
            names = [layer.stack for layer in layers.values()]
            first = next((name for name in names if name not in MODALITIES), names[0])
        stack, writes = "decoder" if "decoder" in stacks else first, is_encoder_decoder(model)
        return cls(
            family(model),
            stack,
            axes(stack, writes)[0],
            "decoder_attention_mask" if writes and stack == "decoder" else "attention_mask",
            tuple(module for module, layer in layers.items() if layer.stack == stack),
            tuple(block.module for block in blocks(model) if block.stack == stack),
        )

    def attention(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """The attention layers. Raises `UnsupportedModelError` if none of them can be changed."""
        if not self.layers:
            raise no_attention(model)
        return self.layers

    def layer(self, number: int) -> nn.Module:
        """The attention layer by its running number. Raises `InputError`."""
        if not 0 <= number < len(self.layers):
            own = [getattr(module, "layer_idx", None) for module in self.layers]
            counted = "" if None in own or own == [*range(len(own))] else f" (in the model: {', '.join(map(str, own))})"
            raise InputError(
                f"layer {number} does not exist: the model's attention layers are 0 to {len(self.layers) - 1}{counted}"
            )
        return self.layers[number]

    def block(self, depth: int) -> nn.Module:
        """The block whose output is `depth` (1 … L). Raises `InputError`, and as `check_blocks` does."""
        self.check_blocks()
        if not 1 <= depth <= len(self.blocks):
            raise InputError(
                f"depth {depth} is not a block's output: the model's blocks leave depths 1 to {self.depth}"
            )
        return self.blocks[depth - 1]

    def check_blocks(self) -> None:
        """Raises `UnsupportedModelError` for a model whose blocks, and so its residual stream, are not known."""
        if not self.blocks:
            raise UnsupportedModelError(
                f"family '{self.family}': no list of blocks was found (looked for one module list as long as its "
                "stack is deep, whose blocks pass on (batch, position, width)), so its residual stream can neither be "
                "read nor changed"
            )

    @property
    def depth(self) -> int:
        """The last depth."""
        return len(self.blocks)


class OpenStream:
    """A model's stream while an `ExitStack` is open: its columns and positions, and the edits to it."""

    def __init__(self, model: nn.Module, stack: ExitStack) -> None:
        self.stream = Stream.of(model)
        self.passes = Passes(model)
        self._stack = stack
        self._single: set[nn.Module] = set()
        self.passes.attach(stack, first=True)  # a refused pass counts nowhere, even if it is observed

    @property
    def seen(self) -> int:
        """Tokens that the cache held before this pass."""
        return self.passes.now.forward.start(self.stream.axis)

    def tokens(self, start: int, stop: int, device: torch.device) -> TokenAxis:
        """The tokens of columns `start` … `stop` − 1, counted from the first cached one."""
        return self.passes.now.forward.tokens(self.stream.axis, start, stop, device)

    def at(self, positions: tuple[int, ...] | None, hidden: Tensor) -> Bool[Tensor, "_ position"]:
        """Which columns of hidden states (batch, position, width) hold these positions; None: every real one."""
        return self.passes.now.forward.at(self.stream.axis, positions, hidden)

    def edit(self, depth: int, edit: Edit) -> None:
        """Replace the residual stream at `depth` (0: the input of the first block) by `edit` of it.

        The hooks run before existing ones, so that every observer sees the edited stream.
        """

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            edited = edit(checked(hidden_given(args, kwargs), self.stream.family))
            return ((edited, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": edited})

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            edited = edit(checked(hidden_returned(output), self.stream.family))
            return type(output)([edited, *output[1:]]) if isinstance(output, tuple | list) else edited

        block = self.stream.block(max(depth, 1))
        if depth == 0:
            hook = block.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        else:
            hook = block.register_forward_hook(after, prepend=True)
        self._stack.callback(hook.remove)
        self.only_once(block)

    def read_input(self, depth: int, read: Callable[[Tensor], object]) -> None:
        """Show `read` the input of the block that outputs `depth`, as observers see it."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read(checked(hidden_given(args, kwargs), self.stream.family).detach())

        self._stack.callback(self.stream.block(depth).register_forward_pre_hook(before, with_kwargs=True).remove)

    def edit_attention(self, editor: Editor) -> None:
        """Let `editor` change attention, through the interface or in a family's own code."""
        self._stack.enter_context(editing(editor))
        self._stack.enter_context(following(self.passes.model))

    def edited(self, module: nn.Module) -> None:
        """Note that an attention layer was edited in the current pass."""
        self.passes.now.note(module)

    def only_once(self, module: nn.Module) -> None:
        """Raise `UnsupportedModelError` in a pass that uses this module a second time: its depths or layers would be
        ambiguous.
        """

        def hook(used: nn.Module, args: tuple[Any, ...]) -> None:
            # A recomputed checkpoint runs the module again, which is no second use.
            if not self.passes.recomputing and self.passes.now.use(used):
                raise UnsupportedModelError(
                    f"family '{self.stream.family}' uses one {type(used).__name__} several times in a pass, so no "
                    "depth or layer of its own can be changed"
                )

        if module not in self._single:
            self._single.add(module)
            self._stack.callback(module.register_forward_pre_hook(hook, prepend=True).remove)

    def require(self, *groups: Iterable[nn.Module]) -> None:
        """At least one attention layer of each group must be edited in every pass, else the pass is an error."""
        for group in map(set, groups):
            kinds = ", ".join(sorted({type(module).__name__ for module in group}))
            missed = (
                "never asked transformers' AttentionInterface for a function in this pass"
                if has_attention(self.passes.model)
                else "took no softmax of scores (head, query, key) in this pass, which was looked for there (a kernel "
                "takes none that can be changed: load the model with attn_implementation='eager')"
            )
            self.passes.require(
                lambda done, group=group: bool(group & done.noted),  # type: ignore[misc]
                f"family '{self.stream.family}': its {kinds} {missed}, so nothing was changed there",
                self._stack,
            )


@contextmanager
def read_stream(model: nn.Module, read: Callable[[int, Tensor, OpenStream], object]) -> Iterator[None]:
    """Call `read(depth, hidden, stream)` for every depth of every pass inside the block."""
    with ExitStack() as stack:
        opened = OpenStream(model, stack)
        opened.stream.check_blocks()
        own_blocks = [Block(module, opened.stream.stack) for module in opened.stream.blocks]

        def shown(depth: Depth, hidden: Any, _: Pass) -> None:
            read(depth.index, checked(hidden, opened.stream.family).detach(), opened)

        read_blocks(own_blocks, opened.passes, shown, stack)
        yield


def read_blocks(
    blocks: Sequence[Block], passes: Passes, read: Callable[[Depth, Any, Pass], object], stack: ExitStack
) -> None:
    """Call `read(depth, hidden, pass)` for the input of a stack's first block (depth 0) and each block's output.

    Depths count the blocks that ran, so a block used several times has one depth per use. `hidden` is whatever the
    block passes on; `checked` refuses anything but a tensor (batch, position, width).
    """

    def before(block: Block) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # `use` counts every block, which `after` reads as its depth; only before the first block is it 0.
            if passes.under_way is not None and not passes.under_way.use(block.stack):
                mask = arguments(module, args, kwargs).get("attention_mask")
                passes.under_way.masks[block.stack] = mask if isinstance(mask, Tensor) else None
                read(Depth(0, block.stack), hidden_given(args, kwargs), passes.under_way)

        return hook

    def after(block: Block) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if passes.under_way is not None:
                depth = Depth(passes.under_way.uses[block.stack], block.stack)
                read(depth, hidden_returned(output), passes.under_way)

        return hook

    for block in blocks:
        stack.callback(block.module.register_forward_pre_hook(before(block), with_kwargs=True).remove)
        stack.callback(block.module.register_forward_hook(after(block)).remove)


def hidden_given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The residual stream among the arguments of a block; None if no argument has its name."""
    return args[0] if args else kwargs.get("hidden_states")


def hidden_returned(output: Any) -> Any:
    """The residual stream in a block's output."""
    return output[0] if isinstance(output, tuple | list) else output


def checked(hidden: Any, name: str) -> Float[Tensor, "batch position width"]:
    """`hidden` if it is a residual stream; else raises `UnsupportedModelError` for the family `name`."""
    if not isinstance(hidden, Tensor) or hidden.ndim != 3:
        raise UnsupportedModelError(f"family '{name}': {NO_STREAM}")
    return hidden


def row_length(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Positions that every row has in the changed stack: from ids or embeddings without padding, else from a pass.

    Raises `InputError` for a row that is all padding.
    """
    mask_name = Stream.of(model).mask_name
    mask, prefix = inputs.get(mask_name), mask_name.removesuffix("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2:
        if not (counts := mask.bool().sum(-1)).all():
            raise InputError(f"row {int(counts.argmin())} of {mask_name} is all padding: it has no token to change")
        return int(counts.min())
    for name in (f"{prefix}input_ids", f"{prefix}inputs_embeds"):
        if isinstance(inputs.get(name), Tensor):
            return int(inputs[name].shape[1])
    lengths: list[int] = []
    one = part(inputs, slice(0, 1), samples_of(inputs), device_of(model))
    with evaluating(model), torch.no_grad(), read_stream(model, lambda _, hidden, __: lengths.append(hidden.shape[1])):
        model(**one)
    return lengths[0]


def width_of(model: nn.Module) -> int:
    """Width of the residual stream, from the configuration. Raises `UnsupportedModelError`."""
    config = text_config(model)
    width = getattr(config, "hidden_size", None)
    if not isinstance(width, int):
        raise UnsupportedModelError(
            f"family '{family(model)}': its configuration does not say how wide its stream is (looked for hidden_size)"
        )
    return width
