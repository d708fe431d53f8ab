"""What a cluster learns per GPU-hour under each policy, on sweeps of recorded learning curves."""
