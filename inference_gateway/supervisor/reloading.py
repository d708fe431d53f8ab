"""How a command asks a running gateway to take its services file again, and hears the outcome: two small files.

Files and not a signal, because the gateway may run on another node; SIGHUP to the supervisor does the same without an
answer.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from explsched.atomic_file import replace_file
from inference_gateway.control import state
from inference_gateway.errors import GatewayError
from inference_gateway.replicas.places import Places


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request. `fault` is empty if the file is in force, else why it is not."""

    request: str
    fault: str


def ask(places: Places) -> str:
    """Ask; returns the request's name. Raises `GatewayError`."""
    request = secrets.token_hex(8)
    try:
        replace_file(places.reload, request)
    except OSError as error:
        raise GatewayError(f"{places.reload}: cannot be written: {error.strerror}") from error
    return request


def asked(places: Places) -> str | None:
    """The request that waits for an answer; None if there is none."""
    try:
        return places.reload.read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def answer(places: Places, request: str, fault: str) -> None:
    """Say what became of a request; it waits no more."""
    state.save(places.reloaded, Outcome(request, fault))
    places.reload.unlink(missing_ok=True)


def outcome(places: Places, request: str) -> Outcome | None:
    """What became of this request; None as long as nobody has answered it."""
    found = state.read(places.reloaded, Outcome)
    return found if found is not None and found.request == request else None
