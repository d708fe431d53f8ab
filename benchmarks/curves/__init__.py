"""Learning curves of real trainings, recorded once; `curves.npz` is read by `sched_policy.simulator.recorded`."""
