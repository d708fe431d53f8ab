"""What a simulation or a site's history shows: outcomes, metrics, plots."""
