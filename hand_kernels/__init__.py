"""The ladder: hand-written CUDA kernels, one optimisation a file, from naive to the tensor cores.

`levels` lists them as data; each `level*.cu` is a lesson to read from the top, over `common.cuh`, `elements.cuh`,
`layouts.cuh`, `ptx.cuh` and `ptx_hopper.cuh`. They run as `gemm(a, b, kernel="hand:level5")`, on row-major matrices of
any size and leading dimension, with alpha, beta and any epilogue; what a level doesn't serve is refused by name.
"""

from cutegemm.hand_kernels.levels import LEVELS, Level, find

__all__ = ["LEVELS", "Level", "find"]
