"""Who serves at the gateway's address: two files for everybody who looks for it."""

from __future__ import annotations

from dataclasses import dataclass

from explsched.atomic_file import replace_file
from inference_gateway.control import state
from inference_gateway.replicas.places import Places


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """Who serves at the address. Times are seconds since the epoch."""

    url: str
    host: str
    port: int
    pid: int
    job_id: int | None
    run_directory: str
    since_s: float
    node: str


def announce(places: Places, record: GatewayRecord) -> None:
    """Give the address to the world. Raises `OSError`."""
    replace_file(places.address, record.url + "\n")
    state.save(places.gateway, record)


def holder(places: Places) -> GatewayRecord | None:
    """Who has the address; None if nobody has."""
    return state.read(places.gateway, GatewayRecord)


def withdraw(places: Places, pid: int, since_s: float) -> None:
    """Take the address back if it is still that process's."""
    record = holder(places)
    if record is not None and (record.pid, record.since_s) == (pid, since_s):
        places.address.unlink(missing_ok=True)
        places.gateway.unlink(missing_ok=True)
