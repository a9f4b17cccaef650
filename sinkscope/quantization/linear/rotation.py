"""QuaRot: rotations that spread outlying channels over all others, of map inputs and of the residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import Blocks, RotationKind, rotation
from sinkscope.hooks import OpenStream, Stream, family, unwrapped, width_of
from sinkscope.quantization.linear.maps import HEAD, LinearMap, chosen, linear_maps, reachable
from sinkscope.quantization.linear.norms import SharedInput, changes_nothing, gain_of, put, sources
from sinkscope.quantization.linear.transform import Change, InputTransform, Transform, check_unedited, check_unrounded

LAST = ("output", "down", "experts")  # kinds of maps that may write to the residual stream


@dataclass(frozen=True)
class RotateInputs(InputTransform):
    """x → x Q and W → W Q at the input of each map of these `kinds`, computed at run time.

    `kinds`: as `hooks` names them ("down", "output", "query", …); None for all. `kind`, `seed`: of `grids.rotation`,
    which chooses random signs and Hadamard blocks, or random orthogonal matrices. Control: the rotation of another
    seed.

    Source: the online rotations of Ashkboos et al. 2024 (QuaRot), who factor widths such as 28 · 2^n into known
    Hadamard matrices instead of blocks.
    """

    kinds: Sequence[str] | None = None
    kind: RotationKind = "hadamard"
    seed: int = 0
    skip: Sequence[str] = (HEAD,)

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        object.__setattr__(self, "skip", (self.skip,) if isinstance(self.skip, str) else tuple(self.skip))
        object.__setattr__(self, "kinds", None if self.kinds is None else tuple(self.kinds))

    def changes(self, model: nn.Module) -> Mapping[LinearMap, Change]:
        maps = linear_maps(model, self.skip)
        named = {one for one in maps.values() if self.kinds is None or {*one.kinds} & {*self.kinds}}
        if not named:
            kinds = ", ".join(sorted({kind for one in maps.values() for kind in one.kinds}))
            raise InputError(f"no linear map of kind {', '.join(self.kinds or ())}: this model has {kinds}")
        return {one: Change(turns=rotation(one.weight.shape[-1], self.kind, self.seed)) for one in named}

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> RotateInputs:
        return replace(self, seed=int(torch.randint(2**31, (1,), generator=generator)))


@dataclass(frozen=True)
class RotateResidual(Transform):
    """h → h Q between the first block and the last, with Q folded into the weights. Made by `RotateResidual.of`.

    The stream is rotated where it enters the first block, and back where it leaves the last. The gains of the norms in
    between are folded into the maps that read them (W diag(g) Q), writers become Qᵀ W and b Q, and other readers of a
    norm (a router) get what they got before. Only norms that do not subtract a mean (RMSNorm) commute with a rotation.
    Control: another rotation. Source: Ashkboos et al. 2024 (QuaRot), who fold Q into the embeddings and the head too.
    """

    kind: RotationKind
    seed: int
    readers: tuple[SharedInput, ...]
    writers: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module, inputs: Any, kind: RotationKind = "hadamard", seed: int = 0) -> RotateResidual:
        """Readers and writers are determined in a pass over the first sample of `inputs`.

        Raises `UnsupportedModelError` for a model whose function a rotation would change.
        """
        _check_kind(kind)
        model = unwrapped(model)
        maps = reachable(model)
        stream = Stream.of(model)
        stream.check_blocks()
        width, inside = width_of(model), {path: one for path, one in maps.items() if one.block in stream.blocks}
        modules = dict(model.named_modules())
        normed = [one for one in sources(model, inputs, maps) if one.norm is not None and not one.inside]
        within = {module for block in stream.blocks for module in block.modules()}
        normed = [one for one in normed if modules[str(one.norm)] in within]
        readers = [one for one in normed if all(path in inside for path in one.maps)]
        reading = {path for one in readers for path in one.maps}
        writers = [
            path for path, one in inside.items() if path not in reading and one.weight.shape[-2] == width and _last(one)
        ]
        for one in readers:
            if isinstance(modules[one.norm], nn.LayerNorm):
                raise UnsupportedModelError(
                    f"family '{family(model)}': '{one.norm}' subtracts the mean, which a rotation of the residual "
                    "stream changes: use RotateInputs, which rotates the input of each map"
                )
            gain_of(modules[one.norm])  # raises for a gain that cannot be folded
        made = cls(kind, seed, tuple(readers), tuple(writers))
        # Hooks miss readers and writers that are not modules; a rotation that leaves them out changes the logits.
        if not readers or not writers or not changes_nothing(model, inputs, made):
            raise UnsupportedModelError(
                f"family '{family(model)}': its blocks read or write the residual stream other than through norms "
                "and linear maps, so a rotation would change its function: use RotateInputs, which rotates the input "
                "of each map"
            )
        return made

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        paths = [*(path for one in self.readers for path in one.maps), *self.writers]
        maps = chosen(model, paths, "RotateResidual")
        check_unrounded(maps.values())
        modules = dict(model.named_modules())
        width = width_of(model)
        turn = Change(turns=rotation(width, self.kind, self.seed))
        # Q⁻¹ = Qᵀ: with its signs, a Hadamard matrix is not symmetric.
        back = Change(turns=tuple(Blocks(one.matrix.mT) for one in reversed(rotation(width, self.kind, self.seed))))
        opened = OpenStream(model, stack)
        opened.edit(0, turn.of_input)
        opened.edit(opened.stream.depth, back.of_input)
        for one in self.readers:
            norm = modules[str(one.norm)]
            gain, offset = gain_of(norm)
            # A gain of 1, which norms that store g − 1 hold as 0.
            put(norm, "weight", torch.full_like(gain, 1 - offset), stack)
            check_unedited((maps[path] for path in one.maps), "RotateResidual")
            for path in one.maps:
                maps[path].replace(turn.of_weight(maps[path].weight * gain.to(maps[path].weight)), stack)
            for path in one.others:
                _undo(modules[path], back, gain, stack)
        for path in self.writers:
            # The output is rotated instead of the input: Qᵀ W = (Wᵀ Q)ᵀ.
            maps[path].replace(turn.of_weight(maps[path].weight.mT).mT, stack)
            _turn_bias(maps[path], turn, stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> RotateResidual:
        return replace(self, seed=int(torch.randint(2**31, (1,), generator=generator)))


def _last(one: LinearMap) -> bool:
    if one.stacked:
        return one.parameter == "down_proj"
    return bool({*one.kinds} & {*LAST}) or "out" in one.path.rpartition(".")[2]


def _check_kind(kind: str) -> None:
    if kind not in get_args(RotationKind):
        raise InputError(f"a rotation of kind '{kind}': expected one of {', '.join(get_args(RotationKind))}")


def _undo(module: nn.Module, back: Change, gain: Tensor, stack: ExitStack) -> None:
    """Give a reader of a norm that is not a linear map what it got before."""

    def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # The norm's output is rotated now, and without its gain, which the maps' weights hold.
        return (back.of_input(args[0]) * gain.to(args[0]), *args[1:])

    stack.callback(module.register_forward_pre_hook(hook, prepend=True).remove)


def _turn_bias(one: LinearMap, turn: Change, stack: ExitStack) -> None:
    name = f"{one.parameter}_bias" if one.stacked else "bias"
    if isinstance(bias := getattr(one.module, name, None), Tensor):
        put(one.module, name, turn.of_input(bias), stack)
