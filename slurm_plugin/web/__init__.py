"""A page to look at the cluster with: it shows what the daemon publishes, and changes nothing."""
