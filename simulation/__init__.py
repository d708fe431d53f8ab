"""The laboratory: replays traces under policies, scaling rules and placements, and measures what comes out."""
