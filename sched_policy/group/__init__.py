"""Groups: which jobs share the same GPUs, and how fast each of them then runs."""
