"""Pure scheduling decisions: a `Snapshot` of the cluster goes in, a `Plan` comes out.

Nothing in this package talks to Slurm, reads a clock, opens a file or starts a thread.
"""
