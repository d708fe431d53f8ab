"""A cluster simulated event by event, under the policies that the daemon runs."""
