"""Tests that need a CUDA GPU (marker `gpu`); they compile what they need into the kernel cache first."""
