"""Where the loss's gradient goes: its length by depth and token, and what each pre-norm branch does to it.

Source: 2603.17771, "Attention Sinks Induce Gradient Sinks", of which excerpts could be read; which gradients its g₁, g₂
and g₃ are is our reading (`GradientNorms`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import OpenStream, checked, hidden_given, hidden_returned, unwrapped
from sinkscope.measurement.metrics import over_others

Branch = Literal["mixer", "feedforward"]
BRANCHES: tuple[Branch, ...] = ("mixer", "feedforward")
WITHOUT_MIXING = ("mlp", "ffn", "feed", "moe", "expert")  # in the names of modules that mix no tokens
EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps")
SUMS_UP = 0.02  # g₁ + g₃ may differ from ∂L/∂x by this share of its length, as in half precision
BY_BRANCH = ("arriving", "norm_output", "norm_input", "leaving", "norm_factor")

Lengths = Float[Tensor, "batch position"]


@dataclass(eq=False)
class _PassGradients:
    """A forward pass: which of its tokens are real, and what its backward pass found, by name and place."""

    real: Bool[Tensor, "#batch position"]
    stream: dict[int, Lengths] = field(default_factory=dict)
    branches: dict[str, dict[tuple[int, Branch], Lengths]] = field(
        default_factory=lambda: {name: {} for name in BY_BRANCH}
    )

    def lengths(self, gradient: Tensor) -> Lengths:
        return gradient.detach().float().norm(dim=-1).view(-1, self.real.shape[-1])


@dataclass(eq=False)
class _State:
    """The residual stream between two branches of a block, and the branches that read it."""

    value: Tensor | None
    branches: list[Branch] = field(default_factory=list)


@dataclass(eq=False)
class _Norm:
    """A norm that has run."""

    module: nn.Module
    input: Tensor
    output: Tensor
    read: bool = False

    def behind(self, gradient: Tensor) -> Tensor:
        """Jᵀ g, by running the norm again: the gradient that reaches `input` has others in it."""
        with torch.enable_grad():
            x = self.input.detach().requires_grad_()
            output = self.module.forward(x)
            return torch.autograd.grad(output, x, gradient.to(output.dtype))[0]


@dataclass(eq=False)
class _BlockPass:
    """A block that is running. In the backward pass: the gradient that arrived last, and those from norms."""

    number: int
    read: _PassGradients
    states: list[_State]
    differentiated: bool
    norms: list[_Norm] = field(default_factory=list)
    arrived: Tensor | None = None
    parts: dict[Branch, Tensor] = field(default_factory=dict)

    def forget(self) -> None:
        """Let go of activations: hooks hold this block, and they are held by the tensors that they are on."""
        self.norms.clear()
        for state in self.states:
            state.value = None

    def leaves(self, state: _State, gradient: Tensor) -> None:
        """Note what left a state of the stream, if it is the sum of what arrived and what came from its norms."""
        gradient = gradient.detach().float()
        arrived, parts = self.arrived, [self.parts.pop(branch, None) for branch in state.branches]
        # The backward pass goes from the last state to the first: what leaves this one arrives at the one before.
        self.arrived = gradient
        if arrived is None or not parts or any(part is None for part in parts):
            return
        # Some families (OPT) join rows and positions around a branch.
        came = torch.stack([part.float().reshape(gradient.shape) for part in parts if part is not None])
        arrived = arrived.reshape(gradient.shape)
        # g₁ + Σ g₃ is ∂L/∂x only if the branches add to x itself, which post-norm blocks do not.
        rest = (gradient - arrived - came.sum(0)).norm(dim=-1)
        if bool((rest > SUMS_UP * (arrived.norm(dim=-1) + came.norm(dim=-1).sum(0))).any()):
            for branch in state.branches:
                self.read.branches["norm_output"].pop((self.number, branch), None)
            return
        for branch, part in zip(state.branches, came, strict=True):
            lengths = {"arriving": arrived, "norm_input": part, "leaving": gradient}
            for name, vectors in lengths.items():
                self.read.branches[name][self.number, branch] = self.read.lengths(vectors)


class GradientNorms:
    """Read the gradients of your own backward passes: `with GradientNorms(model) as gradients: ...backward()`.

    A pre-norm branch adds f(N(x)) to the residual stream x. With x' = x + f(N(x)), for each token:

        g₁ = ∂L/∂x'         arrives, and goes on to x along the residual connection (`arriving`)
        g₂ = ∂L/∂N(x)       has come back through the branch, at the norm's output (`norm_output`)
        g₃ = Jᵀ g₂          has come back through the norm, J its Jacobian (`norm_input`)
        g₁ + g₃ = ∂L/∂x     leaves (`leaving`)

    RMSNorm's J is (1 / rms(x)) · diag(γ) (I − x̂ x̂ᵀ / d). `norm_factor` is its first factor, by which a massive
    activation shrinks the gradient of its token (1 / std(x) for LayerNorm). Parallel branches (GPT-NeoX) read
    one x: g₁ is common, and all their g₃ leave; where they share a norm (Phi), it counts as the mixer's. A branch for
    which the last line does not hold within 2 %, as in post-norm models, is none of these, and is NaN.

    Every forward pass inside the block that is differentiated adds its rows as samples, micro-batches alike. Lengths
    are as the backward pass scales them, which ratios do not show. The hooks only read: losses, gradients and weights
    stay the same bit for bit (J is applied by running each norm again). Gradient checkpointing, autocast and frozen
    weights are allowed (NaN where no gradient passes); compiled models run eagerly inside. Positions count a row's real
    tokens. Cost: O(T · width) for each norm and block, and memory for one state of the stream per norm, which autograd
    keeps anyway unless it checkpoints.

    Raises `UnsupportedModelError` for a model whose blocks are not known, and `InputError` in inference mode and under
    reentrant gradient checkpointing.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"GradientNorms: expected a model, got a {type(model).__name__}")
        self.model = unwrapped(model)
        self._reads: list[_PassGradients] = []
        self._block: _BlockPass | None = None
        self._pass: object = None
        self._stack: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise InputError("this GradientNorms is open already")
        with ExitStack() as stack:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._opened = OpenStream(self.model, stack)
            self._opened.stream.check_blocks()
            self._depth = self._opened.stream.depth
            for number, block in enumerate(self._opened.stream.blocks):
                self._opened.only_once(block)
                for hook in self._hooks(number, block):
                    stack.callback(hook.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        stack, self._stack, self._pass = self._stack, None, None
        self._drop()
        if stack is not None:
            stack.close()

    def _drop(self) -> None:
        if self._block is not None:
            self._block.forget()
            self._block = None

    def _hooks(self, number: int, block: nn.Module) -> Iterable[Any]:
        attention, family = set(self._opened.stream.layers), self._opened.stream.family

        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._begin(number, checked(hidden_given(args, kwargs), family))

        def end(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._end(checked(hidden_returned(output), family))

        yield block.register_forward_pre_hook(begin, with_kwargs=True)
        yield block.register_forward_hook(end)
        for name, child in block.named_children():
            if "norm" in type(child).__name__.lower():
                yield child.register_forward_hook(self._ran)
            else:
                mixes = bool(attention & set(child.modules())) or not any(word in name for word in WITHOUT_MIXING)
                yield child.register_forward_pre_hook(self._branching(mixes), with_kwargs=True)

    def _begin(self, number: int, hidden: Tensor) -> None:
        if torch.is_inference_mode_enabled():
            raise InputError("GradientNorms reads a backward pass, and inference mode has none")
        self._drop()  # a recomputation ends early
        passes = self._opened.passes
        if passes.now is not self._pass:
            self._pass = passes.now
            self._reads.append(_PassGradients(self._opened.at(None, hidden)))
        read = self._reads[-1]
        self._block = _BlockPass(number, read, [_State(hidden)], torch.is_grad_enabled())
        if hidden.requires_grad:
            block = self._block
            if number == 0:
                hidden.register_hook(lambda gradient: read.stream.update({0: read.lengths(gradient)}))
            hidden.register_hook(lambda gradient: block.leaves(block.states[0], gradient))

    def _ran(self, norm: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._block is None or not args or not isinstance(output, Tensor):
            return
        if self._block.differentiated and not torch.is_grad_enabled():
            raise InputError(
                "GradientNorms cannot see into reentrant gradient checkpointing, which runs a block without a graph "
                "first: enable it with use_reentrant=False"
            )
        if output.requires_grad:
            self._block.norms.append(_Norm(norm, args[0], output))

    def _branching(self, mixes: bool) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            passed = (*args, *kwargs.values())
            for norm in [] if self._block is None else list(self._block.norms):
                if any(value is norm.output for value in passed):
                    self._branch(norm, mixes)

        return hook

    def _branch(self, norm: _Norm, mixes: bool) -> None:
        """Read the gradients at a norm whose output a branch has just been given."""
        block = self._block
        assert block is not None
        read, known = block.read, [branch for state in block.states for branch in state.branches]
        branch: Branch = "mixer" if mixes and "mixer" not in known else "feedforward"
        if (
            norm.read or branch in known
        ):  # another branch that reads the same norm, or another module of one, such as a shared expert
            return
        norm.read = True
        if block.states[-1].value is not norm.input:
            block.states.append(state := _State(norm.input))
            norm.input.register_hook(lambda gradient: block.leaves(state, gradient))
        block.states[-1].branches.append(branch)
        place, lengths = (block.number, branch), read.branches
        lengths["norm_factor"][place] = norm_factor(norm.input.detach(), norm.module).view(-1, read.real.shape[-1])

        def came(gradient: Tensor) -> None:
            lengths["norm_output"][place] = read.lengths(gradient)
            block.parts[branch] = norm.behind(gradient.detach())

        norm.output.register_hook(came)

    def _end(self, hidden: Tensor) -> None:
        block = self._block
        if block is None:
            return
        if hidden.requires_grad:
            depth, read = block.number + 1, block.read

            def arrives(gradient: Tensor) -> None:
                block.arrived = gradient.detach().float()
                read.stream[depth] = read.lengths(gradient)

            hidden.register_hook(arrives)
        self._drop()

    @property
    def data(self) -> xr.Dataset:
        """Lengths of gradients, fp32. Raises `InputError` if nothing was differentiated inside the block.

        `stream` (sample, depth, position): ‖∂L/∂h_t‖ of the residual stream, depth 0 before the first block and l + 1
        after block l, before any final norm. `arriving`, `norm_output`, `norm_input`, `leaving`, and `norm_factor`
        (sample, layer, branch, position), layers counted as blocks.
        """
        reads = [read for read in self._reads if read.stream]
        if not reads:
            raise InputError(
                "no gradient reached the residual stream inside the block: run forward and backward pass in it, with "
                "the model itself and something that requires a gradient below its blocks"
            )
        length = max(int(read.real.sum(-1).max()) for read in reads)
        arrays: dict[str, Any] = {"stream": (("sample", "depth", "position"), _together(reads, length, self._stream))}
        for name in BY_BRANCH:
            rows = _together(reads, length, lambda read, name=name: self._places(read, name))  # type: ignore[misc]
            values = rows.reshape(len(rows), self._depth, len(BRANCHES), length)
            arrays[name] = (("sample", "layer", "branch", "position"), values)
        return xr.Dataset(arrays, coords={"branch": list(BRANCHES)})

    def _stream(self, read: _PassGradients) -> list[Lengths | None]:
        return [read.stream.get(depth) for depth in range(self._depth + 1)]

    def _places(self, read: _PassGradients, name: str) -> list[Lengths | None]:
        """By layer and branch; the factors of norms only where gradients were found."""
        known, lengths = read.branches["arriving"], read.branches[name]
        places = [(layer, branch) for layer in range(self._depth) for branch in BRANCHES]
        return [lengths.get(place) if place in known else None for place in places]

    def ratios(self) -> xr.Dataset:
        """`bloat` ‖g₂‖ / ‖g₁‖, `compress` ‖g₃‖ / ‖g₂‖ and `change` ‖g₁ + g₃‖ / ‖g₁‖ (sample, layer, branch, position).

        `compress` / `norm_factor` is what γ and the projection do, without the length of the stream.
        """
        data = self.data
        return xr.Dataset(
            {
                "bloat": _over(data.norm_output, data.arriving),
                "compress": _over(data.norm_input, data.norm_output),
                "change": _over(data.leaving, data.arriving),
            }
        )

    def sink_ratio(self, position: int = 0) -> xr.DataArray:
        """R_GS (sample, layer, branch): ‖g₂‖ at a position over its mean at the row's other tokens.

        Raises `InputError` for a position that no row has.
        """
        outputs = self.data.norm_output
        if not 0 <= position < outputs.sizes["position"]:
            raise InputError(f"position {position}: rows have positions 0 to {outputs.sizes['position'] - 1}")
        ratio = over_others(outputs.to_numpy(), position)
        return xr.DataArray(ratio, dims=outputs.dims[:-1], coords={"branch": outputs.branch}, name="sink_ratio")


def norm_factor(x: Float[Tensor, "*tokens width"], norm: nn.Module) -> Float[Tensor, "*tokens"]:
    """1 / rms(x) per token, or 1 / std(x) for LayerNorm, with the norm's own ε; fp32."""
    epsilon = next((float(value) for name in EPSILONS if isinstance(value := getattr(norm, name, None), float)), 0.0)
    wide = x.float()
    if _centres(norm, x):
        wide = wide - wide.mean(-1, keepdim=True)
    return (wide.square().mean(-1) + epsilon).rsqrt()


def _centres(norm: nn.Module, x: Float[Tensor, "*tokens width"]) -> bool:
    """Whether a norm subtracts the mean, so that a constant added to its input changes nothing.

    Tried, since names do not tell: T5LayerNorm does not.
    """
    probe = torch.linspace(-1, 2, x.shape[-1], device=x.device, dtype=x.dtype)[None]
    with torch.no_grad():
        plain, shifted = norm.forward(probe).float(), norm.forward(probe + 8).float()
    return bool((plain - shifted).abs().max() < 0.1 * plain.abs().max())


def _over(one: xr.DataArray, other: xr.DataArray) -> xr.DataArray:
    """one / other, NaN where other is 0."""
    return one / other.where(other > 0)


def _together(
    reads: list[_PassGradients], length: int, places: Callable[[_PassGradients], list[Lengths | None]]
) -> Float[np.ndarray, "sample place position"]:
    """The lengths of all passes, real tokens in front, NaN elsewhere."""
    parts = []
    for read in reads:
        lengths = places(read)
        rows = max(len(one) for one in read.stream.values())
        real = read.real.expand(rows, -1)
        blank = torch.full(real.shape, torch.nan, device=real.device)
        values = torch.stack([blank if one is None else one.masked_fill(~real, torch.nan) for one in lengths], 1)
        order = torch.argsort((~real).int(), dim=-1, stable=True)[:, None].expand_as(values)
        front = values.gather(-1, order)[..., :length].cpu().numpy()
        parts.append(np.pad(front, [(0, 0), (0, 0), (0, length - front.shape[-1])], constant_values=np.nan))
    return np.concatenate(parts)
