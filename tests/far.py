"""A device that is none: its tensors say that they are elsewhere, are computed here, and refuse others as on a GPU.

A tensor left on the processor is the usual fault of code that was only run there. `far` finds it without a GPU: an
operation that mixes the two devices raises what CUDA would. As there, tensors of no dimension may come from the
processor, and so may indices.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

NAME = "far"
aten = torch.ops.aten
# These take tensors of both devices on a GPU too.
MOVES = (aten._to_copy.default, aten.copy_.default, aten._copy_from.default)
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor}


class Far(torch.Tensor):
    """A tensor whose numbers lie in `here`, on the processor."""

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> Far:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.here = here
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def untyped_storage(self) -> Any:
        return self.here.untyped_storage()

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def new_tensor(self, data: Any, **options: Any) -> torch.Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **options})

    def __deepcopy__(self, memo: dict[int, Any]) -> Far:
        # torch would fill an empty tensor with a copy of the storage, which this class does not have.
        return memo.setdefault(id(self), Far(self.here.clone()))

    def __repr__(self) -> str:
        return f"Far({self.here!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class _Unseen(TorchFunctionMode):
    """What copies between devices unseen by dispatch: `torch.tensor`, and the indices of a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], Far):
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            return func(args[0], tuple(_index(each, args[0].device) for each in indices), *args[2:])
        if func not in (torch.tensor, torch.as_tensor, torch.asarray) or isinstance(args[0], Far):
            return func(*args, **kwargs)
        device = kwargs.pop("device", None)
        made = func(*args, **kwargs)
        return made if device is None else made.to(device)


def _index(index: Any, device: torch.device) -> Any:
    index = torch.tensor(index) if isinstance(index, list) else index
    return index.to(device) if type(index) is torch.Tensor else index


class Elsewhere(TorchDispatchMode):
    """Makes what is asked for on `far`."""

    def __enter__(self) -> Elsewhere:
        self.made = _Unseen()
        self.made.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.made.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat, spec = tree_flatten((args, kwargs))
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    far = [each for each in tensors if isinstance(each, Far)]
    asked = kwargs.get("device")
    asked = None if asked is None else torch.device(asked).type
    if far and func not in MOVES:
        checked = [args[0], *args[2:]] if func in INDEXED else args
        near = [
            each
            for each in tree_flatten((checked, kwargs))[0]
            if isinstance(each, torch.Tensor) and not isinstance(each, Far) and each.dim()
        ]
        if near:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} got {[tuple(each.shape) for each in near]} "
                f"on the processor beside {[tuple(each.shape) for each in far]} on {NAME}"
            )
    back = func is aten._to_copy.default and asked == "cpu"
    if not far and asked != NAME:
        return func(*args, **kwargs)
    plain = [each.here if isinstance(each, Far) else each for each in flat]
    args, kwargs = tree_unflatten(plain, spec)
    if asked == NAME:
        kwargs = {**kwargs, "device": "cpu"}
        kwargs.pop("pin_memory", None)
    if func is aten.copy_.default and not isinstance(flat[0], Far):
        return flat[0].copy_(args[1])
    made = func(*args, **kwargs)
    known = {id(each.here): each for each in far}  # written in place
    if back:
        return made
    return tree_map(lambda each: known[id(each)] if id(each) in known else wrapped(each), made)


def wrapped(made: Any) -> Any:
    return Far(made) if isinstance(made, torch.Tensor) else made


@cache
def device() -> torch.device:
    from torch.utils import backend_registration as registering

    class Module(registering._DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

    registering._setup_privateuseone_for_python_backend(NAME, Module())
    return torch.device(NAME, 0)


def main() -> int:
    """`sinkscope` with the device `far`: its exit code."""
    from sinkscope.cli import main as command
    from sinkscope.quantization.linear import maps

    device()
    # Parameters stay tensors of this class, where quantization takes subclasses for quantized weights.
    torch.__future__.set_swap_module_params_on_conversion(True)
    maps.Tensor = Far  # type: ignore[misc, assignment]
    with Elsewhere():
        return command() or 0


if __name__ == "__main__":
    sys.exit(main())
