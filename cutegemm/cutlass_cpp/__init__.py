"""CUTLASS C++ kernels that `nvidia-cutlass` generates: `config` lists them, `emit` writes their source, `build` has
nvcc compile it, `run` launches what came out. The .cuh files are the kernels' entry points and the epilogue's place in
CUTLASS's visitor trees."""
