"""The kernel level: the CUDA interposer and its manager (C++), and the profiles of kernels (Python)."""
