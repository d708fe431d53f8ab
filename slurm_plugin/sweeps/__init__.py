"""What became of sweeps: their trainings, and searches that submit them."""
