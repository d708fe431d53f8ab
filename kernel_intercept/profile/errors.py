"""Errors of kernel profiles."""

from sched_policy.errors import ExplschedError


class ProfileError(ExplschedError):
    """A profile file, an export of Nsight Compute or a counter cannot be used; says which, where and why."""
