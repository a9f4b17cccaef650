"""What makers say of their GPUs: memory, and the most arithmetic they can do."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.training.recipe import Recipe

TERA = 10**12


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU by its data sheet: memory in bytes, dense peaks in FLOP/s (half the sparse ones), source.

    `tf32` is not what an fp32 recipe uses: sinkscope leaves TF32 off, so that fp32 means fp32 everywhere.
    """

    name: str
    memory: int
    bf16: float
    tf32: float
    fp32: float
    source: str

    def peak(self, recipe: Recipe) -> float:
        """FLOP/s of matrix products at the recipe's precision."""
        return self.bf16 if recipe.precision == "bf16" else self.fp32


def _gpu(name: str, gigabytes: int, bf16: float, tf32: float, fp32: float, source: str) -> Gpu:
    return Gpu(name, gigabytes * 10**9, bf16 * TERA, tf32 * TERA, fp32 * TERA, source)


GPUS = (
    _gpu("A100 40GB", 40, 312.0, 156.0, 19.5, "NVIDIA A100 Tensor Core GPU data sheet"),
    _gpu("A100 80GB", 80, 312.0, 156.0, 19.5, "NVIDIA A100 Tensor Core GPU data sheet"),
    _gpu("H100 80GB", 80, 989.5, 494.5, 67.0, "NVIDIA H100 Tensor Core GPU data sheet, SXM, dense"),
    _gpu("H200 141GB", 141, 989.5, 494.5, 67.0, "NVIDIA H200 Tensor Core GPU data sheet, SXM, dense"),
    _gpu("L4 24GB", 24, 121.0, 60.0, 30.3, "NVIDIA L4 Tensor Core GPU data sheet, dense"),
    _gpu("RTX 4090 24GB", 24, 165.2, 82.6, 82.6, "NVIDIA Ada GPU Architecture whitepaper, fp32 accumulation"),
)
