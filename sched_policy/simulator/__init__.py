"""Replays traces under the policies that the daemon runs, and measures what comes of it."""
