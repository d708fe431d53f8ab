"""A trace replayed on a real Slurm cluster, time compressed: Slurm alone, explsched, and the simulator beside both."""
