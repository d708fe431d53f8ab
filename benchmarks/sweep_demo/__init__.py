"""The demo: one hyper-parameter sweep on a real Slurm cluster, by Slurm alone and with explsched."""
