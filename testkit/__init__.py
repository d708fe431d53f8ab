"""What tests and benchmarks share, neither of which imports the other; not installed."""
