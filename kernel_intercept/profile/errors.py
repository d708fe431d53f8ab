"""Errors of kernel profiles."""

from explsched.errors import ExplschedError


class ProfileError(ExplschedError):
    """A profile file, an export of Nsight Compute or a counter cannot be used; says which, where and why."""
