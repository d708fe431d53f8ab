"""What steering costs slurmctld with thousands of waiting jobs, as Slurm's own sdiag tells it."""
