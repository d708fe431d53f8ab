"""From a plan to the changes it needs in Slurm: order, sizes, leases, preemptions, and how fast."""
