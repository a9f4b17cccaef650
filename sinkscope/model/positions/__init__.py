"""How a lab model knows where a token stands."""

from sinkscope.model.positions.rotary import Rotary, Rotation, rotate

__all__ = ["Rotary", "Rotation", "rotate"]
