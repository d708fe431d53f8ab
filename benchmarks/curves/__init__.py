"""Learning curves of real trainings, recorded once; `curves.npz` is read by `simulation.traces.learning`."""
