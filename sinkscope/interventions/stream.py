"""The stack that interventions change, and the forward pass that goes through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.attention import Tokens
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.probes.calls.forward import Axis, Forward
from sinkscope.probes.calls.reading import axes
from sinkscope.probes.inputs import device_of, evaluating, part, samples_of
from sinkscope.probes.structure.layers import attention_layers, blocks, dispatches, family, no_attention
from sinkscope.probes.structure.stacks import own_stack, residual_blocks

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Stream:
    """One stack of a model: of several the decoder's, which writes the text, else the first.

    `layers`: its self-attention layers by running number, as in a measurement; `blocks`: what depth d > 0 leaves is
    block d − 1.
    """

    family: str
    stack: str
    axis: Axis
    mask_name: str
    layers: tuple[nn.Module, ...]
    blocks: tuple[nn.Module, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Stream:
        """Of a family outside the attention interface only the blocks are known, by its module lists.

        Raises `UnsupportedModelError` for a model without attention.
        """
        if not any(dispatches(module) for module in model.modules()) and isinstance(model, PreTrainedModel):
            own = {block.stack for block in residual_blocks(model)}
            stack, layers = "decoder" if "decoder" in own else own_stack(model), {}
            found = [block.module for block in residual_blocks(model) if block.stack == stack]
        else:
            layers = attention_layers(model)
            stacks = [layer.stack for layer in layers.values()]
            stack = "decoder" if "decoder" in stacks else stacks[0]
            found = [block.module for block in blocks(model) if block.stack == stack]
        twofold = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
        return cls(
            family(model),
            stack,
            axes(stack, twofold)[0],
            "decoder_attention_mask" if twofold and stack == "decoder" else "attention_mask",
            tuple(module for module, layer in layers.items() if layer.stack == stack),
            tuple(found),
        )

    def attention(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """The attention layers. Raises `UnsupportedModelError` where none of them can be changed."""
        if not self.layers:
            raise no_attention(model)
        return self.layers

    def layer(self, number: int) -> nn.Module:
        """The attention layer by its running number. Raises `InputError`."""
        if not 0 <= number < len(self.layers):
            raise InputError(f"layer {number} does not exist: the model's attention layers are {_to(self.layers)}")
        return self.layers[number]

    def block(self, depth: int) -> nn.Module:
        """The block whose output is `depth` (1 … L). Raises `InputError`."""
        if not 1 <= depth <= len(self.blocks):
            raise InputError(f"depth {depth} is no block's output: the model's blocks leave depths 1 to {self.depth}")
        return self.blocks[depth - 1]

    @property
    def depth(self) -> int:
        """The last depth."""
        return len(self.blocks)


class Running:
    """The forward pass under way: which columns of a tensor are which positions of each row."""

    def __init__(self, model: nn.Module, stream: Stream) -> None:
        self._model, self.stream = model, stream
        self._forward: Forward | None = None
        self._used: set[Callable[..., Any]] = set()
        self._changed: set[nn.Module] = set()
        self._groups: list[set[nn.Module]] = []

    def attach(self, stack: ExitStack) -> None:
        """Follow the model's forward passes for as long as `stack` is open."""
        begin = self._model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)
        end = self._model.register_forward_hook(self._end, always_call=True)
        stack.callback(begin.remove)
        stack.callback(end.remove)

    @property
    def seen(self) -> int:
        """Tokens that the cache held before this pass."""
        return self._now.seen if self.stream.axis == "tokens" else 0

    def tokens(self, start: int, stop: int, device: torch.device) -> Tokens:
        """The tokens of absolute places `start` … `stop` − 1; places behind all tokens are padding."""
        real = self._now.real.get(self.stream.axis)
        if real is None:
            return Tokens.plain(stop - start, start=start, device=device)
        real = torch.nn.functional.pad(real.to(device), (0, max(0, stop - real.shape[1])))
        return Tokens.padded(real).part(slice(start, stop))

    def at(self, positions: tuple[int, ...] | None, hidden: Tensor) -> Bool[Tensor, "_ position"]:
        """Which tokens of hidden states (batch, position, width) stand at these positions; None: every real one."""
        tokens = self.tokens(self.seen, self.seen + hidden.shape[1], hidden.device)
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.valid is None else tokens.valid
        return real if positions is None else real & torch.isin(tokens.order, tokens.order.new_tensor(positions))

    def use(self, hook: Callable[..., Any], module: nn.Module) -> None:
        """Note that `hook` changes something. Raises `UnsupportedModelError` at the second time in a pass.

        Then the module is used several times, and its places could not be told apart.
        """
        if hook in self._used:
            raise UnsupportedModelError(
                f"family '{self.stream.family}' uses one {type(module).__name__} several times in a pass, so no depth "
                "or layer of its own can be changed"
            )
        self._used.add(hook)

    def use_once(self) -> Callable[..., None]:
        """A forward pre-hook that notes the use of its module, as `use` does."""

        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.use(hook, module)

        return hook

    def require(self, *groups: Iterable[nn.Module]) -> None:
        """Of each group of attention layers one at least must be changed in every pass, else that is an error."""
        self._groups += [set(group) for group in groups]

    def changed(self, module: nn.Module) -> None:
        """Note that an attention layer was changed in this pass."""
        self._changed.add(module)

    @property
    def _now(self) -> Forward:
        if self._forward is None:
            raise InputError(
                "an intervention follows the passes of the model it was applied to: call that model itself"
            )
        return self._forward

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._forward = Forward.of(model, args, kwargs)
        self._used.clear()
        self._changed.clear()

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._forward = None


