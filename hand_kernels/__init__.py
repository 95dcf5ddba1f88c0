"""Hand-written CUDA kernels, imported as ``cutegemm.hand_kernels``. There are none yet."""
