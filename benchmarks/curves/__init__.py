"""Learning curves of real trainings, recorded once; `curves.npz` is read by `benchmarks.exploratory.recorded`."""