Read = Callable[[int, Tensor, Running], object]


def followed(model: nn.Module, stack: ExitStack) -> Running:
    """The passes of `model`, followed for as long as `stack` is open."""
    running = Running(model, Stream.of(model))
    running.attach(stack)
    return running


def change(running: Running, depth: int, edit: Change, stack: ExitStack) -> None:
    """Replace the residual stream at `depth` (0: what enters the first block) by `edit` of it.

    The hooks run before those that are there already, so that every observer sees the changed stream.
    """

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        running.use(before, module)
        if args:
            return (edit(_checked(args[0], running)), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": edit(_checked(kwargs["hidden_states"], running))}

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        running.use(after, module)
        if isinstance(output, tuple):
            return (edit(_checked(output[0], running)), *output[1:])
        return edit(_checked(output, running))

    if depth == 0:
        hook = running.stream.block(1).register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    else:
        hook = running.stream.block(depth).register_forward_hook(after, prepend=True)
    stack.callback(hook.remove)


@contextmanager
def read_stream(model: nn.Module, read: Read) -> Iterator[None]:
    """Call `read(depth, hidden, running)` for every depth of every pass inside the block."""
    with ExitStack() as stack:
        running = followed(model, stack)
        watch(running, 1, 0, read, stack)
        for depth in range(1, running.stream.depth + 1):
            watch(running, depth, depth, read, stack)
        yield


def row_length(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Positions that every row has in the changed stack: from ids or embeddings, less padding, else from a pass."""
    mask_name = Stream.of(model).mask_name
    mask, prefix = inputs.get(mask_name), mask_name.removesuffix("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2:
        return int(mask.bool().sum(-1).min())
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
    config = model.config.get_text_config() if isinstance(model, PreTrainedModel) else None
    width = getattr(config, "hidden_size", None)
    if not isinstance(width, int):
        raise UnsupportedModelError(f"family '{family(model)}': its configuration does not say how wide its stream is")
    return width


def watch(running: Running, block: int, depth: int, read: Read, stack: ExitStack) -> None:
    """Show what a block is given (`depth` < `block`) or leaves (`depth` = `block`) to `read`, as observers see it."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        read(depth, _checked(args[0] if args else kwargs["hidden_states"], running).detach(), running)

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        read(depth, _checked(output[0] if isinstance(output, tuple) else output, running).detach(), running)

    module = running.stream.block(block)
    if depth < block:
        stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    else:
        stack.callback(module.register_forward_hook(after).remove)


def _checked(hidden: Any, running: Running) -> Float[Tensor, "batch position width"]:
    if not isinstance(hidden, Tensor) or hidden.ndim != 3:
        raise UnsupportedModelError(
            f"family '{running.stream.family}': its blocks pass on no tensor (batch, position, width), so the residual "
            "stream can not be changed"
        )
    return hidden


def _to(layers: tuple[nn.Module, ...]) -> str:
    return f"0 to {len(layers) - 1}"
