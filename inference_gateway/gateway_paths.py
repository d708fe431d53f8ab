"""Where the files of a gateway lie. All below one directory that its nodes share and only its user may enter."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from explsched import log
from inference_gateway.errors import GatewayError

SLOTS = (1, 2)
"""Of two gateways for the same services, the first and the second."""


@dataclass(frozen=True, slots=True)
class GatewayPaths:
    """The files of a gateway, all below `root`. Of two gateways for the same services each has some for its `slot`."""

    root: Path
    slot: int = 1

    def of(self, slot: int) -> GatewayPaths:
        """The same for the gateway in this slot, 1 or 2."""
        return GatewayPaths(self.root, slot)

    @property
    def slots(self) -> tuple[GatewayPaths, ...]:
        """Those of the first and of the second gateway."""
        return tuple(self.of(slot) for slot in SLOTS)

    def _own(self, name: str) -> Path:
        return self.root / (name if self.slot == 1 else f"second-{name}")

    def make(self) -> None:
        """Make the directories. Raises `OSError`."""
        for directory in (self.root, self.root / "replicas", self.root / "endpoints"):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o700)

    def make_for(self, name: str, job_id: int | None) -> Path:
        """The directories, and that of the gateway `name` in this job (or in none) on this node's own disk.

        Raises `OSError`, or `GatewayError` if somebody else has made the latter.
        """
        self.make()
        return private(name if self.slot == 1 else f"{name}-second", job_id)

    @property
    def address(self) -> Path:
        """The URL of the gateway, one line for each of two; changes when one moves to another node."""
        return self.root / "address"

    @property
    def gateway(self) -> Path:
        """JSON: the job, host and process that serve at the address."""
        return self._own("gateway.json")

    @property
    def lock(self) -> Path:
        """Held by the control plane."""
        return self.root / "lock"

    @property
    def memory(self) -> Path:
        """What the control plane remembers."""
        return self.root / "state.json"

    @property
    def plane(self) -> Path:
        """JSON: what the gateway's HAProxy has, where there are two gateways; see `control.data_plane_sync`."""
        return self._own("plane.json")

    @property
    def orders(self) -> Path:
        """JSON: what the HAProxy of the gateway that does not lead is to have."""
        return self.root / "orders.json"

    @property
    def status(self) -> Path:
        """What the control plane shows, about once a second."""
        return self.root / "status.json"

    @property
    def events(self) -> Path:
        """The event log, JSON lines."""
        return self.root / "events.jsonl"

    @property
    def access_log(self) -> Path:
        """The access logs of the gateway's jobs that have ended, JSON lines."""
        return self.root / "access.jsonl"

    @property
    def usage(self) -> Path:
        """JSON: tokens by day, key and service, as the replicas have reported them."""
        return self.root / "usage.json"

    @property
    def overrides(self) -> Path:
        """What `gateway scale` has set, JSON."""
        return self.root / "overrides.json"

    @property
    def closing(self) -> Path:
        """Present while `gateway down` drains everything."""
        return self.root / "closing"

    @property
    def handover(self) -> Path:
        """The job id of a gateway job whose data plane is ready to take over."""
        return self._own("handover")

    @property
    def accepted(self) -> Path:
        """Directory of the services file and the file of keys as they were last accepted."""
        return self.root / "accepted"

    @property
    def reload(self) -> Path:
        """A request to take the services file again: any text that no request before it had."""
        return self._own("reload")

    @property
    def reloaded(self) -> Path:
        """JSON: the answer to the last such request."""
        return self._own("reloaded.json")

    def replica(self, name: str) -> Path:
        """The directory of a replica: its script, its log, its registration."""
        return self.root / "replicas" / name

    def router_endpoints(self, service: str) -> Path:
        """The serving replicas of a service, for llm-d's router."""
        return self.root / "endpoints" / f"{service}.yaml"

    @property
    def batches(self) -> Path:
        """Directory of the files and batches of each key; see `batches.store`."""
        return self.root / "batches"

    @property
    def batch_lock(self) -> Path:
        """Held by the worker that works off the batches."""
        return self.root / "batches.lock"

    @property
    def batch_load(self) -> Path:
        """JSON: what that worker has sent."""
        return self.root / "batch-load.json"

    @property
    def identity(self) -> Path:
        """Directory of the authority that says which replicas are the gateway's; see `identity`."""
        return self.root / "identity"

    def prune(self, keep: frozenset[str], most: int) -> None:
        """Remove the oldest directories of ended replicas until `most` are left; `keep` are those in use."""
        ended = [path for path in (self.root / "replicas").iterdir() if path.name not in keep]
        ended.sort(key=lambda path: path.stat().st_mtime)
        for path in ended[: max(0, len(ended) - most)]:
            shutil.rmtree(path)


_LOG = logging.getLogger("explsched.gateway")


def private(name: str, job_id: int | None) -> Path:
    """Make it if it is not there; the same after a restart.

    Raises `GatewayError` if somebody else has made it.
    """
    path = Path(tempfile.gettempdir()) / f"explsched-gateway-{os.getuid()}-{name}-{job_id or 'local'}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise GatewayError(f"{path}: must be a directory of uid {os.getuid()} with mode 700, is not; remove it")
    return path


def clean_up(path: Path, access_log: Path, kept_log: Path) -> None:
    """Remove it; its access log is added to the one that is kept. Without a request there is none."""
    try:
        if access_log.exists():
            with access_log.open("rb") as source, kept_log.open("ab") as target:
                shutil.copyfileobj(source, target)
        shutil.rmtree(path)
    except OSError as error:
        log.event(_LOG, logging.ERROR, "not cleaned up", file=str(error.filename), why=error.strerror or "")
