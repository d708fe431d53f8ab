"""What the daemon publishes of each pass, for commands and pages that would otherwise ask Slurm again."""
