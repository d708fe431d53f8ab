"""Turns a plan into changes in Slurm (order, sizes, leases, preemptions), at a rate that slurmctld can take."""
