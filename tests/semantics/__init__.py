"""What `gemm` means, once for every device: each test runs on CPU tensors and, marked `gpu`, on CUDA tensors."""
