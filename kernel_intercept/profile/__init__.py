"""What kernels cost: the profile file, imports from Nsight Compute and refinement from device counters."""
