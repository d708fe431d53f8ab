"""Replays recorded requests against a scaling rule: the same rules that the gateway runs, in simulated time."""
