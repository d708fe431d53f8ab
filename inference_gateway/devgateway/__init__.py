"""A gateway on a private cluster with a client that counts failures: for tests and benchmarks."""
