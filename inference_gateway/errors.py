"""The root of the gateway's errors."""

from __future__ import annotations

from sched_policy.errors import ExplschedError


class GatewayError(ExplschedError):
    """Something the gateway cannot do as asked; the message says what was found and what is accepted."""
